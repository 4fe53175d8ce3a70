"""Sizes, times, shares and addresses as people write them: "64MiB", "1500ms", "40%", "[::1]:5672".

A number without a unit is refused wherever a unit is needed: nobody remembers whether 60 was
seconds or milliseconds. Sizes become bytes, times milliseconds and intervals microseconds, as ints.
For every value of a kind, parse(format(value)) == value.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

SIZE_UNITS: Final[Mapping[str, int]] = {
    "B": 1,
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
}
TIME_UNITS: Final[Mapping[str, int]] = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
SHORT_TIME_UNITS: Final[Mapping[str, int]] = {"us": 1, "ms": 1000, "s": 1_000_000}
VALUE_MAX: Final = (1 << 63) - 1
PORT_MAX: Final = 65_535
UNIX: Final = "unix:"
UNIX_PATH_BYTES_MAX: Final = 107
"""sockaddr_un has room for this many bytes and a NUL."""


_QUANTITY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z%]*)")


class UnitError(ValueError):
    """A text that isn't a quantity of the kind asked for; says what to write instead."""


@dataclass(frozen=True, slots=True)
class Portion:
    """An amount in bytes, or a percentage of something that is known only later."""

    bytes: int | None = None
    percent: Fraction | None = None

    def of(self, total_bytes: int) -> int:
        if self.percent is not None:
            return int(total_bytes * self.percent / 100)
        assert self.bytes is not None, "a portion is bytes or percent"
        return self.bytes

    def __str__(self) -> str:
        if self.percent is not None:
            return f"{_decimal(self.percent)}%"
        assert self.bytes is not None, "a portion is bytes or percent"
        return format_size(self.bytes)


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen. An empty host is every interface, `localhost` both loopback addresses.

    A Unix socket has the host "unix:/path" and no port.
    """

    host: str
    port: int

    @property
    def path(self) -> str:
        """Of a Unix socket; else empty."""
        return self.host.removeprefix(UNIX) if self.host.startswith(UNIX) else ""

    def __str__(self) -> str:
        if self.path:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_size(text: str) -> int:
    """Bytes of "64MiB" and its like."""
    return _whole(text, SIZE_UNITS, "size", "64MiB")


def parse_duration(text: str) -> int:
    """Milliseconds of "1500ms" and its like."""
    return _whole(text, TIME_UNITS, "time", "30s")


def parse_interval(text: str) -> int:
    """Microseconds of "300us" and its like."""
    return _whole(text, SHORT_TIME_UNITS, "time", "300us")


def parse_portion(text: str) -> Portion:
    """ "40%" or a size."""
    number, unit = _split(text, "size or percentage", "40%")
    if unit != "%":
        return Portion(bytes=parse_size(text))
    if number > 100:
        raise UnitError(f'"{text}" is more than 100%')
    return Portion(percent=number)


def format_size(size: int) -> str:
    """The shortest exact way to write a size: 67108864 is "64MiB", 1000 is "1kB", 1001 "1001B"."""
    return _shortest(size, SIZE_UNITS)


def format_duration(duration_ms: int) -> str:
    return _shortest(duration_ms, TIME_UNITS)


def format_interval(interval_us: int) -> str:
    return _shortest(interval_us, SHORT_TIME_UNITS)


def parse_address(text: str) -> Address:
    """host:port, [IPv6]:port, :port for every interface, or unix:/path."""
    if text.startswith(UNIX):
        return _unix_address(text)
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > PORT_MAX:
        raise UnitError(f'"{text}" is no address; write HOST:PORT such as "127.0.0.1:5672"')
    if host.startswith("[") and host.endswith("]"):
        return Address(host[1:-1], int(port))
    if ":" in host:
        raise UnitError(f'"{text}": an IPv6 address goes in brackets, "[{host}]:{port}"')
    if any(c.isspace() or c in "[]/@" for c in host):
        raise UnitError(f'"{text}": the host has characters that no host name has')
    return Address(host, int(port))


def _unix_address(text: str) -> Address:
    size = len(text.removeprefix(UNIX).encode())
    if not text.startswith(UNIX + "/") or "\0" in text:
        raise UnitError(f'"{text}": a Unix socket has an absolute path, such as "unix:/run/b1"')
    if size > UNIX_PATH_BYTES_MAX:
        raise UnitError(
            f'"{text}": the path of a Unix socket has at most {UNIX_PATH_BYTES_MAX} bytes, this'
            f" one {size}"
        )
    return Address(text, 0)


def _whole(text: str, units: Mapping[str, int], noun: str, example: str) -> int:
    number, unit = _split(text, noun, example)
    if unit not in units:
        raise UnitError(f'"{text}": unit "{unit}" is unknown{_nearest(unit, units)}')
    value = number * units[unit]
    if value.denominator != 1:
        smallest = next(iter(units))
        raise UnitError(f'"{text}" is no whole number of {smallest}')
    if value > VALUE_MAX:
        raise UnitError(f'"{text}" is too large')
    return int(value)


def _split(text: str, noun: str, example: str) -> tuple[Fraction, str]:
    found = _QUANTITY.fullmatch(text.strip())
    if found is None:
        raise UnitError(f'"{text}" is no {noun}; write one such as "{example}"')
    if not found[2]:
        raise UnitError(f'{text.strip()} has no unit; write a {noun} such as "{example}"')
    if len(found[1]) > 40:
        raise UnitError(f'"{text[:20]}..." is too large')
    return Fraction(found[1]), found[2]


def _nearest(unit: str, units: Mapping[str, int]) -> str:
    by_lower = {known.lower(): known for known in units}
    close = difflib.get_close_matches(unit.lower(), by_lower, n=1, cutoff=0.5)
    hint = f'; did you mean "{by_lower[close[0]]}"?' if close else ""
    return f"{hint} (units: {', '.join(units)})"


def _shortest(value: int, units: Mapping[str, int]) -> str:
    if value == 0:
        return f"0{next(iter(units))}"
    exact = [f"{value // factor}{unit}" for unit, factor in units.items() if value % factor == 0]
    return min(exact, key=lambda written: (len(written), written.endswith("kB")))


def _decimal(number: Fraction) -> str:
    if number.denominator == 1:
        return str(number.numerator)
    return f"{float(number):.10f}".rstrip("0")
