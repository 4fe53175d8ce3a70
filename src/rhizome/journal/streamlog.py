"""StreamLog: the log of one stream, its append side and what is known of its segments. Compiled.

Messages are appended to a chunk in memory and have their offset at once. Once per wake-up ``take``
hands what was appended to whoever writes it (streamstore.py), which answers later how far it is
safe; only that much is shown to readers.

Segments. A segment is complete with the chunk that reaches its size; then the next one is begun at
once, with a SNAPSHOT of what the chunks so far amount to, so that the oldest ones can be dropped
whole without losing a note. A complete one ends with an INDEX. A segment is synced before a byte of
the next one is written, so only the last can be torn (streamrecovery.py).

Retention drops whole segments, the oldest first, and never the last one that has messages.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter, write_i64_be
from mypy_extensions import i64

from rhizome.journal.journal import Chunk
from rhizome.journal.records import put_u16, put_u32
from rhizome.journal.seen import Identity, Seen
from rhizome.journal.streamformat import (
    CHUNK_HEADER_BYTES,
    FLAG_IDENTITY,
    FLAG_ORIGIN,
    KIND_INDEX,
    KIND_MESSAGES,
    KIND_SNAPSHOT,
    KIND_TRACKING,
    NOTE_OFFSET,
    NOTE_ORIGIN,
    NOTE_START,
    ORIGIN_BYTES,
    STREAM_HEADER_BYTES,
    ChunkHead,
    chunk_bytes,
    put_note,
    put_seen,
    segment_header,
)
from rhizome.journal.streamindex import (
    SparseIndex,
    index_payload,
    position_for_offset,
    position_for_time,
)
from rhizome.journal.streamsegment import StreamFilesReader, StreamSegment, read_index

STREAM_SEGMENT_BYTES_DEFAULT: Final = 64 * 1024 * 1024
STREAM_SEGMENT_BYTES_MIN: Final = 4096
STREAM_SEGMENT_BYTES_MAX: Final = 3_000_000_000
"""As in RabbitMQ; positions in a segment are 32-bit numbers."""
STREAM_CHUNK_BYTES_MAX: Final = 128 * 1024
"""A chunk is closed when it is as large as this: a reader checks it as a whole."""
NAMES_MAX: Final = 4096
"""So many consumers have their offset remembered by one stream."""
INDEXES_KEPT_MAX: Final = 8

NO_OFFSET: Final = -1


@final
class Place:
    """The beginning of a chunk."""

    segment: i64
    position: i64

    def __init__(self, segment: i64, position: i64) -> None:
        self.segment = segment
        self.position = position


@final
class _Mark:
    """Where the log ended when a batch was handed over."""

    token: i64
    next: i64
    segment: i64
    position: i64

    def __init__(self, token: i64, after: i64, segment: i64, position: i64) -> None:
        self.token = token
        self.next = after
        self.segment = segment
        self.position = position


@final
class StreamLog:
    """Invariant: it holds the offsets from ``first`` to ``next - 1``; of these, those below
    ``committed`` are safe and may be shown, and the file has them before
    (``committed_segment``, ``committed_position``). The last of ``segments`` is being written.
    ``touched`` belongs to whoever appends: it is cleared by ``take``.
    """

    id: i64
    files: StreamFilesReader
    epoch: i64
    first: i64
    next: i64
    number: i64
    time_ms: i64
    committed: i64
    committed_segment: i64
    committed_position: i64
    segment_bytes_max: i64
    touched: bool
    whole: bool
    segments: list[StreamSegment]
    active: StreamSegment
    offsets: dict[bytes, int]
    origins: dict[int, int]
    seen: Seen
    starts: list[tuple[int, int]]
    size: i64
    _index: SparseIndex
    _indexes: dict[int, bytes]
    _body: BytesWriter
    _body_first: i64
    _body_ms: i64
    _frame_max: i64
    _noted: dict[bytes, int]
    _forgotten: list[int]
    _chunk: Chunk
    _full: list[Chunk]
    _marks: list[_Mark]
    _marked: i64

    def __init__(self, stream: i64, files: StreamFilesReader) -> None:
        """An empty stream; recovery fills it in."""
        self.id = stream
        self.files = files
        self.epoch = 0
        self.first = 0
        self.next = 0
        self.number = 1
        self.time_ms = 0
        self.committed = 0
        self.committed_segment = 0
        self.committed_position = 0
        self.segment_bytes_max = STREAM_SEGMENT_BYTES_DEFAULT
        self.touched = False
        self.whole = False
        self.segments = []
        self.active = StreamSegment(0, 0, 0, 0, 0, 0)
        self.offsets = {}
        self.origins = {}
        self.seen = Seen()
        self.starts = []
        self.size = 0
        self._index = SparseIndex()
        self._indexes = {}
        self._body = BytesWriter()
        self._body_first = 0
        self._body_ms = 0
        self._frame_max = 0
        self._noted = {}
        self._forgotten = []
        self._chunk = Chunk(0, 0)
        self._full = []
        self._marks = []
        self._marked = 0

    # --- appending ----------------------------------------------------------------------------

    def append(
        self,
        tail: bytes,
        content: bytes,
        flags: i64,
        frame_bytes_max: i64,
        now_ms: i64,
        origin: i64 = 0,
        number: i64 = 0,
        identity: Identity | None = None,
    ) -> i64:
        """Append a message; returns its offset. ``content`` must name that already.

        ``origin`` and ``number``: what an edge sent it under (A1); ``identity``: by what it is
        known if it is published again (L5).
        """
        body = self._body
        if now_ms != self._body_ms and len(body) > 0 and not self.whole:
            self._seal()
        offset = self.next
        if self.active.size == 0:
            # Its snapshot must not say of a message that it is there before it is.
            self._begin_segment(offset)
        self.next = offset + 1
        size: i64 = 4 + len(tail) + len(content)
        if origin != 0:
            size += ORIGIN_BYTES
            flags |= FLAG_ORIGIN
            self.origins[origin] = number
        known = b""
        if identity is not None:
            known = identity.packed()
            size += 2 + len(known)
            flags |= FLAG_IDENTITY
            self.seen.take(offset + 1, True, identity, now_ms)
        if len(body) == 0:
            self._body_first = offset
            self._body_ms = now_ms
        put_u32(body, size)
        put_u32(body, len(tail) << 16 | flags << 8)
        if origin != 0:
            write_i64_be(body, origin)
            write_i64_be(body, number)
        if identity is not None:
            put_u16(body, len(known))
            body.write(known)
        body.write(tail)
        body.write(content)
        if frame_bytes_max > self._frame_max:
            self._frame_max = frame_bytes_max
        if len(body) >= STREAM_CHUNK_BYTES_MAX and not self.whole:
            self._seal()
        return offset

    def begin_whole(self) -> None:
        """What is appended until ``end_whole`` is one chunk: it is kept whole or not at all."""
        self.whole = True

    def end_whole(self) -> None:
        self.whole = False
        if len(self._body) >= STREAM_CHUNK_BYTES_MAX:
            self._seal()

    def note_offset(self, name: bytes, offset: i64) -> None:
        """A consumer of this name has done with everything up to an offset; -1 forgets it."""
        if offset == NO_OFFSET:
            self.offsets.pop(name, 0)
        else:
            if name not in self.offsets and len(self.offsets) >= NAMES_MAX:
                oldest = next(iter(self.offsets))
                self.offsets.pop(oldest)
                self._noted[oldest] = NO_OFFSET
            self.offsets[name] = offset
        self._noted[name] = offset

    def forget_origin(self, origin: i64) -> None:
        """No more numbers of an edge are expected."""
        if self.origins.pop(origin, 0) != 0:
            self._forgotten.append(origin)

    def begin_epoch(self, epoch: i64) -> None:
        """What is appended from here on belongs to this epoch."""
        assert epoch > self.epoch
        self.seal()
        self.epoch = epoch
        self.starts.append((int(epoch), int(self.next)))

    # --- handing over -------------------------------------------------------------------------

    def pending(self) -> bool:
        """Whether something was appended or noted since the last ``take``."""
        return (
            len(self._body) > 0
            or len(self._noted) > 0
            or len(self._forgotten) > 0
            or self._chunk.size > 0
            or len(self._full) > 0
        )

    def take(self) -> list[Chunk]:
        """What was appended since the last call, to be written in this order."""
        self.touched = False
        self.seal()
        batch = self._full
        self._full = []
        if self._chunk.size > 0:
            batch.append(self._chunk)
            self._chunk = self._new_chunk()
        return batch

    def handed_over(self, token: i64) -> None:
        """What ``take`` answered was given to the writer under this token."""
        if self.next > self._marked or self.active.number != self.committed_segment:
            self._marked = self.next
            self._marks.append(_Mark(token, self.next, self.active.number, self.active.size))

    def synced(self, token: i64) -> bool:
        """All batches up to this token are safe; whether more may be shown than before."""
        done: i64 = 0
        while done < len(self._marks) and self._marks[done].token <= token:
            done += 1
        if done == 0:
            return False
        mark = self._marks[done - 1]
        del self._marks[:done]
        grown = mark.next > self.committed
        self.committed = mark.next
        self.committed_segment = mark.segment
        self.committed_position = mark.position
        return grown

    def seal(self) -> None:
        """Close the chunk that is being made, and write down what was noted."""
        if len(self._body) > 0:
            self._seal()
        if len(self._noted) > 0 or len(self._forgotten) > 0:
            writer = BytesWriter()
            for name, offset in self._noted.items():
                put_note(writer, NOTE_OFFSET, name, offset)
            for origin in self._forgotten:
                put_note(writer, NOTE_ORIGIN, b"%x" % origin, 0)
            self._noted = {}
            self._forgotten = []
            self._put_chunk(KIND_TRACKING, 0, self.next, 0, writer.getvalue())

    def _seal(self) -> None:
        payload = self._body.getvalue()
        self._body.truncate(0)
        first = self._body_first
        frame_max = self._frame_max
        self._frame_max = 0
        if self._body_ms > self.time_ms:
            self.time_ms = self._body_ms
        self._put_chunk(KIND_MESSAGES, self.next - first, first, frame_max, payload)

    # --- segments -----------------------------------------------------------------------------

    def adopt(self, segments: list[StreamSegment], index: SparseIndex) -> None:
        """Take over what recovery found; ``index`` is that of the last segment."""
        self.segments = segments
        self.active = segments[-1]
        self._index = index
        self.size = 0
        for segment in segments:
            self.size += segment.size
        self.first = segments[0].first
        self.next = self.active.next
        self._marked = self.next
        self.committed = self.next
        self.committed_segment = self.active.number
        self.committed_position = self.active.size
        self._chunk = self._new_chunk()

    def close_active(self) -> None:
        """Begin a new segment with the next chunk: the last one is complete."""
        self.active = StreamSegment(self.active.number + 1, self.next, self.next, 0, 0, 0)
        self._index = SparseIndex()
        self._chunk = self._new_chunk()

    def _put_chunk(self, kind: i64, count: i64, first: i64, frame_max: i64, payload: bytes) -> None:
        if self.active.size == 0:
            self._begin_segment(first)
        active = self.active
        if kind == KIND_MESSAGES:
            self._index.note(first, self.time_ms, active.size)
            if active.next == active.first:
                active.first_ms = self.time_ms
            active.next = first + count
            active.last_ms = self.time_ms
        self._write(
            chunk_bytes(
                kind,
                self.epoch,
                count,
                first,
                self.number,
                self.time_ms,
                self.committed,
                frame_max,
                payload,
            )
        )
        self.number += 1
        if active.size >= self.segment_bytes_max:
            self._roll()

    def _roll(self) -> None:
        """Complete the active segment and begin the next."""
        first = self.next
        position = self.active.size
        entries = self._index.entries()
        payload = index_payload(entries, self.active.last_ms, position)
        self._write(
            chunk_bytes(
                KIND_INDEX,
                self.epoch,
                0,
                first,
                self.number,
                self.time_ms,
                self.committed,
                0,
                payload,
            )
        )
        self.number += 1
        self._chunk.closes = True
        self._full.append(self._chunk)
        self.close_active()
        self._begin_segment(first)

    def _begin_segment(self, first: i64) -> None:
        if self.active.number == 0:
            self.active = StreamSegment(1, first, first, 0, 0, 0)
            self._chunk = self._new_chunk()
        active = self.active
        active.first = first
        active.next = first
        self.segments.append(active)
        self._write(segment_header(active.number, self.id, first))
        writer = BytesWriter()
        self._put_snapshot(writer)
        self._write(
            chunk_bytes(
                KIND_SNAPSHOT,
                self.epoch,
                0,
                first,
                self.number,
                self.time_ms,
                self.committed,
                0,
                writer.getvalue(),
            )
        )
        self.number += 1

    def _put_snapshot(self, writer: BytesWriter) -> None:
        for name, offset in self.offsets.items():
            put_note(writer, NOTE_OFFSET, name, offset)
        for origin, number in self.origins.items():
            put_note(writer, NOTE_ORIGIN, b"%x" % origin, number)
        for epoch, start in self.starts:
            put_note(writer, NOTE_START, b"%d" % epoch, start)
        if not self.seen.is_empty():
            put_seen(writer, self.seen.packed())

    def _write(self, data: bytes) -> None:
        self._chunk.pieces.append(data)
        self._chunk.size += len(data)
        self.active.size += len(data)
        self.size += len(data)

    def _new_chunk(self) -> Chunk:
        return Chunk(self.id << 32 | self.active.number, self.active.size)

    # --- retention ----------------------------------------------------------------------------

    def retire(self, now_ms: i64, bytes_max: i64, age_max_ms: i64) -> list[int]:
        """Forget the oldest segments beyond these limits (-1: none); returns their numbers."""
        dead: list[int] = []
        while len(self.segments) > 1:
            oldest = self.segments[0]
            if oldest.next > self.committed or oldest.next == self.next:
                break
            too_large = bytes_max >= 0 and self.size > bytes_max
            too_old = age_max_ms >= 0 and now_ms - oldest.last_ms > age_max_ms
            if not too_large and not too_old:
                break
            self.segments.pop(0)
            self.size -= oldest.size
            self.first = oldest.next
            self._indexes.pop(int(oldest.number), b"")
            dead.append(int(oldest.number))
        if len(dead) > 0:
            while len(self.starts) > 1 and self.starts[1][1] <= self.first:
                self.starts.pop(0)
        return dead

    # --- finding ------------------------------------------------------------------------------

    def find(self, offset: i64) -> Place:
        """The chunk that has an offset between ``first`` and ``committed``, or one that comes
        before it in its segment."""
        segment = self._segment_of(offset)
        if segment is None:
            return Place(self.committed_segment, self.committed_position)
        entries = self._entries(segment)
        return Place(segment.number, position_for_offset(entries, offset, STREAM_HEADER_BYTES))

    def offset_at(self, time_ms: i64) -> i64:
        """The offset of the first message that is shown and not older than a time; ``committed``
        if there is none."""
        for segment in self.segments:
            if segment.next == segment.first or segment.last_ms < time_ms:
                continue
            entries = self._entries(segment)
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
        """Where that ends which may be shown of a segment; 0 if there is no such segment."""
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

    def _segment_of(self, offset: i64) -> StreamSegment | None:
        low: i64 = 0
        high: i64 = len(self.segments)
        while low < high:
            middle = (low + high) // 2
            if self.segments[middle].next <= offset:
                low = middle + 1
            else:
                high = middle
        return self.segments[low] if low < len(self.segments) else None

    def _entries(self, segment: StreamSegment) -> bytes:
        """The sparse index of a segment."""
        if segment is self.active:
            return self._index.entries()
        number = int(segment.number)
        entries = self._indexes.get(number)
        if entries is None:
            entries = read_index(self.files, self.id, segment.number, segment.size)
            if len(self._indexes) >= INDEXES_KEPT_MAX:
                self._indexes.pop(next(iter(self._indexes)))
            self._indexes[number] = entries
        return entries
