"""Options of the sources and the sink: checked on the driver, told clearly, never leaking a secret.

Spark hands options over as texts with names in any case. A source lists what it knows; anything
else is an error that names the nearest option.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Final

from rhizome.errors import RhizomeError
from rhizome.printable import without_passwords

_SIZE: Final = re.compile(r"(\d+)\s*([kmgt]?)i?b?", re.IGNORECASE)
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
# What Spark puts among the options for itself.
_OF_SPARK: Final = ("checkpointlocation", "queryname", "outputmode")
_TRUE: Final = ("true", "yes", "1")
_FALSE: Final = ("false", "no", "0")


READ_SECONDS_DEFAULT: Final = 120
OF_SOURCES: Final = (
    "uri",
    "url",
    "subscribe",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "includeHeaders",
    "readTimeout",
)
"""What the sources on streams and on work queues both know."""


class OptionError(RhizomeError):
    """An option is missing, unknown or wrong; the text says which and what it may be."""


class Options:
    """The options that a user gave to `source`. Names are as documented; case doesn't matter."""

    def __init__(self, given: Mapping[str, str], known: Iterable[str], source: str) -> None:
        self.source = source
        self._known = {name.lower(): name for name in known}
        self._given = {name.lower(): str(value) for name, value in given.items()}
        for name in self._given:
            if name not in self._known and name not in _OF_SPARK:
                raise OptionError(f"{source} has no option '{name}'{self._nearest(name)}")

    def _nearest(self, name: str) -> str:
        nearest = get_close_matches(name, self._known, n=1)
        if nearest:
            return f"; did you mean '{self._known[nearest[0]]}'?"
        return f"; it has {', '.join(self._known.values())}"

    def has(self, name: str) -> bool:
        return self._given.get(name.lower(), "") != ""

    def text(self, name: str, default: str = "") -> str:
        return self._given.get(name.lower(), default)

    def uri(self) -> str:
        """Where the brokers are."""
        example = "amqp://user:password@host1,host2/vhost"
        return self.text("url") or self.required("uri", example)

    def required(self, name: str, example: str) -> str:
        if not self.has(name):
            raise OptionError(f"{self.source} needs the option '{name}', like {example}")
        return self.text(name)

    def choice(self, name: str, choices: Iterable[str], default: str) -> str:
        value = self.text(name, default).lower()
        if value not in choices:
            raise self.wrong(name, f"one of {', '.join(choices)}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name, str(default)).lower()
        if value not in (*_TRUE, *_FALSE):
            raise self.wrong(name, "true or false")
        return value in _TRUE

    def number(self, name: str, default: int, least: int = 1) -> int:
        value = self.text(name, str(default))
        if not value.isascii() or not value.isdigit() or int(value) < least:
            raise self.wrong(name, f"a whole number, {least} or more")
        return int(value)

    def size_bytes(self, name: str, default: int) -> int:
        """A number of bytes: 1048576, 64k, 1 GiB."""
        value = self.text(name, str(default))
        match = _SIZE.fullmatch(value.strip())
        if match is None or int(match[1]) < 1:
            raise self.wrong(name, "a number of bytes, like 64m")
        return int(match[1]) * _UNITS[match[2].lower()]

    def names(self, name: str) -> list[str]:
        """A comma-separated list."""
        return [part.strip() for part in self.text(name).split(",") if part.strip()]

    def wrong(self, name: str, what: str) -> OptionError:
        shown = without_passwords(self.text(name))
        called = self._known[name.lower()]
        return OptionError(f"option '{called}' of {self.source} is '{shown}'; it must be {what}")
