"""ChunkCursor: goes through a stream's log chunk by chunk, for a copy that lacks them. Compiled."""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from rhizome.journal.errors import CorruptRecord
from rhizome.journal.streams.sparse_index import position_for_offset
from rhizome.journal.streams.stream_format import CHUNK_HEADER_BYTES, STREAM_HEADER_BYTES, ChunkHead
from rhizome.journal.streams.stream_log import StreamLog
from rhizome.journal.streams.stream_segment import StreamSegment


@final
class ChunkCursor:
    """Invariant: ``number`` is that of the next chunk. It begins at ``position`` of ``segment``, or
    is the first of the one after it."""

    log: StreamLog
    number: i64
    segment: i64
    position: i64

    def __init__(self, log: StreamLog, number: i64, offset: i64) -> None:
        """Begin with the chunk ``number``, which has this offset or is just before it; raises
        CorruptRecord if it can't be found."""
        self.log = log
        self.number = number
        segment = self._segment_of(number)
        self.segment = segment.number
        self.position = STREAM_HEADER_BYTES
        if offset - 1 >= segment.first:
            entries = log.entries_of(segment)
            self.position = position_for_offset(entries, offset - 1, STREAM_HEADER_BYTES)
        self._go_to(number)

    def _segment_of(self, number: i64) -> StreamSegment:
        """The last segment that begins at or before a chunk."""
        log = self.log
        low: i64 = 0
        high: i64 = len(log.segments)
        while low < high:
            middle = (low + high) // 2
            if log.segments[middle].chunk <= number:
                low = middle + 1
            else:
                high = middle
        if low == 0:
            raise CorruptRecord(f"no chunk {number}", 0)
        return log.segments[low - 1]

    def _go_to(self, number: i64) -> None:
        """Skip the chunks before one."""
        log = self.log
        while True:
            if self.position >= self._end():
                if self.segment >= log.durable_segment:
                    # It isn't on disk yet, or does not exist.
                    return
                self._next_segment()
                continue
            data = log.files.read(log.id, self.segment, self.position, CHUNK_HEADER_BYTES)
            head = ChunkHead(data, 0)
            if head.number == number:
                return
            if head.number > number:
                raise CorruptRecord(f"chunk {head.number}, not {number},", self.position)
            self.position += head.size

    def collect(self, bytes_max: i64, before: i64, parts: list[bytes]) -> i64:
        """Add chunks from ``number`` up to one that is left out, as far as they are on disk: as
        many as fit and at least one. Returns the number of the last. Raises CorruptRecord."""
        while self.number < before:
            if self.position < self._end():
                self._collect(bytes_max, before, parts)
                break
            if self.segment >= self.log.durable_segment:
                break
            self._next_segment()
        return self.number - 1

    def _collect(self, bytes_max: i64, before: i64, parts: list[bytes]) -> None:
        data = self._read(bytes_max)
        head = ChunkHead(data, 0)
        if head.size > len(data):
            data = self._read(head.size)
        at: i64 = 0
        while self.number < before and at + CHUNK_HEADER_BYTES <= len(data):
            head = ChunkHead(data, at)
            if at + head.size > len(data):
                break
            if head.number != self.number:
                raise CorruptRecord(f"chunk {head.number}, not {self.number},", self.position + at)
            at += head.size
            self.number += 1
        if at == 0:
            raise CorruptRecord("a chunk that is not whole", self.position)
        self.position += at
        parts.append(data[:at])

    def _read(self, length: i64) -> bytes:
        log = self.log
        length = min(max(length, CHUNK_HEADER_BYTES), self._end() - self.position)
        return log.files.read(log.id, self.segment, self.position, length)

    def _end(self) -> i64:
        """The end of what is on disk of the segment."""
        log = self.log
        if self.segment == log.durable_segment:
            return log.durable_position
        for segment in log.segments:
            if segment.number == self.segment:
                return segment.size
        raise CorruptRecord(f"segment {self.segment} is gone", self.position)

    def _next_segment(self) -> None:
        self.segment += 1
        self.position = STREAM_HEADER_BYTES
