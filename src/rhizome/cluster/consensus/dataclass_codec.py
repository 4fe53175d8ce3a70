"""Frozen dataclasses as bytes: the fields in their order, each by its declared type.

    int      8 bytes, signed          bytes, str           4 bytes length, then the bytes
    bool     1 byte                   tuple[X, ...]        4 bytes count, then the items
    Entry    index, term (8 each), kind (1), payload       a dataclass: 4 bytes length, its fields

A release may add fields with defaults at the end of a class: a reader takes the default for what is
missing and skips what it doesn't know, so brokers of two releases understand each other.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

from rhizome.cluster.consensus.log.cluster_store import Entry
from rhizome.errors import RhizomeError

T = TypeVar("T")

_I64: Final = struct.Struct(">q")
_U32: Final = struct.Struct(">I")
_ENTRY: Final = struct.Struct(">qqBI")


class DamagedError(RhizomeError):
    """Bytes that aren't what they should be; the text says what was expected."""


class Reader:
    """Reads one value after the other; raises DamagedError at the end of the bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            raise DamagedError(f"{count} bytes expected at {self.at} of {len(self.data)}")
        piece = self.data[self.at : end]
        self.at = end
        return piece

    def number(self) -> int:
        value: int = _I64.unpack(self.take(8))[0]
        return value

    def count(self) -> int:
        value: int = _U32.unpack(self.take(4))[0]
        return value

    def flag(self) -> bool:
        return self.take(1) != b"\0"

    def blob(self) -> bytes:
        return self.take(self.count())

    def text(self) -> str:
        return self.blob().decode("utf-8", "surrogateescape")

    def entry(self) -> Entry:
        index, term, kind, size = _ENTRY.unpack(self.take(_ENTRY.size))
        return Entry(index, term, kind, self.take(size))


Put = Callable[[list[bytes], Any], None]
Get = Callable[[Reader], Any]


def _put_number(out: list[bytes], value: int) -> None:
    out.append(_I64.pack(value))


def _put_flag(out: list[bytes], value: bool) -> None:
    out.append(b"\1" if value else b"\0")


def _put_blob(out: list[bytes], value: bytes) -> None:
    out.append(_U32.pack(len(value)))
    out.append(value)


def _put_text(out: list[bytes], value: str) -> None:
    _put_blob(out, value.encode("utf-8", "surrogateescape"))


def put_entry(out: list[bytes], entry: Entry) -> None:
    out.append(_ENTRY.pack(entry.index, entry.term, entry.kind, len(entry.payload)))
    out.append(entry.payload)


_PLAIN: Final[dict[object, tuple[Put, Get]]] = {
    int: (_put_number, Reader.number),
    bool: (_put_flag, Reader.flag),
    bytes: (_put_blob, Reader.blob),
    str: (_put_text, Reader.text),
    Entry: (put_entry, Reader.entry),
}


def _tuple_codec(item: tuple[Put, Get]) -> tuple[Put, Get]:
    put_item, get_item = item

    def put(out: list[bytes], values: tuple[Any, ...]) -> None:
        out.append(_U32.pack(len(values)))
        for value in values:
            put_item(out, value)

    def get(reader: Reader) -> tuple[Any, ...]:
        return tuple(get_item(reader) for _ in range(reader.count()))

    return put, get


def _nested_codec(kind: type[Any]) -> tuple[Put, Get]:
    def put(out: list[bytes], value: object) -> None:
        _put_blob(out, encode(value))

    def get(reader: Reader) -> object:
        return decode(kind, reader.blob())

    return put, get


def _codec_of(hint: Any) -> tuple[Put, Get]:
    if hint in _PLAIN:
        return _PLAIN[hint]
    if get_origin(hint) is tuple:
        return _tuple_codec(_codec_of(get_args(hint)[0]))
    return _nested_codec(hint)


_CODECS: Final[dict[type[Any], list[tuple[str, Put, Get, object]]]] = {}


def _codecs(kind: type[Any]) -> list[tuple[str, Put, Get, object]]:
    known = _CODECS.get(kind)
    if known is None:
        hints = get_type_hints(kind)
        known = [(f.name, *_codec_of(hints[f.name]), f.default) for f in fields(kind)]
        _CODECS[kind] = known
    return known


def encode(value: object) -> bytes:
    out: list[bytes] = []
    for name, put, _, _ in _codecs(type(value)):
        put(out, getattr(value, name))
    return b"".join(out)


def decode(kind: type[T], data: bytes) -> T:
    """Raises DamagedError for bytes that no release would have written."""
    reader = Reader(data)
    values = []
    for name, _, get, default in _codecs(kind):
        if reader.at == len(data):
            if default is MISSING:
                raise DamagedError(f"{kind.__name__} ends before its field {name}")
            values.append(default)
        else:
            values.append(get(reader))
    return kind(*values)
