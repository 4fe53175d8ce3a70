"""Window: a stretch of bytes that is read at many offsets at once.

Formats with lengths inside can only be walked one after the other, but once it is known where the
things begin, their fields are gathered for all of them together: numbers by numpy, byte strings by
Arrow, with no Python object per row.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.lib.stride_tricks import sliding_window_view

from rhizome.errors import RhizomeError
from rhizome.spark.arrow_compute import compute as pc

Numbers = Any
"""A numpy array of int64."""

SPAN_BYTES_MAX: Final = (1 << 31) - 1
"""Arrow's binary type counts bytes in 32 bits."""
INSTANT: Final = pa.timestamp("us", "UTC")
"""A time, as Spark wants it."""
_WORD_BYTES: Final = 8
_WIDTHS: Final = {2: ">u2", 4: ">u4", 8: ">i8"}


class MalformedError(RhizomeError):
    """Lengths inside the bytes lead outside of them, or back."""


class Window:
    """Bytes, and what lies in them at given offsets."""

    def __init__(self, data: bytes | memoryview) -> None:
        self.data = data
        self.octets = np.frombuffer(data, np.uint8)

    @cached_property
    def _buffer(self) -> Any:
        return pa.py_buffer(self.data)

    def u8(self, at: Numbers) -> Numbers:
        return self.octets[at].astype(np.int64)

    def u16(self, at: Numbers) -> Numbers:
        return self._numbers(at, 2)

    def u32(self, at: Numbers) -> Numbers:
        return self._numbers(at, 4)

    def i64(self, at: Numbers) -> Numbers:
        return self._numbers(at, 8)

    def _numbers(self, at: Numbers, width: int) -> Numbers:
        if len(at) == 0:
            return np.empty(0, np.int64)
        return self._everywhere(_WIDTHS[width], width)[at].astype(np.int64)

    def _everywhere(self, form: str, width: int) -> Any:
        """One thing at every byte, overlapping: gathering from that is one pass over offsets."""
        places = len(self.data) - width + 1
        if places <= 0:
            raise MalformedError("lengths in a message don't fit into it")
        return np.ndarray((places,), form, self.data, 0, (1,))

    def fields(self, at: Numbers, form: Any) -> Any:
        """The structures of a numpy type that begin at each offset, gathered in one pass."""
        if len(at) == 0:
            return np.empty(0, form)
        return self._everywhere(f"V{form.itemsize}", form.itemsize)[at].view(form)

    def alike(self, at: Numbers, width: int, *but: tuple[int, int]) -> bool:
        """Whether the `width` bytes at each offset are the same, leaving out those from a
        place in them to another. The offsets ascend."""
        count = -(-width // _WORD_BYTES)
        whole = count * _WORD_BYTES
        if width <= 0 or int(at[0]) < 0 or int(at[-1]) + whole > len(self.data):
            return False
        compared = np.zeros(whole, np.uint8)
        compared[:width] = 0xFF
        for begin, end in but:
            compared[begin:end] = 0
        words = self._everywhere(f"V{whole}", whole)[at].view(np.uint64).reshape(-1, count)
        return not ((words ^ words[0]) & compared.view(np.uint64)).any()

    def rows(self, at: Numbers, width: int) -> Any:
        """The `width` bytes at each offset, as a matrix of octets."""
        if len(at) == 0:
            return np.empty((0, width), np.uint8)
        return sliding_window_view(self.octets, width)[at]

    def slices(self, starts: Numbers, ends: Numbers) -> Any:
        """The bytes from each start to its end, as an Arrow array of binary.

        All starts and ends together must ascend, as those of things that lie one after the other
        do. Offsets [start, end, start, end, ...] make every other element a slice.
        """
        count = len(starts)
        if count == 0:
            return pa.array([], pa.binary())
        offsets = np.empty(2 * count, np.int32)
        offsets[0::2] = starts
        offsets[1::2] = ends
        if offsets[0] < 0 or offsets[-1] > len(self.data) or (offsets[1:] < offsets[:-1]).any():
            # Arrow takes offsets on trust, and would read whatever memory they point to.
            raise MalformedError("lengths in a message don't fit into it")
        whole = pa.BinaryArray.from_buffers(
            pa.binary(), 2 * count - 1, [None, pa.py_buffer(offsets), self._buffer]
        )
        return whole.take(pa.array(np.arange(0, 2 * count - 1, 2, np.int32)))


def of_type(values: Any, kind: Any) -> Any:
    """A column as another type; asking Arrow for the one that it has costs as much as a cast."""
    return values if values.type == kind else values.cast(kind)


def distinct(numbers: Numbers) -> list[int]:
    """Which numbers there are, in order; mostly that is one."""
    if len(numbers) and (numbers == numbers[0]).all():
        return [int(numbers[0])]
    found: list[int] = np.unique(numbers).tolist()
    return found


def texts(binary: Any) -> Any:
    """Byte strings as texts; bytes that are no UTF-8 become replacement characters."""
    try:
        return binary.cast(pa.string())
    except pa.ArrowInvalid:
        values = [
            None if value is None else value.decode("utf-8", "replace")
            for value in binary.to_pylist()
        ]
        return pa.array(values, pa.string())


def scattered(values: Any, rows: Numbers, count: int) -> Any:
    """`values` at `rows` of a column of `count` rows that is null elsewhere."""
    if len(rows) == count:
        return values
    if len(rows) == 0:
        return nulls(count, values.type)
    places = np.zeros(count, np.int64)
    places[rows] = np.arange(len(rows))
    missing = np.ones(count, bool)
    missing[rows] = False
    return values.take(pa.array(places, mask=missing))


def interned(numbers: Numbers, names: dict[int, str]) -> Any:
    """The name of each number as a text, null where it has none; few numbers are different."""
    if len(numbers) and (numbers == numbers[0]).all():
        return constant(names.get(int(numbers[0])), len(numbers), pa.string())
    distinct, places = np.unique(numbers, return_inverse=True)
    texts_of = pa.array([names.get(int(number)) for number in distinct], pa.string())
    return texts_of.take(pa.array(places))


def constant(value: object, count: int, kind: Any) -> Any:
    """A column that has the same value in each row."""
    rows = 1 << max(count - 1, 0).bit_length()
    return _repeated(value, rows, kind).slice(0, count)


def like_the_first(values: Any, count: int) -> Any:
    """A column that has the first of some values in each row."""
    if values.null_count:
        return nulls(count, values.type)
    if pa.types.is_nested(values.type):
        return values.take(pa.array(np.zeros(count, np.int32)))
    return constant(values[0].as_py(), count, values.type)


@lru_cache(maxsize=64)
def _repeated(value: object, rows: int, kind: Any) -> Any:
    return pa.repeat(pa.scalar(value, kind), rows)


def nulls(count: int, kind: Any) -> Any:
    """A column in which nothing is known."""
    return _unknown(1 << max(count - 1, 0).bit_length(), kind).slice(0, count)


@lru_cache(maxsize=64)
def _unknown(rows: int, kind: Any) -> Any:
    return pa.nulls(rows, kind)


def known(numbers: Numbers, missing: Numbers) -> Any:
    """Numbers as a column, null where they are missing."""
    return pa.array(numbers, mask=missing if missing.any() else None)


# --- making bytes


class FixedBytes:
    """Byte strings of one width, one per row, in parts that lie behind each other: each part is a
    matrix of octets, of a row for each or of one row for all.

    Numpy puts them together for a fraction of what Arrow's join of binary takes for each part.
    """

    def __init__(self, parts: list[Any], count: int) -> None:
        self.parts = parts
        self.count = count
        self.width = sum(int(part.shape[1]) for part in parts)

    def __len__(self) -> int:
        return self.count

    def binary(self) -> Any:
        """The same as an Arrow array."""
        whole = np.empty((self.count, self.width), np.uint8)
        if self.count:
            whole[:] = np.concatenate([part[:1] for part in self.parts], axis=1)
        at = 0
        for part in self.parts:
            width = int(part.shape[1])
            if len(part) > 1:
                form = {"names": ["part"], "formats": [f"V{width}"], "offsets": [at]}
                rows = whole.view(np.dtype({**form, "itemsize": self.width}))
                rows["part"] = np.ascontiguousarray(part).view(f"V{width}")
            at += width
        offsets = np.arange(self.count + 1, dtype=np.int32) * np.int32(self.width)
        return pa.BinaryArray.from_buffers(
            pa.binary(), self.count, [None, pa.py_buffer(offsets), pa.py_buffer(whole)]
        )


def repeated_bytes(value: bytes, count: int) -> FixedBytes:
    return FixedBytes([np.frombuffer(value, np.uint8).reshape(1, -1)] if value else [], count)


def joined(pieces: list[Any]) -> Any:
    """The pieces of each row behind each other, arrays of binary or of one width; what is null is
    nothing. Of one width if all are."""
    merged: list[Any] = []
    for piece in pieces:
        if merged and isinstance(piece, FixedBytes) and isinstance(merged[-1], FixedBytes):
            merged[-1] = FixedBytes([*merged[-1].parts, *piece.parts], piece.count)
        else:
            merged.append(piece)
    if len(merged) == 1:
        first = merged[0]
        return first if isinstance(first, FixedBytes) else pc.fill_null(first, b"")
    return pc.binary_join_element_wise(
        *map(as_binary, merged),
        pa.scalar(b"", pa.binary()),
        null_handling="replace",
        null_replacement="",
    )


def as_binary(piece: Any) -> Any:
    """A piece as an Arrow array."""
    return piece.binary() if isinstance(piece, FixedBytes) else piece


def structures(records: Any) -> FixedBytes:
    """Rows of a numpy structure, or numbers, as their bytes."""
    count = len(records)
    return FixedBytes([records.view(np.uint8).reshape(count, records.dtype.itemsize)], count)


def wire_numbers(numbers: Numbers, form: str, mask: Any = None) -> Any:
    """Numbers in their wire form, like ">u4", as binary; null where the mask is true."""
    values = structures(np.ascontiguousarray(numbers.astype(form)))
    if mask is None or not mask.any():
        return values
    return pc.if_else(pa.array(mask), pa.scalar(None, pa.binary()), values.binary())


def lengths_of(binary: Any) -> Numbers:
    """How long each byte string is; 0 where it is null."""
    if isinstance(binary, FixedBytes):
        return np.full(binary.count, binary.width, np.int64)
    lengths = pc.fill_null(pc.binary_length(binary), 0)
    return lengths.to_numpy(zero_copy_only=False).astype(np.int64)
