"""Journal: the append side of one segmented journal. Sans-IO and compiled.

Records are appended to a batch in memory; the position of each is known at once. Once per wake-up
`take` hands the batch to the writer (writer.py), which reports later how far it is synced.
A record at position p is durable when the synced position is above p.

Segments. A record never crosses segments, and every segment but the last ends with an END record.
A record that is larger than a segment gets a segment of its own. Inside a transaction no segment
is ever begun, so that the positions of its records are final: a segment may exceed its size by the
part of one transaction that `begin_tx` wasn't told of.

Removing segments. A checkpoint at position P holds everything that the records below P amount to:
the live messages with the positions of their records, the state, the watermarks. Recovery loads the
newest checkpoint and applies the records from P on; of the records below P it needs only those that
hold the body of a message that is live in the checkpoint. So:

    a segment may be removed  <=>  it ends at or below P of the newest durable checkpoint,
                                   and no message that is live in that checkpoint has its body in
                                   it.

Proof. Nothing that recovery does after a crash at any later instant touches that segment: it is
not in the tail that is scanned; a message that the checkpoint holds isn't in it; a message that the
tail brings to life (ENQUEUE, MOVED) has its body in the tail. In particular no tombstone is lost: a
DEQUEUE, PURGE or DROP below P has already had its effect on the checkpoint's live set, and one at
or above P is in a segment that stays. The checkpoint itself counts as newest only after it is
durable, and it becomes durable only after the journal is synced up to P, so the rule holds at every
instant between. Hence segments need not go in order, a message that outlives the others in its
segment is moved by compaction (compaction.py), and restart time doesn't depend on history.

A scratch journal (spilled transient bodies) has no recovery: a segment goes when nothing in it
lives.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter
from mypy_extensions import i64

from rhizome.journal.dedup_state import DedupIdentity
from rhizome.journal.records import (
    FLAG_IDENTITY,
    KIND_END,
    KIND_ENQUEUE,
    KIND_EPOCH,
    KIND_MOVED,
    KIND_SYNCED,
    KIND_TX,
    PAYLOAD_BYTES_MAX,
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    UNCHECKED_HEADER_BYTES,
    bare_record,
    crc32c,
    dequeue_record,
    drop_queue_record,
    purge_record,
    put_checked_header,
    put_message_meta,
    put_u32,
    requeue_record,
    segment_header,
    state_record,
)


@final
class SegmentCount:
    """A segment's size, live references, and references that were ever made to it."""

    segment: i64
    size: i64
    live: i64
    total: i64

    def __init__(self, segment: i64, size: i64, live: i64, total: i64) -> None:
        self.segment = segment
        self.size = size
        self.live = live
        self.total = total


def bytes_within(pieces: list[bytes], offset: i64, length: i64) -> bytes:
    """Up to `length` bytes of the joined pieces, from `offset` on."""
    found: list[bytes] = []
    for piece in pieces:
        size: i64 = len(piece)
        if offset < size and length > 0:
            part = piece[offset : offset + length]
            found.append(part)
            length -= len(part)
        offset = max(offset - size, 0)
    return b"".join(found)


SEGMENT_BYTES_DEFAULT: Final = 64 * 1024 * 1024
SEGMENT_BYTES_MIN: Final = 4096
SEGMENT_BYTES_MAX: Final = 1 << 30
SPILL_SEGMENT_FIRST: Final = 1 << 30
"""Spill segments number from here, so that one index can hold positions of both journals."""
COPY_BYTES_MAX: Final = 1536
"""Contents up to this size are copied into the batch; larger ones are written from where
they are.
"""


@final
class SegmentWrite:
    """Bytes to write at `offset` of `segment`.

    A chunk at offset 0 begins its segment. `closes` says that the segment ends with this chunk: it
    must be synced before any byte of a later segment is written, so that only the last segment can
    ever be torn.
    """

    segment: i64
    offset: i64
    size: i64
    pieces: list[bytes]
    closes: bool

    def __init__(self, segment: i64, offset: i64) -> None:
        self.segment = segment
        self.offset = offset
        self.size = 0
        self.pieces = []
        self.closes = False

    def end(self) -> i64:
        """The position after the last byte."""
        return self.segment << 32 | self.offset + self.size


@final
class Journal:
    """Invariant: the bytes handed out by `take`, in order, are a well-formed journal, and the next
    record begins at (`_segment`, `_offset`), of which `_chunk` and then `_writer` hold the end.
    """

    store_uuid: bytes
    segment_bytes_max: i64
    scratch: bool
    records_appended: i64
    bytes_appended: i64
    _segment: i64
    _offset: i64
    _writer: BytesWriter
    _body: BytesWriter
    _chunk: SegmentWrite
    _full: list[SegmentWrite]
    _live_active: i64
    _total_active: i64
    _live: dict[int, int]
    _total: dict[int, int]
    _bytes: dict[int, int]
    _tx_piece: i64
    _tx_offset: i64
    _tx_total: i64
    _tx_records: i64
    _tx_bytes: i64
    _tx_group: i64
    _tx_epoch: i64
    _tx_index: i64
    _synced: i64
    _synced_marked: i64
    _kept_from: i64
    _kept: dict[int, int]
    _unhurried: i64
    """How many records of the batch nobody waits for; those of transactions are not counted."""
    _taken: i64
    """How many records had been appended at the last `take`."""

    def __init__(
        self,
        store_uuid: bytes,
        segment_bytes_max: i64 = SEGMENT_BYTES_DEFAULT,
        segment: i64 = 1,
        scratch: bool = False,
    ) -> None:
        """Begin at `segment`, which must not exist yet."""
        assert SEGMENT_BYTES_MIN <= segment_bytes_max <= SEGMENT_BYTES_MAX
        assert segment >= 1
        assert len(store_uuid) == 16
        self.store_uuid = store_uuid
        self.segment_bytes_max = segment_bytes_max
        self.scratch = scratch
        self.records_appended = 0
        self.bytes_appended = 0
        self._segment = segment
        self._offset = 0
        self._writer = BytesWriter()
        self._body = BytesWriter()
        self._chunk = SegmentWrite(segment, 0)
        self._full = []
        self._live_active = 0
        self._total_active = 0
        self._live = {}
        self._total = {}
        self._bytes = {}
        self._tx_piece = -1
        self._tx_offset = 0
        self._tx_total = 0
        self._tx_records = 0
        self._tx_bytes = 0
        self._tx_group = 0
        self._tx_epoch = 0
        self._tx_index = 0
        self._synced = 0
        self._synced_marked = 0
        self._kept_from = 0
        self._kept = {}
        self._unhurried = 0
        self._taken = 0

    # --- appending ----------------------------------------------------------------------------

    def enqueue(
        self,
        group: i64,
        epoch: i64,
        index: i64,
        queue_ids: list[int],
        tail: bytes,
        arrived_ms: i64,
        expiration_ms: i64,
        priority: i64,
        flags: i64,
        content: bytes,
        identity: DedupIdentity | None = None,
    ) -> i64:
        """A message taken by `queue_ids`; each of them is one reference to release. They recognise
        it by its `identity` (L5)."""
        if identity is not None:
            flags |= FLAG_IDENTITY
        return self._message(
            KIND_ENQUEUE,
            group,
            epoch,
            index,
            queue_ids,
            tail,
            arrived_ms,
            expiration_ms,
            priority,
            flags,
            content,
            identity,
        )

    def moved(
        self,
        group: i64,
        epoch: i64,
        index: i64,
        queue_ids: list[int],
        tail: bytes,
        arrived_ms: i64,
        expiration_ms: i64,
        priority: i64,
        flags: i64,
        content: bytes,
    ) -> i64:
        """A new place for the body of a message that is live in `queue_ids`; release the
        old one.
        """
        return self._message(
            KIND_MOVED,
            group,
            epoch,
            index,
            queue_ids,
            tail,
            arrived_ms,
            expiration_ms,
            priority,
            flags,
            content,
        )

    def dequeue(
        self, group: i64, epoch: i64, queue_id: i64, indexes: list[int], index: i64 = 0
    ) -> i64:
        """Messages that left a queue for good. Order doesn't matter; ranges are compressed."""
        if not _ascends(indexes):
            indexes = sorted(indexes)
        self._count_unhurried()
        return self._append(dequeue_record(group, epoch, index, queue_id, indexes))

    def requeue(
        self,
        group: i64,
        epoch: i64,
        queue_id: i64,
        message_index: i64,
        delivery_count: i64,
        index: i64 = 0,
    ) -> i64:
        """A message is back at its place, having been delivered `delivery_count` times."""
        return self._append(
            requeue_record(group, epoch, index, queue_id, message_index, delivery_count)
        )

    def purge(self, group: i64, epoch: i64, queue_id: i64, up_to_index: i64, index: i64 = 0) -> i64:
        """All messages of a queue up to an index are gone, delivered and unacked ones included."""
        return self._append(purge_record(group, epoch, index, queue_id, up_to_index))

    def drop_queue(self, group: i64, epoch: i64, queue_id: i64, index: i64 = 0) -> i64:
        """A queue is gone with its messages and watermarks."""
        return self._append(drop_queue_record(group, epoch, index, queue_id))

    def state(self, index: i64, command: bytes) -> i64:
        """A command to the state machine; recovery hands these back in order."""
        return self._append(state_record(index, command))

    def epoch(self, group: i64, epoch: i64, index: i64) -> i64:
        """An epoch begins: messages of the group at or above `index` so far are void."""
        return self._append(bare_record(KIND_EPOCH, group, epoch, index))

    def append_raw(self, data: bytes, references: i64, records: i64 = 1) -> i64:
        """Whole records that were made elsewhere, in one piece; returns the position of the first.

        The others follow it in the same segment. `references` counts the queues that the messages
        in them are in: each is one to release.
        """
        size: i64 = len(data)
        self._reserve(size)
        if size > COPY_BYTES_MAX:
            self._flush_writer()
            self._chunk.pieces.append(data)
            self._chunk.size += size
        else:
            self._writer.write(data)
        self._live_active += references
        self._total_active += references
        self.records_appended += records - 1
        return self._advance(size)

    def append_unhurried(self, record: bytes) -> i64:
        """A record without messages that was made elsewhere, and that nobody waits for."""
        self._count_unhurried()
        return self.append_raw(record, 0)

    # --- transactions -------------------------------------------------------------------------

    def begin_tx(
        self, group: i64 = 0, epoch: i64 = 0, index: i64 = 0, bytes_expected: i64 = 0
    ) -> None:
        """Begin a transaction: what is appended until `end_tx` takes effect whole or not at all.

        `bytes_expected` (contents and a little for each record) lets the transaction begin in a new
        segment if it wouldn't fit in this one.
        """
        assert self._tx_piece < 0, "transactions don't nest"
        self._reserve(RECORD_HEADER_BYTES + bytes_expected)
        self._flush_writer()
        self._tx_piece = len(self._chunk.pieces)
        self._tx_offset = self._offset
        self._tx_total = self._total_active
        self._tx_records = self.records_appended
        self._tx_bytes = self.bytes_appended
        self._tx_group = group
        self._tx_epoch = epoch
        self._tx_index = index
        self._offset += RECORD_HEADER_BYTES

    def end_tx(self) -> i64:
        """Make the transaction a record; returns its position."""
        assert self._tx_piece >= 0, "no transaction to end"
        self._flush_writer()
        payload: i64 = self._offset - self._tx_offset - RECORD_HEADER_BYTES
        assert payload <= PAYLOAD_BYTES_MAX, "a transaction holds at most 2 GiB"
        writer = BytesWriter()
        put_checked_header(writer, KIND_TX, 0, self._tx_group, self._tx_epoch, self._tx_index)
        checked = writer.getvalue()
        crc: i64 = crc32c(checked)
        pieces = self._chunk.pieces
        at: i64 = self._tx_piece
        while at < len(pieces):
            crc = crc32c(pieces[at], crc)
            at += 1
        writer = BytesWriter()
        put_u32(writer, payload)
        put_u32(writer, crc)
        writer.write(checked)
        pieces.insert(self._tx_piece, writer.getvalue())
        self._chunk.size += RECORD_HEADER_BYTES
        self.bytes_appended += RECORD_HEADER_BYTES
        self.records_appended += 1
        position: i64 = self._segment << 32 | self._tx_offset
        self._tx_piece = -1
        return position

    def abort_tx(self) -> None:
        """Forget what was appended since `begin_tx`, its references included."""
        assert self._tx_piece >= 0, "no transaction to abort"
        self._flush_writer()
        pieces = self._chunk.pieces
        while len(pieces) > self._tx_piece:
            self._chunk.size -= len(pieces.pop())
        self._offset = self._tx_offset
        # Not restored but subtracted: older references of this segment may have been released.
        self._live_active -= self._total_active - self._tx_total
        self._total_active = self._tx_total
        self.records_appended = self._tx_records
        self.bytes_appended = self._tx_bytes
        self._tx_piece = -1

    # --- handing over -------------------------------------------------------------------------

    def pending(self) -> bool:
        """Whether something was appended since the last `take`."""
        return len(self._full) > 0 or self._chunk.size > 0 or len(self._writer) > 0

    def is_hurried(self) -> bool:
        """Whether somebody may wait for the batch: it has more than the dequeues of acked messages
        and the marks of delivered ones. A crash that undoes those makes deliveries again."""
        return self.records_appended - self._taken != self._unhurried

    def hurry(self) -> None:
        """Somebody waits for the batch, whatever is in it."""
        self._unhurried = -1

    def take(self, now_ms: i64 = 0) -> list[SegmentWrite]:
        """The batch: what was appended since the last call, to be written in this order.

        If the time is given, the batch ends with a mark of it: only messages have their own time.
        """
        assert self._tx_piece < 0, "a transaction is open"
        if not self.pending():
            return []
        if self._synced > self._synced_marked or now_ms > 0:
            # Recovery tells a torn tail from damage to confirmed records by these.
            self._append(bare_record(KIND_SYNCED, now_ms & 0xFFFF, now_ms >> 16, self._synced))
            self._synced_marked = self._synced
        self._taken = self.records_appended
        self._unhurried = 0
        self._flush_writer()
        batch = self._full
        self._full = []
        if self._chunk.size > 0:
            batch.append(self._chunk)
            self._chunk = SegmentWrite(self._segment, self._offset)
        return batch

    def unwritten(self, position: i64, length: i64) -> bytes:
        """Up to `length` bytes of the batch from a position on; shorter at the end of a chunk."""
        self._flush_writer()
        for chunk in [*self._full, self._chunk]:
            skipped: i64 = position - (chunk.segment << 32 | chunk.offset)
            if 0 <= skipped < chunk.size:
                return bytes_within(chunk.pieces, skipped, length)
        return b""

    def end_position(self) -> i64:
        """Where the next record will be, or a later place. Never falls; the token of a batch."""
        return self._segment << 32 | self._offset

    def synced(self, position: i64) -> None:
        """All records below `position` are on disk."""
        if position > self._synced:
            self._synced = position

    def synced_position(self) -> i64:
        return self._synced

    # --- references and segments --------------------------------------------------------------

    def release(self, position: i64, count: i64 = 1) -> None:
        """`count` references to the record at `position` are gone."""
        segment: i64 = position >> 32
        if segment == self._segment:
            self._live_active -= count
            assert self._live_active >= 0, "a reference was released twice"
            return
        live: i64 = self._live.get(int(segment), 0) - count
        assert live >= 0, "a reference was released twice"
        if live == 0:
            del self._live[int(segment)]
        else:
            self._live[int(segment)] = live

    def retain(self, position: i64, count: i64 = 1) -> None:
        """`count` more references to the record at `position`, which has some."""
        segment: i64 = position >> 32
        if segment == self._segment:
            self._live_active += count
        else:
            self._live[int(segment)] = self._live.get(int(segment), 0) + count

    def keeps(self, position: i64) -> bool:
        """Whether what is at `position` can be retained: nobody removes its segment meanwhile."""
        segment: i64 = position >> 32
        return segment == self._segment or int(segment) in self._live

    def adopt(self, segment: i64, live: i64, total: i64, size: i64) -> None:
        """Take over a segment that recovery found, with its references."""
        assert segment < self._segment
        if live > 0:
            self._live[int(segment)] = live
        self._total[int(segment)] = total
        self._bytes[int(segment)] = size

    def live_references(self) -> dict[int, int]:
        """References per segment; segments without any are absent. A copy."""
        found = dict(self._live)
        if self._live_active > 0:
            found[int(self._segment)] = self._live_active
        return found

    def checkpointed(self, position: i64, live: dict[int, int]) -> None:
        """A checkpoint at `position` is durable; `live` are the references per segment that
        it holds.
        """
        assert position >= self._kept_from
        self._kept_from = position
        self._kept = live

    def dead_segments(self) -> list[int]:
        """Segments that may be removed, by the rule in the module's docstring."""
        if self.scratch:
            return [segment for segment in self._bytes if segment not in self._live]
        limit: i64 = self._kept_from >> 32
        return [
            segment
            for segment in self._bytes
            if i64(segment) < limit and segment not in self._kept and segment not in self._live
        ]

    def removed(self, segment: i64) -> None:
        """A dead segment is gone."""
        assert int(segment) not in self._live, "a segment with live references was removed"
        self._bytes.pop(int(segment), 0)
        self._total.pop(int(segment), 0)

    def active_segment(self) -> i64:
        return self._segment

    def segments(self) -> list[SegmentCount]:
        """The closed segments, oldest first, and the active one."""
        found = [
            SegmentCount(segment, size, self._live.get(segment, 0), self._total.get(segment, 0))
            for segment, size in sorted(self._bytes.items())
        ]
        found.append(
            SegmentCount(self._segment, self._offset, self._live_active, self._total_active)
        )
        return found

    def disk_bytes(self) -> i64:
        """Bytes in all segments that have not been removed."""
        return self._offset + self.closed_bytes()

    def closed_bytes(self) -> i64:
        """Bytes in all of them but the active one."""
        total: i64 = 0
        for size in self._bytes.values():
            total += size
        return total

    # --- inside -------------------------------------------------------------------------------

    def _message(
        self,
        kind: i64,
        group: i64,
        epoch: i64,
        index: i64,
        queue_ids: list[int],
        tail: bytes,
        arrived_ms: i64,
        expiration_ms: i64,
        priority: i64,
        flags: i64,
        content: bytes,
        identity: DedupIdentity | None = None,
    ) -> i64:
        content_bytes: i64 = len(content)
        body = self._body
        body.truncate(0)
        put_checked_header(body, kind, flags, group, epoch, index)
        put_message_meta(body, arrived_ms, expiration_ms, priority, queue_ids, tail, content_bytes)
        by_reference = content_bytes > COPY_BYTES_MAX
        if not by_reference:
            # One checksum call over a copy is cheaper than two calls for a short content.
            body.write(content)
            if identity is not None:
                identity.put(body)
        checked = body.getvalue()
        crc: i64 = crc32c(checked)
        size: i64 = UNCHECKED_HEADER_BYTES + len(checked)
        known = b""
        if by_reference:
            crc = crc32c(content, crc)
            size += content_bytes
            if identity is not None:
                known = identity.packed()
                crc = crc32c(known, crc)
                size += len(known)
        assert size <= PAYLOAD_BYTES_MAX, "a record holds at most 2 GiB"
        self._reserve(size)
        writer = self._writer
        put_u32(writer, size - RECORD_HEADER_BYTES)
        put_u32(writer, crc)
        writer.write(checked)
        if by_reference:
            self._flush_writer()
            self._chunk.pieces.append(content)
            self._chunk.size += content_bytes
            if identity is not None:
                writer.write(known)
        count: i64 = len(queue_ids)
        self._live_active += count
        self._total_active += count
        return self._advance(size)

    def _count_unhurried(self) -> None:
        if self._tx_piece < 0 and self._unhurried >= 0:
            self._unhurried += 1

    def _append(self, record: bytes) -> i64:
        size: i64 = len(record)
        self._reserve(size)
        self._writer.write(record)
        return self._advance(size)

    def _advance(self, size: i64) -> i64:
        position: i64 = self._segment << 32 | self._offset
        self._offset += size
        self.bytes_appended += size
        self.records_appended += 1
        return position

    def _reserve(self, size: i64) -> None:
        """Make sure that a record of `size` goes where `_segment` and `_offset` say."""
        if self._tx_piece >= 0:
            return
        if self._offset + size + RECORD_HEADER_BYTES > self.segment_bytes_max:
            if self._offset > SEGMENT_HEADER_BYTES:
                self._close_segment()
        if self._offset == 0:
            self._writer.write(segment_header(self._segment, self.store_uuid))
            self._offset = SEGMENT_HEADER_BYTES
            self.bytes_appended += SEGMENT_HEADER_BYTES

    def _close_segment(self) -> None:
        self._writer.write(bare_record(KIND_END, 0, 0, 0))
        self.bytes_appended += RECORD_HEADER_BYTES
        self._flush_writer()
        self._chunk.closes = True
        self._full.append(self._chunk)
        segment = int(self._segment)
        if self._live_active > 0:
            self._live[segment] = self._live_active
        self._total[segment] = self._total_active
        self._bytes[segment] = self._offset + RECORD_HEADER_BYTES
        self._live_active = 0
        self._total_active = 0
        self._segment += 1
        self._offset = 0
        self._chunk = SegmentWrite(self._segment, 0)

    def _flush_writer(self) -> None:
        size: i64 = len(self._writer)
        if size > 0:
            self._chunk.pieces.append(self._writer.getvalue())
            self._chunk.size += size
            self._writer.truncate(0)


def _ascends(indexes: list[int]) -> bool:
    last: i64 = -1
    for number in indexes:
        index: i64 = number
        if index < last:
            return False
        last = index
    return True
