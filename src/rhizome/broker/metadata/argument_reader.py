"""ArgumentReader: typed values out of the arguments of a method, refused as RabbitMQ does."""

from __future__ import annotations

from typing import Final, final

from rhizome.amqp.field_table import type_name
from rhizome.errors import PreconditionFailed

# RabbitMQ takes no time to live beyond ten years.
EXPIRY_MS_MAX: Final = 10 * 365 * 86_400_000

# What RabbitMQ calls its queue types when it refuses an argument.
TYPE_MODULES: Final[dict[str, str]] = {
    "classic": "rabbit_classic_queue",
    "quorum": "rabbit_quorum_queue",
    "stream": "rabbit_stream_queue",
}


@final
class ArgumentReader:
    """Takes typed values out of arguments; knows what to say if one is wrong."""

    arguments: dict[str, object]
    resource: str
    class_id: int
    method_id: int

    def __init__(
        self, arguments: dict[str, object], resource: str, class_id: int, method_id: int
    ) -> None:
        self.arguments = arguments
        self.resource = resource
        self.class_id = class_id
        self.method_id = method_id

    def refuse(self, key: str, reason: str) -> PreconditionFailed:
        text = f"invalid arg '{key}' for {self.resource}: {reason}"
        return PreconditionFailed(text, self.class_id, self.method_id)

    def integer(self, key: str) -> int:
        """Return an integer; -1 if it is absent. A negative one is refused."""
        if key not in self.arguments:
            return -1
        number = self.any_integer(key)
        if number < 0:
            raise self.refuse(key, f"{{value_negative,{number}}}")
        return number

    def any_integer(self, key: str) -> int:
        value = self.arguments[key]
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.refuse(key, f'"expected integer, got {type_name(value)}"')
        return value

    def positive(self, key: str) -> int:
        """Return an integer above zero; -1 if it is absent."""
        number = self.integer(key)
        if number == 0:
            raise self.refuse(key, "{value_zero,0}")
        return number

    def expiry_ms(self, key: str) -> int:
        """Return a time to live; -1 if it is absent."""
        number = self.integer(key)
        if number > EXPIRY_MS_MAX:
            raise self.refuse(key, f"{{value_too_large,{number}}}")
        return number

    def unchecked(self, key: str) -> int:
        """Return an integer; -1 if it is absent or no limit: RabbitMQ accepts anything here."""
        value = self.arguments.get(key)
        if not isinstance(value, int) or isinstance(value, bool):
            return -1
        return max(value, -1)

    def flag(self, key: str) -> bool:
        """Return a bool; False if it is absent."""
        if key not in self.arguments:
            return False
        value = self.arguments[key]
        if not isinstance(value, bool):
            raise self.refuse(key, f"{{unacceptable_type,{type_name(value)}}}")
        return value

    def text(self, key: str) -> str | None:
        """Return a string; None if it is absent."""
        if key not in self.arguments:
            return None
        value = self.arguments[key]
        if not isinstance(value, str):
            raise self.refuse(key, f"{{unacceptable_type,{type_name(value)}}}")
        return value

    def word(self, key: str, words: tuple[str, ...], reason: str) -> str | None:
        """Return one of `words`; None if it is absent. In `reason` a * stands for the value."""
        value = self.text(key)
        if value is not None and value not in words:
            raise self.refuse(key, reason.replace("*", value))
        return value

    def drop_refused(self, refused: tuple[str, ...]) -> list[str]:
        """Leave arguments out that are not for a type of queue; return them in their order."""
        found = [key for key in self.arguments if key in refused]
        if found:
            rest = self.arguments.items()
            self.arguments = {key: value for key, value in rest if key not in refused}
        return found

    def refuse_for(self, key: str, queue_type: str) -> PreconditionFailed:
        kind = TYPE_MODULES[queue_type]
        text = f"invalid arg '{key}' for {self.resource} of queue type {kind}"
        return PreconditionFailed(text, self.class_id, self.method_id)
