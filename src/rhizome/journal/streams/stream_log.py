"""StreamLog: the log of one stream, its append side and its segments. Compiled.

Messages are appended to a chunk in memory and have their offset at once. Once per wake-up ``take``
hands what was appended to the writer (stream_store.py), which reports later how far it is safe;
readers see only that much.

Segments. A segment is complete with the chunk that reaches its size. Then the next one is begun at
once, with a SNAPSHOT of the tracking so far, so that the oldest segments can be dropped whole
without losing a tracking entry. A complete segment ends with an INDEX. A segment is synced before a
byte of the next one is written, so only the last can be torn (stream_recovery.py).

Retention drops whole segments, the oldest first, and never the last one that has messages.

Copies. The log of a stream on other brokers consists of the same chunks, byte by byte, in segments
of the same numbers. While it is ``shipping`` a log keeps the chunks that it makes for replication,
and a copy appends them with ``follow``. Chunks are numbered without a gap, so the number of a chunk
says how far a copy is.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter, write_i64_be
from mypy_extensions import i64

from rhizome.journal.dedup_state import DedupIdentity
from rhizome.journal.errors import CorruptRecord
from rhizome.journal.journal import SegmentWrite
from rhizome.journal.records import put_u16, put_u32
from rhizome.journal.streams.bloom_filter import BloomBuilder
from rhizome.journal.streams.sparse_index import SparseIndex, index_payload
from rhizome.journal.streams.stream_format import (
    FLAG_IDENTITY,
    FLAG_ORIGIN,
    KIND_FILTER,
    KIND_INDEX,
    KIND_MESSAGES,
    KIND_SNAPSHOT,
    KIND_TRACKING,
    NOTE_FIRST,
    NOTE_OFFSET,
    NOTE_ORIGIN,
    NOTE_USED,
    ORIGIN_BYTES,
    ChunkHead,
    check_chunk,
    chunk_bytes,
    put_note,
    segment_header,
)
from rhizome.journal.streams.stream_lookup import NO_OFFSET, StreamLookup
from rhizome.journal.streams.stream_segment import StreamFilesReader, StreamSegment

STREAM_SEGMENT_BYTES_DEFAULT: Final = 64 * 1024 * 1024
STREAM_SEGMENT_BYTES_MIN: Final = 4096
STREAM_SEGMENT_BYTES_MAX: Final = 3_000_000_000
"""As in RabbitMQ; positions in a segment are 32-bit numbers."""
STREAM_CHUNK_BYTES_MAX: Final = 128 * 1024
"""A chunk is closed when it reaches this size, because a reader checks a chunk as a whole."""
NAMES_MAX: Final = 4096
"""How many consumers' offsets one stream remembers."""


@final
class _Mark:
    """Where the log ended when a batch was handed over; ``number`` is that of its last chunk."""

    token: i64
    number: i64
    next: i64
    segment: i64
    position: i64

    def __init__(self, token: i64, number: i64, after: i64, segment: i64, position: i64) -> None:
        self.token = token
        self.number = number
        self.next = after
        self.segment = segment
        self.position = position


@final
class StreamLog(StreamLookup):
    """Invariant: the log holds the offsets from ``first`` to ``next - 1``. Those below
    ``committed`` are safe and visible, and lie in the file before (``committed_segment``,
    ``committed_position``). The last of ``segments`` is being written. ``number`` is that of the
    next chunk; chunks up to ``durable`` are on this broker's disk, before (``durable_segment``,
    ``durable_position``). If the log is ``alone``, being durable is being committed; otherwise the
    code that tracks its copies says what is committed.

    ``touched`` belongs to the appender: ``take`` clears it. ``torn_bytes``: how much recovery has
    cut off.
    """

    number: i64
    alone: bool
    shipping: bool
    durable: i64
    durable_segment: i64
    durable_position: i64
    time_ms: i64
    segment_bytes_max: i64
    touched: bool
    whole: bool
    size: i64
    torn_bytes: i64
    _body: BytesWriter
    _body_first: i64
    _body_ms: i64
    _frame_max: i64
    _noted: dict[bytes, int]
    _forgotten: list[int]
    _chunk: SegmentWrite
    _full: list[SegmentWrite]
    _marks: list[_Mark]
    _durable_marks: list[_Mark]
    _marked: i64
    _retired: bool
    _shipped: list[bytes]
    bloom: BloomBuilder

    def __init__(self, stream: i64, files: StreamFilesReader) -> None:
        """An empty stream; recovery fills it in."""
        super().__init__(stream, files)
        self.number = 1
        self.alone = True
        self.shipping = False
        self.durable = 0
        self.durable_segment = 0
        self.durable_position = 0
        self.time_ms = 0
        self.segment_bytes_max = STREAM_SEGMENT_BYTES_DEFAULT
        self.touched = False
        self.whole = False
        self.size = 0
        self.torn_bytes = 0
        self._body = BytesWriter()
        self._body_first = 0
        self._body_ms = 0
        self._frame_max = 0
        self._noted = {}
        self._forgotten = []
        self._chunk = SegmentWrite(0, 0)
        self._full = []
        self._marks = []
        self._durable_marks = []
        self._marked = 0
        self._retired = False
        self._shipped = []
        self.bloom = BloomBuilder()

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
        identity: DedupIdentity | None = None,
        filter_value: bytes = b"",
    ) -> i64:
        """Append a message; returns its offset. ``content`` must contain that already.

        ``origin`` and ``number``: the edge that sent it, and its number there (A1); ``identity``:
        recognises it if it is published again (L5); ``filter_value``: what consumers may ask for it
        by.
        """
        body = self._body
        if now_ms != self._body_ms and len(body) > 0 and not self.whole:
            self._seal()
        offset = self.next
        if self.active.size == 0:
            # The snapshot must not name a message before the message is there.
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
        if len(filter_value) > 0:
            self.bloom.add(filter_value)
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
        """Begin a chunk that is kept whole or not at all: it has what is appended until
        ``end_whole``."""
        self.whole = True

    def end_whole(self) -> None:
        self.whole = False
        if len(self._body) >= STREAM_CHUNK_BYTES_MAX:
            self._seal()

    def note_offset(self, name: bytes, offset: i64, now_ms: i64 = 0) -> None:
        """A consumer of this name has acknowledged everything up to an offset; -1 forgets it.
        Beyond ``NAMES_MAX`` the name that has not moved for longest is forgotten."""
        if offset == NO_OFFSET:
            self.offsets.pop(name, 0)
            self.used.pop(name, 0)
        else:
            if name not in self.offsets and len(self.offsets) >= NAMES_MAX:
                self.note_offset(next(iter(self.offsets)), NO_OFFSET)
            self.offsets.pop(name, 0)
            self.offsets[name] = offset
            if now_ms > 0:
                self.used[name] = now_ms
        self._noted[name] = offset

    def forget_origin(self, origin: i64) -> None:
        """No more numbers of an edge are expected."""
        if self.origins.pop(origin, 0) != 0:
            self._forgotten.append(origin)

    def begin_epoch(self, epoch: i64) -> None:
        """What is appended from here on belongs to this epoch."""
        assert epoch > self.epoch
        self.seal()
        self.enter_epoch(epoch, self.next, self.number)

    def mark_epoch(self) -> None:
        """Add a chunk that says that the epoch has begun, whatever comes after (L2)."""
        self._put_chunk(KIND_TRACKING, 0, self.next, 0, b"")

    # --- handing over -------------------------------------------------------------------------

    def pending(self) -> bool:
        """Whether something was appended or tracked since the last ``take``."""
        return (
            len(self._body) > 0
            or len(self._noted) > 0
            or len(self._forgotten) > 0
            or self._retired
            or self._chunk.size > 0
            or len(self._full) > 0
        )

    def take(self) -> list[SegmentWrite]:
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
        """What ``take`` returned was given to the writer under this token."""
        last = self.number - 1
        if last > self._marked:
            self._marked = last
            active = self.active
            self._marks.append(_Mark(token, last, self.next, active.number, active.size))

    def is_written(self) -> bool:
        """Whether nothing waits to be written."""
        return len(self._marks) == 0 and not self.pending()

    def synced(self, token: i64) -> bool:
        """All batches up to this token are safe here; return whether more is visible than
        before."""
        done: i64 = 0
        while done < len(self._marks) and self._marks[done].token <= token:
            done += 1
        if done == 0:
            return False
        mark = self._marks[done - 1]
        self.durable = mark.number
        self.durable_segment = mark.segment
        self.durable_position = mark.position
        self._durable_marks.extend(self._marks[:done])
        del self._marks[:done]
        return self.commit(self.durable) if self.alone else False

    def commit(self, number: i64) -> bool:
        """All copies that count have the chunks up to this one; return whether more is visible than
        before."""
        done: i64 = 0
        marks = self._durable_marks
        while done < len(marks) and marks[done].number <= number:
            done += 1
        if done == 0:
            return False
        mark = marks[done - 1]
        del marks[:done]
        grown = mark.next > self.committed
        self.committed = mark.next
        self.committed_segment = mark.segment
        self.committed_position = mark.position
        return grown

    def seal(self) -> None:
        """Close the chunk that is being made, and write the tracking entries."""
        if len(self._body) > 0:
            self._seal()
        if len(self._noted) > 0 or len(self._forgotten) > 0 or self._retired:
            writer = BytesWriter()
            if self._retired:
                put_note(writer, NOTE_FIRST, b"", self.segments[0].number)
            for name, offset in self._noted.items():
                put_note(writer, NOTE_OFFSET, name, offset)
                if name in self.used:
                    put_note(writer, NOTE_USED, name, self.used[name])
            for origin in self._forgotten:
                put_note(writer, NOTE_ORIGIN, b"%x" % origin, 0)
            self._noted = {}
            self._forgotten = []
            self._retired = False
            self._put_chunk(KIND_TRACKING, 0, self.next, 0, writer.getvalue())

    def _seal(self) -> None:
        payload = self._body.getvalue()
        self._body.truncate(0)
        first = self._body_first
        frame_max = self._frame_max
        self._frame_max = 0
        if self._body_ms > self.time_ms:
            self.time_ms = self._body_ms
        if self.bloom.count > 0:
            self._put_filter(self.next - first, first)
        self._put_chunk(KIND_MESSAGES, self.next - first, first, frame_max, payload)

    def _put_filter(self, count: i64, first: i64) -> None:
        """Put the filter of a chunk of ``count`` messages before it, into the same segment."""
        if self.active.size == 0:
            self._begin_segment(first)
        self.index.note_filter(first, self.active.size)
        self._make(KIND_FILTER, 0, first, 0, self.bloom.payload(count))

    # --- segments -----------------------------------------------------------------------------

    def adopt(self, segments: list[StreamSegment], index: SparseIndex) -> None:
        """Take over what recovery found; ``index`` is that of the last segment."""
        self.segments = segments
        self.active = segments[-1]
        self.index = index
        self.size = 0
        for segment in segments:
            self.size += segment.size
        self.first = segments[0].first
        self.next = self.active.next
        self.committed = self.next
        self.committed_segment = self.active.number
        self.committed_position = self.active.size
        self.durable_segment = self.active.number
        self.durable_position = self.active.size
        self._chunk = self._new_chunk()

    def counted(self, number: i64) -> None:
        """Set the number of the last chunk that recovery found."""
        self.number = number + 1
        self.durable = number
        self._marked = number

    def close_active(self) -> None:
        """Begin a new segment with the next chunk, because the last one is complete."""
        self.active = StreamSegment(self.active.number + 1, self.next, self.next, 0, 0, 0, 0)
        self.index = SparseIndex()
        self._chunk = self._new_chunk()

    def _put_chunk(self, kind: i64, count: i64, first: i64, frame_max: i64, payload: bytes) -> None:
        if self.active.size == 0:
            self._begin_segment(first)
        active = self.active
        if kind == KIND_MESSAGES:
            self.index.note(first, self.time_ms, self.index.begin_of(first, active.size))
            if active.next == active.first:
                active.first_ms = self.time_ms
            active.next = first + count
            active.last_ms = self.time_ms
        self._make(kind, count, first, frame_max, payload)
        if active.size >= self.segment_bytes_max:
            self._roll()

    def _make(self, kind: i64, count: i64, first: i64, frame_max: i64, payload: bytes) -> None:
        """Make the next chunk, for this log and for its copies."""
        data = chunk_bytes(
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
        self._write(data)
        if self.shipping:
            self._shipped.append(data)
        self.number += 1

    def _roll(self) -> None:
        """Complete the active segment and begin the next."""
        first = self.next
        position = self.active.size
        entries = self.index.entries()
        payload = index_payload(entries, self.active.last_ms, position)
        self._make(KIND_INDEX, 0, first, 0, payload)
        self._complete()
        self._begin_segment(first)

    def _complete(self) -> None:
        """The active segment has its INDEX."""
        self._chunk.closes = True
        self._full.append(self._chunk)
        self.close_active()

    def _begin_segment(self, first: i64) -> None:
        self._open_segment(first)
        writer = BytesWriter()
        self.put_snapshot(writer)
        self._make(KIND_SNAPSHOT, 0, first, 0, writer.getvalue())

    def _open_segment(self, first: i64) -> None:
        if self.active.number == 0:
            self.active = StreamSegment(1, first, first, 0, 0, 0, 0)
            self._chunk = self._new_chunk()
        active = self.active
        active.first = first
        active.next = first
        active.chunk = self.number
        self.segments.append(active)
        self._write(segment_header(active.number, self.id, first))

    def _write(self, data: bytes) -> None:
        self._chunk.pieces.append(data)
        self._chunk.size += len(data)
        self.active.size += len(data)
        self.size += len(data)

    def _new_chunk(self) -> SegmentWrite:
        return SegmentWrite(self.id << 32 | self.active.number, self.active.size)

    # --- copies -------------------------------------------------------------------------------

    def take_shipped(self) -> list[bytes]:
        """The chunks that were made for replication since the last call."""
        self.seal()
        shipped = self._shipped
        self._shipped = []
        return shipped

    def begin_at(self, segment: i64, number: i64, first: i64) -> None:
        """An empty log goes on with the chunk of this number, the first one of a segment."""
        assert len(self.segments) == 0
        self.active = StreamSegment(segment, first, first, 0, 0, 0, 0)
        self._chunk = self._new_chunk()
        self.first = first
        self.next = first
        self.committed = first
        self.committed_segment = segment
        self.durable_segment = segment
        self.counted(number - 1)

    def follow(self, data: bytes, at: i64, end: i64) -> None:
        """Append the chunks in data[at:end], which another log of this stream has made; raises
        CorruptRecord for a chunk that doesn't follow the last."""
        while at < end:
            head = ChunkHead(data, at)
            if at + head.size > end:
                raise CorruptRecord("a chunk that is not whole", at)
            check_chunk(data, at, head.size)
            begins = self.active.size == 0
            if head.number != self.number or head.first != self.next:
                raise CorruptRecord(f"chunk {head.number} where {self.number} belongs,", at)
            if begins != (head.kind == KIND_SNAPSHOT):
                raise CorruptRecord(f"chunk {head.number} of kind {head.kind}", at)
            self._follow(head, data, at)
            at += head.size

    def _follow(self, head: ChunkHead, data: bytes, at: i64) -> None:
        if head.kind == KIND_SNAPSHOT:
            self._open_segment(head.first)
        active = self.active
        self.time_ms = head.time_ms
        if head.kind == KIND_FILTER:
            self.index.note_filter(head.first, active.size)
        elif head.kind == KIND_MESSAGES:
            self.index.note(head.first, head.time_ms, self.index.begin_of(head.first, active.size))
            if active.next == active.first:
                active.first_ms = head.time_ms
            self.next = head.first + head.count
            active.next = self.next
            active.last_ms = head.time_ms
        self._write(data[at : at + head.size])
        self.number += 1
        self.take_chunk(head, data, at)
        if head.kind == KIND_INDEX:
            self._complete()

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
            dead.append(self._drop_oldest())
        if len(dead) > 0:
            self._retired = self.shipping
            while len(self.starts) > 1 and self.starts[1][1] <= self.first:
                self.starts.pop(0)
        return dead

    def keep_from(self, segment: i64) -> list[int]:
        """Forget the segments that the home no longer has; returns their numbers."""
        dead: list[int] = []
        while len(self.segments) > 1 and self.segments[0].number < segment:
            dead.append(self._drop_oldest())
        return dead

    def _drop_oldest(self) -> int:
        oldest = self.segments.pop(0)
        self.size -= oldest.size
        self.first = oldest.next
        self.indexes.pop(int(oldest.number), b"")
        return int(oldest.number)
