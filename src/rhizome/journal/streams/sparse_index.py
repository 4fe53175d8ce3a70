"""The sparse index of a stream's segment: where to begin, by offset or by time. Compiled.

Entries are packed as they stand in the INDEX chunk of a complete segment, 20 bytes for each
``STRIDE_BYTES`` of log, so that a stream costs memory in proportion to its one active segment.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter, read_i64_be, write_i64_be
from mypy_extensions import i64

from rhizome.journal.records import put_u32, u32_at
from rhizome.journal.streams.stream_format import (
    CHUNK_HEADER_BYTES,
    INDEX_ENTRY_BYTES,
    INDEX_MAGIC,
    INDEX_TRAILER_BYTES,
)

STRIDE_BYTES: Final = 32 * 1024


@final
class SparseIndex:
    """Invariant: offsets and positions rise from entry to entry, times never fall."""

    _writer: BytesWriter
    _noted_to: i64
    _filter_first: i64
    _filter_at: i64

    def __init__(self) -> None:
        self._writer = BytesWriter()
        self._noted_to = 0
        self._filter_first = -1
        self._filter_at = 0

    def note_filter(self, offset: i64, position: i64) -> None:
        """A FILTER begins at ``position``, for a chunk with messages from an offset on."""
        self._filter_first = offset
        self._filter_at = position

    def begin_of(self, offset: i64, position: i64) -> i64:
        """Where to begin to read the chunk at ``position``: with its FILTER, if it has one."""
        return self._filter_at if self._filter_first == offset else position

    def note(self, offset: i64, time_ms: i64, position: i64) -> None:
        """A chunk with messages, or its FILTER, begins at ``position``."""
        if position < self._noted_to:
            return
        writer = self._writer
        write_i64_be(writer, offset)
        write_i64_be(writer, time_ms)
        put_u32(writer, position)
        self._noted_to = position + STRIDE_BYTES

    def entries(self) -> bytes:
        return self._writer.getvalue()


def index_payload(entries: bytes, last_ms: i64, position: i64) -> bytes:
    """The payload of the INDEX chunk that stands at ``position``."""
    writer = BytesWriter()
    writer.write(entries)
    write_i64_be(writer, last_ms)
    put_u32(writer, position)
    writer.write(INDEX_MAGIC)
    return writer.getvalue()


def index_position(trailer: bytes) -> i64:
    """Where the INDEX chunk is of a segment that ends with these bytes; 0 if it has none."""
    if len(trailer) < INDEX_TRAILER_BYTES or trailer[-4:] != INDEX_MAGIC:
        return 0
    return u32_at(trailer, len(trailer) - 8)


def index_entries(chunk: bytes) -> bytes:
    """The entries in an INDEX chunk."""
    return chunk[CHUNK_HEADER_BYTES : len(chunk) - INDEX_TRAILER_BYTES]


def position_for_offset(entries: bytes, offset: i64, start: i64) -> i64:
    """The position of the last noted chunk that begins at or below an offset; ``start`` if none."""
    low: i64 = 0
    high: i64 = len(entries) // INDEX_ENTRY_BYTES
    while low < high:
        middle = (low + high) // 2
        if read_i64_be(entries, middle * INDEX_ENTRY_BYTES) <= offset:
            low = middle + 1
        else:
            high = middle
    return start if low == 0 else u32_at(entries, (low - 1) * INDEX_ENTRY_BYTES + 16)


def position_for_time(entries: bytes, time_ms: i64, start: i64) -> i64:
    """The position of the last noted chunk that is older than a time; ``start`` if none."""
    low: i64 = 0
    high: i64 = len(entries) // INDEX_ENTRY_BYTES
    while low < high:
        middle = (low + high) // 2
        if read_i64_be(entries, middle * INDEX_ENTRY_BYTES + 8) < time_ms:
            low = middle + 1
        else:
            high = middle
    return start if low == 0 else u32_at(entries, (low - 1) * INDEX_ENTRY_BYTES + 16)
