"""Headers exchanges: bindings whose arguments are compared with the headers of a message.

As in RabbitMQ: `x-match` says whether all arguments must match (the default) or any; arguments
whose name begins with `x-` take part only with `all-with-x` and `any-with-x`. An argument without a
value (void) asks for the presence of the header. With nothing to compare, `all` matches every
message and `any` none. Numbers are equal whatever their width, but an integer never equals a float
or a bool.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from rhizome.amqp.field_table import encode_value, type_name
from rhizome.broker.erlang_term_text import erlang_term
from rhizome.broker.routing.bindings_and_destinations import Binding, Destination, Walk
from rhizome.broker.routing.exchange import Exchange
from rhizome.errors import PreconditionFailed

MATCH_WAYS: Final = ("all", "any", "all-with-x", "any-with-x")

NESTED_BYTES_PER_STEP: Final = 8
TEXT_BYTES_PER_STEP: Final = 1024
"""How many bytes of a value are compared in one step: fields of tables are compared one by one."""

_NO_HEADERS: Final[dict[str, object]] = {}
_ABSENT: Final = object()


def _same(wanted: object, value: object) -> bool:
    """Whether a header has the value that a binding asks for, types included."""
    return wanted is None or (type(wanted) is type(value) and wanted == value)


def _steps_of(wanted: object) -> i64:
    """The steps that comparing a header with this value takes: one, more if it is large."""
    if isinstance(wanted, (dict, list)):
        return 1 + len(encode_value(wanted)) // NESTED_BYTES_PER_STEP
    if isinstance(wanted, (str, bytes)):
        return 1 + len(wanted) // TEXT_BYTES_PER_STEP
    return 1


@final
class _Pattern:
    """The arguments of one binding, as far as they take part in the comparison.

    ``steps[i]`` is what it costs to compare ``values[i]``.
    """

    destination: Destination
    match_any: bool
    names: list[str]
    values: list[object]
    steps: list[int]

    def __init__(self, binding: Binding) -> None:
        way = binding.arguments.get("x-match")
        self.destination = binding.destination
        self.match_any = way == "any" or way == "any-with-x"
        with_x = way == "all-with-x" or way == "any-with-x"
        self.names = []
        self.values = []
        self.steps = []
        for name, value in binding.arguments.items():
            if name == "x-match" or (name.startswith("x-") and not with_x):
                continue
            self.names.append(name)
            self.values.append(value)
            self.steps.append(_steps_of(value))

    def fits(self, headers: dict[str, object], walk: Walk) -> bool:
        decisive = self.match_any
        outcome = not decisive
        spent: i64 = 1
        for i in range(len(self.names)):
            spent += self.steps[i]
            value = headers.get(self.names[i], _ABSENT)
            fits = value is not _ABSENT and _same(self.values[i], value)
            if fits == decisive:
                outcome = decisive
                break
        walk.spend(spent)
        return outcome


@final
class HeadersExchange(Exchange):
    """Destinations with a binding whose arguments fit the message's headers."""

    _patterns: dict[Binding, _Pattern]

    def __init__(
        self,
        vhost: str,
        name: str,
        kind: str = "headers",
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: dict[str, object] | None = None,
    ) -> None:
        super().__init__(vhost, name, kind, durable, auto_delete, internal, arguments)
        self.reads_key = False
        self.reads_headers = True
        self._patterns = {}

    def match(self, key: str, headers: dict[str, object] | None, walk: Walk) -> bool:
        given = _NO_HEADERS if headers is None else headers
        found = False
        serial = walk.serial
        for pattern in self._patterns.values():
            destination = pattern.destination
            if destination.mark == serial and found:
                walk.spend(1)
                continue  # reached already, and `found` can't change any more
            if pattern.fits(given, walk):
                found = True
                walk.reach(destination)
        return found

    def check_binding(self, key: str, arguments: dict[str, object]) -> None:
        if "x-match" not in arguments:
            return
        way = arguments["x-match"]
        if not isinstance(way, str):
            raise PreconditionFailed(
                f"Invalid x-match field type {type_name(way)} (value {erlang_term(way)}); "
                "expected longstr"
            )
        if way not in MATCH_WAYS:
            raise PreconditionFailed(
                f"Invalid x-match field value {erlang_term(way)}; "
                "expected all, any, all-with-x, or any-with-x"
            )

    def _added(self, binding: Binding) -> None:
        self._patterns[binding] = _Pattern(binding)

    def _removed(self, binding: Binding) -> None:
        del self._patterns[binding]
