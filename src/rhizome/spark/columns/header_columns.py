"""Header tables of many messages at once, as Arrow maps from text to text.

A map can't hold values of several types, so each is shown as text: texts as they are, numbers in
digits, booleans as true and false, seconds of a timestamp, bytes in base64, arrays and tables as
JSON, void as null. What exactly was sent is in the raw properties.
"""

from __future__ import annotations

import json
from base64 import b64encode
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

from rhizome.amqp.field_table import Timestamp, skip_value, value_at
from rhizome.spark.columns.vectorized_bytes import Numbers, Window, texts

MAP_TYPE: Final = pa.map_(pa.string(), pa.string())

_TEXT: Final = ord("S")
_BOOL: Final = ord("t")
# Type octet: numpy's name of the number, without a word for byte order.
_INTEGERS: Final = {
    ord("b"): "i1",
    ord("B"): "u1",
    ord("s"): "i2",
    ord("u"): "u2",
    ord("I"): "i4",
    ord("i"): "u4",
    ord("l"): "i8",
    ord("L"): "i8",
    ord("T"): "u8",
}


class _Entries:
    """Entries of all tables so far, in rounds: the first of each table, then the second, ..."""

    def __init__(self) -> None:
        self.rows: list[Numbers] = []
        self.starts: list[Numbers] = []  # of the name's length octet
        self.kinds: list[Numbers] = []  # offset of the type octet
        self.ends: list[Numbers] = []

    def add(self, rows: Numbers, starts: Numbers, kinds: Numbers, ends: Numbers) -> None:
        self.rows.append(rows)
        self.starts.append(starts)
        self.kinds.append(kinds)
        self.ends.append(ends)

    def in_order(self) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """Rows, starts, type octets and ends, as they lie in the window."""
        starts = np.concatenate(self.starts)
        order = np.argsort(starts, kind="stable")
        return (
            np.concatenate(self.rows)[order],
            starts[order],
            np.concatenate(self.kinds)[order],
            np.concatenate(self.ends)[order],
        )


def maps(window: Window, starts: Numbers, ends: Numbers) -> Any:
    """One map per table; `starts` and `ends` bound the tables' entries, without their length."""
    count = len(starts)
    entries = _walk(window, starts, ends)
    if not entries.rows:
        return pa.MapArray.from_arrays(
            pa.array(np.zeros(count + 1, np.int32)), pa.array([], pa.string()), _no_texts()
        )
    rows, names, kinds, value_ends = entries.in_order()
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(rows, minlength=count), out=offsets[1:])
    keys = texts(window.slices(names + 1, kinds))
    return pa.MapArray.from_arrays(pa.array(offsets), keys, _values(window, kinds, value_ends))


def _no_texts() -> Any:
    return pa.array([], pa.string())


def _walk(window: Window, starts: Numbers, ends: Numbers) -> _Entries:
    entries = _Entries()
    rows = np.flatnonzero(starts < ends)
    at = starts[rows]
    while len(rows):
        kinds = at + 1 + window.u8(at)
        after = _after_values(window, kinds)
        entries.add(rows, at, kinds, after)
        more = np.flatnonzero(after < ends[rows])
        rows, at = rows[more], after[more]
    return entries


def _after_values(window: Window, kinds: Numbers) -> Numbers:
    """Where the values end whose type octets are at `kinds`."""
    octets = window.octets[kinds]
    after = np.empty(len(kinds), np.int64)
    for octet in np.unique(octets):
        rows = np.flatnonzero(octets == octet)
        at = kinds[rows]
        if octet == _TEXT:
            after[rows] = at + 5 + window.u32(at + 1)
        elif octet == _BOOL:
            after[rows] = at + 2
        elif int(octet) in _INTEGERS:
            after[rows] = at + 1 + np.dtype(_INTEGERS[int(octet)]).itemsize
        else:
            data = bytes(window.data)
            after[rows] = [skip_value(data, int(each), len(data)) for each in at]
    return after


def _values(window: Window, kinds: Numbers, ends: Numbers) -> Any:
    octets = window.octets[kinds]
    parts: list[Any] = []
    places: list[Numbers] = []
    for octet in np.unique(octets):
        rows = np.flatnonzero(octets == octet)
        parts.append(_of_one_type(window, int(octet), kinds[rows], ends[rows]))
        places.append(rows)
    if len(parts) == 1:
        return parts[0]
    order = np.empty(len(kinds), np.int64)
    order[np.concatenate(places)] = np.arange(len(kinds))
    return pa.concat_arrays(parts).take(pa.array(order))


def _of_one_type(window: Window, octet: int, kinds: Numbers, ends: Numbers) -> Any:
    if octet == _TEXT:
        return texts(window.slices(kinds + 5, ends))
    if octet == _BOOL:
        return pa.array(["false", "true"]).take(pa.array(window.u8(kinds + 1) != 0).cast(pa.int8()))
    if octet in _INTEGERS:
        kind = np.dtype(_INTEGERS[octet])
        gathered = window.rows(kinds + 1, kind.itemsize)
        numbers = np.ascontiguousarray(gathered).view(kind.newbyteorder(">")).reshape(-1)
        return pa.array(numbers.astype(kind)).cast(pa.string())
    data = bytes(window.data)
    found = [
        text_of(value_at(data, int(start), int(end)))
        for start, end in zip(kinds, ends, strict=True)
    ]
    return pa.array(found, pa.string())


def text_of(value: object) -> str | None:
    """A decoded value of a table as text."""
    if value is None or isinstance(value, str):
        return None if value is None else _clean(value)
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _plain(value: object) -> object:
    """What JSON has for a value of a table."""
    if isinstance(value, dict):
        return {_clean(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        return _clean(value)
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, Timestamp):
        return value.seconds
    return str(value) if isinstance(value, Decimal) else value


def _clean(text: str) -> str:
    """Bytes that are no UTF-8 came as lone surrogates, which Spark can't hold."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
