"""The segments of a stream as its log knows them, and reading from them. Compiled."""

from __future__ import annotations

from typing import final

from mypy_extensions import i64, mypyc_attr

from rhizome.journal.errors import CorruptRecord
from rhizome.journal.streams.sparse_index import index_entries, index_position
from rhizome.journal.streams.stream_format import (
    INDEX_TRAILER_BYTES,
    KIND_INDEX,
    ChunkHead,
    check_chunk,
)


@mypyc_attr(allow_interpreted_subclasses=True)
class StreamFilesReader:
    """Reads the segments of streams."""

    def read(self, stream: i64, segment: i64, position: i64, length: i64) -> bytes:
        """Up to ``length`` bytes; fewer at the end, none if there is no such segment."""
        raise NotImplementedError

    def size(self, stream: i64, segment: i64) -> i64:
        """Size of a complete segment."""
        raise NotImplementedError


@final
class StreamSegment:
    """Invariant: it holds the offsets from ``first`` to ``next - 1``; ``last_ms`` is the time of
    its last chunk, ``chunk`` the number of its first."""

    number: i64
    first: i64
    next: i64
    first_ms: i64
    last_ms: i64
    size: i64
    chunk: i64

    def __init__(
        self,
        number: i64,
        first: i64,
        after: i64,
        first_ms: i64,
        last_ms: i64,
        size: i64,
        chunk: i64,
    ) -> None:
        self.number = number
        self.first = first
        self.next = after
        self.first_ms = first_ms
        self.last_ms = last_ms
        self.size = size
        self.chunk = chunk


def read_index(files: StreamFilesReader, stream: i64, segment: i64, size: i64) -> bytes:
    """The entries at the end of a complete segment; none if they are damaged, which only makes
    lookups slower."""
    chunk = read_index_chunk(files, stream, segment, size)
    return b"" if chunk is None else index_entries(chunk)


def read_index_chunk(
    files: StreamFilesReader, stream: i64, segment: i64, size: i64
) -> bytes | None:
    """The INDEX chunk that ends a segment; None if there is none that can be trusted."""
    trailer = files.read(stream, segment, size - INDEX_TRAILER_BYTES, INDEX_TRAILER_BYTES)
    position = index_position(trailer)
    if not 0 < position < size:
        return None
    chunk = files.read(stream, segment, position, size - position)
    try:
        head = ChunkHead(chunk, 0)
        if head.size != len(chunk) or head.kind != KIND_INDEX:
            return None
        check_chunk(chunk, 0, head.size)
    except CorruptRecord:
        return None
    return chunk
