"""StreamLookup: finds offsets and times in the segments of a stream's log. Compiled."""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from rhizome.journal.streams.sparse_index import SparseIndex, position_for_offset, position_for_time
from rhizome.journal.streams.stream_format import (
    CHUNK_HEADER_BYTES,
    KIND_MESSAGES,
    STREAM_HEADER_BYTES,
    ChunkHead,
)
from rhizome.journal.streams.stream_segment import StreamFilesReader, StreamSegment, read_index
from rhizome.journal.streams.tracking_state import StreamTracking

INDEXES_KEPT_MAX: Final = 8
NO_OFFSET: Final = -1


@final
class ChunkPosition:
    """The beginning of a chunk."""

    segment: i64
    position: i64

    def __init__(self, segment: i64, position: i64) -> None:
        self.segment = segment
        self.position = position


class StreamLookup(StreamTracking):
    """Invariant: the log holds the offsets from ``first`` to ``next - 1``. Those below
    ``committed`` are safe and visible, and lie in the file before (``committed_segment``,
    ``committed_position``). The last of ``segments`` is ``active``, unless that has nothing yet,
    and ``index`` is its sparse index."""

    id: i64
    files: StreamFilesReader
    first: i64
    next: i64
    committed: i64
    committed_segment: i64
    committed_position: i64
    segments: list[StreamSegment]
    active: StreamSegment
    index: SparseIndex
    indexes: dict[int, bytes]

    def __init__(self, stream: i64, files: StreamFilesReader) -> None:
        super().__init__()
        self.id = stream
        self.files = files
        self.first = 0
        self.next = 0
        self.committed = 0
        self.committed_segment = 0
        self.committed_position = 0
        self.segments = []
        self.active = StreamSegment(0, 0, 0, 0, 0, 0, 0)
        self.index = SparseIndex()
        self.indexes = {}

    def find(self, offset: i64) -> ChunkPosition:
        """The chunk that has an offset between ``first`` and ``committed``, or one that comes
        before it in its segment."""
        segment = self.segment_of(offset)
        if segment is None:
            return ChunkPosition(self.committed_segment, self.committed_position)
        entries = self.entries_of(segment)
        return ChunkPosition(
            segment.number, position_for_offset(entries, offset, STREAM_HEADER_BYTES)
        )

    def offset_at(self, time_ms: i64) -> i64:
        """The offset of the first visible message that is not older than a time; ``committed`` if
        there is none."""
        for segment in self.segments:
            if segment.next == segment.first or segment.last_ms < time_ms:
                continue
            entries = self.entries_of(segment)
            position = position_for_time(entries, time_ms, STREAM_HEADER_BYTES)
            offset = self._walk_to_time(segment, position, time_ms)
            if offset != NO_OFFSET:
                return offset if offset < self.committed else self.committed
        return self.committed

    def _walk_to_time(self, segment: StreamSegment, position: i64, time_ms: i64) -> i64:
        while position < segment.size:
            if segment.number == self.committed_segment and position >= self.committed_position:
                return self.committed
            data = self.files.read(self.id, segment.number, position, CHUNK_HEADER_BYTES)
            if len(data) < CHUNK_HEADER_BYTES:
                break
            head = ChunkHead(data, 0)
            if head.kind == KIND_MESSAGES and head.time_ms >= time_ms:
                return head.first
            position += head.size
        return NO_OFFSET

    def end_of(self, number: i64) -> i64:
        """The end of the visible part of a segment; 0 if there is no such segment."""
        if number == self.committed_segment:
            return self.committed_position
        if number < self.committed_segment:
            for segment in self.segments:
                if segment.number == number:
                    return segment.size
        return 0

    def segment_after(self, number: i64) -> i64:
        """The segment that comes after one; 0 if there is none."""
        for segment in self.segments:
            if segment.number > number:
                return segment.number
        return 0

    def segment_of(self, offset: i64) -> StreamSegment | None:
        low: i64 = 0
        high: i64 = len(self.segments)
        while low < high:
            middle = (low + high) // 2
            if self.segments[middle].next <= offset:
                low = middle + 1
            else:
                high = middle
        return self.segments[low] if low < len(self.segments) else None

    def entries_of(self, segment: StreamSegment) -> bytes:
        """The sparse index of a segment."""
        if segment is self.active:
            return self.index.entries()
        number = int(segment.number)
        entries = self.indexes.get(number)
        if entries is None:
            entries = read_index(self.files, self.id, segment.number, segment.size)
            if len(self.indexes) >= INDEXES_KEPT_MAX:
                self.indexes.pop(next(iter(self.indexes)))
            self.indexes[number] = entries
        return entries
