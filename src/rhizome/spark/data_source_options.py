"""Options of the sources and the sink: checked on the driver, told clearly, never leaking a secret.

Spark hands options over as texts with names in any case. A source lists what it knows; anything
else is an error that names the nearest option.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from rhizome.errors import RhizomeError
from rhizome.printable_text import without_passwords

_SIZE: Final = re.compile(r"(\d+)\s*([kmgt]?)i?b?", re.IGNORECASE)
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_TIME: Final = re.compile(r"(\d+)\s*(ms|s|m|h|d)", re.IGNORECASE)
_TIME_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
# What Spark puts among the options for itself.
_OF_SPARK: Final = ("checkpointlocation", "queryname", "outputmode")
_TRUE: Final = ("true", "yes", "1")
_FALSE: Final = ("false", "no", "0")


READ_SECONDS_DEFAULT: Final = 120
PARTITIONS: Final = "RHIZOME_SPARK_PARTITIONS"
"""In the environment of workers: how many tasks the cluster runs at a time. Sources plan in a
process that has no session to ask."""
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


def tasks_at_once() -> int:
    """How many tasks the cluster runs at a time; the cores of this host if no session has told."""
    told = os.environ.get(PARTITIONS, "")
    return int(told) if told.isascii() and told.isdigit() and int(told) else os.cpu_count() or 1


def resolved(text: str, source: str) -> str:
    """An address, or what the environment variable (env:NAME) or the file (file:/path) that it
    names has in it: a password there is in no plan, catalogue or event of Spark. Both are those of
    the driver's host.
    """
    kind, _, name = text.partition(":")
    if kind == "env":
        found = os.environ.get(name, "")
        if not found:
            raise OptionError(
                f"option 'uri' of {source} is '{text}', and the driver of Spark has no environment "
                f"variable {name}; set it where the driver is started"
            )
    elif kind == "file":
        path = name.removeprefix("//")
        try:
            found = Path(path).read_text()
        except OSError as error:
            raise OptionError(
                f"option 'uri' of {source} is '{text}', which the driver can't read: "
                f"{error.strerror}"
            ) from None
    else:
        return text
    if "://" not in found:
        # What is there instead may be secret: it is not shown.
        raise OptionError(
            f"option 'uri' of {source} is '{text}', where there is no address like "
            "amqp://user:password@host/vhost"
        )
    return found.strip()


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
        if not self.has("url") and not self.has("uri"):
            raise OptionError(
                f"{self.source} needs the option 'uri', like {example}. Spark hands over no "
                "options of a table in its catalogue: SQL gives them where the table is used, "
                "as in SELECT * FROM messages WITH (uri = '...', subscribe = '...')"
            )
        return self.address("url") or self.address("uri")

    def address(self, name: str) -> str:
        """An address, wherever it is kept; empty if nobody says."""
        return resolved(self.text(name), self.source)

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

    def partitions(self, per_task: int = 1) -> int:
        """`minPartitions`; if nobody says, so many per task that the cluster runs at a time."""
        return self.number("minPartitions", per_task * tasks_at_once())

    def size_bytes(self, name: str, default: int) -> int:
        """A number of bytes: 1048576, 64k, 1 GiB."""
        value = self.text(name, str(default))
        match = _SIZE.fullmatch(value.strip())
        if match is None or int(match[1]) < 1:
            raise self.wrong(name, "a number of bytes, like 64m")
        return int(match[1]) * _UNITS[match[2].lower()]

    def seconds(self, name: str, default: str) -> float:
        """A time: 500ms, 30s, 15m, 2h."""
        value = self.text(name, default)
        match = _TIME.fullmatch(value.strip())
        if match is None:
            raise self.wrong(name, "a time, like 30s or 15m")
        return int(match[1]) * _TIME_UNITS[match[2].lower()]

    def names(self, name: str) -> list[str]:
        """A comma-separated list."""
        return [part.strip() for part in self.text(name).split(",") if part.strip()]

    def wrong(self, name: str, what: str) -> OptionError:
        shown = without_passwords(self.text(name))
        called = self._known[name.lower()]
        return OptionError(f"option '{called}' of {self.source} is '{shown}'; it must be {what}")
