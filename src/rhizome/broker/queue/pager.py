"""Pager: which messages are in memory, and how the others come back from disk.

Invariant: ``resident_bytes`` adds up the cost of every message that a local queue holds in memory,
ready or unacked, once per queue. While it is above ``budget_bytes`` new messages go to disk only
(persistent ones are in the journal anyway, transient ones are written to spill segments that are
never synced and do not survive a restart), and the queue keeps a few bytes of index for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from librt.strings import read_i32_be, read_i64_be
from mypy_extensions import i64, mypyc_attr

from rhizome.broker.message import (
    SPILL_POSITION_FIRST,
    Message,
    Route,
    content_channel,
    largest_frame,
)
from rhizome.broker.queue.priority_lane import Lane
from rhizome.journal.errors import CorruptRecord
from rhizome.journal.journal import SPILL_SEGMENT_FIRST, Journal
from rhizome.journal.paged_index import PagedIndex, RecordRun
from rhizome.journal.records import (
    CHECK_INCOMPLETE,
    RECORD_HEADER_BYTES,
    check_message,
    tail_at,
    u16_at,
    u32_at,
)

if TYPE_CHECKING:
    from rhizome.broker.queue.queue import Queue

RUN_BYTES_MAX: Final = 256 * 1024
"""How much of a segment is read at once when a backlog is paged in.

Sending to consumers hides the time of the next read. A run that is read, decoded and written out
should fit in the processor's cache.
"""

READ_AHEAD_BYTES: Final = 64 * 1024
"""How much is read for a single record, which is seldom longer."""

READ_BYTES_PER_WORK: Final = 4096
"""One unit of work for so many bytes of a long record. One that was published to thousands of
queues is read for each of them."""

FLOOR_BYTES: Final = 128 * 1024
"""What each queue may keep in memory although others use up the budget..."""

FLOOR_TOTAL_FACTOR: Final = 2
"""...as long as the total stays below this multiple of the budget."""

ROUTES_MAX: Final = 4096


@mypyc_attr(allow_interpreted_subclasses=True)
class SegmentReader:
    """Reads back what was written; the shell implements it on its store."""

    def read(self, segment: i64, offset: i64, length: i64) -> bytes:
        """Up to ``length`` bytes of a segment from ``offset`` on; shorter at its end."""
        raise NotImplementedError


@final
class Pager:
    reader: SegmentReader
    journal: Journal
    spill: Journal
    budget_bytes: i64
    resident_bytes: i64
    journal_end: i64
    spill_end: i64
    waiting: list[Queue]
    routes: dict[bytes, Route]
    route_last: Route

    def __init__(
        self, reader: SegmentReader, journal: Journal, spill: Journal, budget_bytes: i64
    ) -> None:
        self.reader = reader
        self.journal = journal
        self.spill = spill
        self.budget_bytes = budget_bytes
        self.resident_bytes = 0
        self.journal_end = journal.end_position()
        self.spill_end = spill.end_position()
        self.waiting = []
        self.routes = {}
        # The messages of a backlog mostly have one route, so its tail is not hashed for each.
        self.route_last = Route("", "", b"")

    def admit(self, queue: Queue, lane: Lane, message: Message) -> None:
        """Append a message to a lane: in memory if there is room, else on disk only."""
        if lane.paged_count == 0 and self._has_room(queue):
            cost = message.cost
            self.resident_bytes += cost
            queue.resident_bytes += cost
            lane.push(message)
        else:
            self.page(queue, lane, message)

    def page(self, queue: Queue, lane: Lane, message: Message) -> None:
        """Append a message to a lane, on disk only."""
        if queue.recorded and message.position != 0:
            lane.append_paged(message.index, message.position)
        else:
            lane.append_paged(message.index, self._spill(queue, message))

    def charge(self, queue: Queue, message: Message) -> None:
        """Charge a queue for a message that it keeps in memory outside its lanes."""
        self.resident_bytes += message.cost
        queue.resident_bytes += message.cost

    def uncharge(self, queue: Queue, message: Message) -> None:
        """A message that a queue had in memory is on disk only from here on, or leaves it."""
        self.resident_bytes -= message.cost
        queue.resident_bytes -= message.cost

    def _has_room(self, queue: Queue) -> bool:
        resident = self.resident_bytes
        if resident < self.budget_bytes or queue.last_values is not None:
            return True
        return (
            queue.resident_bytes < FLOOR_BYTES and resident < self.budget_bytes * FLOOR_TOTAL_FACTOR
        )

    def _spill(self, queue: Queue, message: Message) -> i64:
        """Write a transient message to the spill, once for all queues that page it; again if what
        was written before is gone with its segment, since nobody needed it any more."""
        if message.spilled != 0 and self.spill.keeps(message.spilled):
            self.spill.retain(message.spilled)
            return message.spilled
        ids: list[int] = [queue.id]
        message.spilled = self.spill.enqueue(
            0,
            0,
            message.index,
            ids,
            message.route.tail,
            message.arrived_ms,
            message.expiration_ms,
            message.priority,
            0,
            message.content,
        )
        return message.spilled

    def fill(self, queue: Queue, lane: Lane) -> bool:
        """Bring the next run of a lane's paged messages into memory, or set the first one aside if
        its record is damaged (`damaged_messages.py`).

        Returns False if they were appended in this very turn, or if a copy was asked for the first
        one; the queue is dispatched again when that has changed.
        """
        run = lane.paged.peek_run(RUN_BYTES_MAX)
        start: i64 = run.segment << 32 | run.offset
        if start >= self.readable_end(run.segment):
            self.waiting.append(queue)
            return False
        try:
            wanted = run.bytes_wanted(READ_AHEAD_BYTES)
            buffer = self.reader.read(run.segment, run.offset, wanted)
            if self._load(queue, lane, run, buffer) > 0:
                return True
            # The first record is longer than the read: fetch it whole.
            buffer = self.reader.read(run.segment, run.offset, record_bytes_at(buffer))
            queue.broker.turn.work += len(buffer) // READ_BYTES_PER_WORK
            if self._load(queue, lane, run, buffer) > 0:
                return True
        except CorruptRecord as error:
            return queue.broker.damage.met(queue, lane, buffer, 0, error.reason)
        except OSError:
            # The read-ahead may be what failed: read the first record alone.
            return self._fill_one(queue, lane, start)
        return queue.broker.damage.met(queue, lane, buffer, 0, "its segment ends within it")

    def _fill_one(self, queue: Queue, lane: Lane, position: i64) -> bool:
        """Bring the first paged message of a lane into memory, reading no more than its record."""
        index = lane.paged.first_index()
        try:
            segment: i64 = position >> 32
            offset: i64 = position & 0xFFFFFFFF
            size: i64 = record_bytes_at(self.reader.read(segment, offset, RECORD_HEADER_BYTES))
            buffer = self.reader.read(segment, offset, size)
            if check_message(buffer, 0) == CHECK_INCOMPLETE:
                raise CorruptRecord("its segment ends within it", offset)
            message = self._message(buffer, 0, position)
            if message.index != index:
                raise CorruptRecord(f"the record of message {message.index} is there", offset)
        except CorruptRecord as error:
            return queue.broker.damage.met(queue, lane, b"", 0, error.reason)
        except OSError as failure:
            return queue.broker.damage.met(queue, lane, b"", 0, f"it can't be read: {failure}")
        self.charge(queue, message)
        lane.push(message)
        lane.paged.drop(1)
        lane.paged_count -= 1
        return True

    def readable_end(self, segment: i64) -> i64:
        """The position below which everything in that kind of segment can be read back."""
        return self.spill_end if segment >= SPILL_SEGMENT_FIRST else self.journal_end

    def _load(self, queue: Queue, lane: Lane, run: RecordRun, buffer: bytes) -> i64:
        """Turn the records in ``buffer`` into resident messages, up to the first that is damaged;
        return how many. Raises CorruptRecord if the very first is damaged."""
        taken: i64 = 0
        end: i64 = len(buffer)
        while taken < run.count:
            offset: i64 = i64(run.offsets[taken])
            at: i64 = offset - run.offset
            if at >= end:
                break
            try:
                size = check_message(buffer, at)
            except CorruptRecord:
                if taken > 0:
                    break
                raise
            if size == CHECK_INCOMPLETE:
                break
            message = self._message(buffer, at, run.segment << 32 | offset)
            if message.index != run.indexes[taken]:
                if taken > 0:
                    break
                raise CorruptRecord(f"the record of message {message.index} is there", offset)
            self.charge(queue, message)
            lane.push(message)
            taken += 1
        if taken > 0:
            lane.paged.drop(taken)
            lane.paged_count -= taken
        return taken

    def _message(self, buffer: bytes, offset: i64, position: i64) -> Message:
        """The message in a record that has been checked.

        It is made directly from the record: a StoredMessage between would double the objects of a
        drain.
        """
        tail_begins: i64 = tail_at(buffer, offset)
        tail_ends: i64 = tail_begins + u16_at(buffer, tail_begins - 2)
        begins: i64 = tail_ends + 4
        content = buffer[begins : begins + u32_at(buffer, tail_ends)]
        tail = buffer[tail_begins:tail_ends]
        route = self.route_last
        if route.tail != tail:
            route = self.route(tail)
            self.route_last = route
        message = Message(route, content, content_channel(content), largest_frame(content))
        message.index = read_i64_be(buffer, offset + 16)
        message.arrived_ms = read_i64_be(buffer, offset + 24)
        message.expiration_ms = read_i64_be(buffer, offset + 32)
        message.priority = u32_at(buffer, offset + 40) >> 24
        message.position = position
        message.persistent = position < SPILL_POSITION_FIRST
        return message

    def route(self, tail: bytes) -> Route:
        """The route named by a stored tail, for deliveries only."""
        route = self.routes.get(tail)
        if route is None:
            if len(self.routes) >= ROUTES_MAX:
                self.routes.clear()
            end: i64 = 1 + tail[0]
            route = Route(
                tail[1:end].decode("utf-8", "surrogateescape"),
                tail[end + 1 :].decode("utf-8", "surrogateescape"),
                tail,
            )
            self.routes[tail] = route
        return route

    def can_read_first(self, lane: Lane) -> bool:
        """Whether the first paged message of a lane was appended before this turn."""
        position = lane.paged.find(lane.paged.first_index())
        return 0 < position < self.readable_end(position >> 32)

    def read_first(self, lane: Lane) -> Message | None:
        """The first paged message of a lane, left where it is; None if its record is damaged."""
        try:
            return self.read_one(lane.paged.find(lane.paged.first_index()))
        except (CorruptRecord, OSError):
            # Filling the lane sets it aside.
            return None

    def read_one(self, position: i64, bytes_usual: i64 = READ_AHEAD_BYTES) -> Message:
        """One paged message, left where it is. Raises CorruptRecord, or OSError."""
        buffer = self._read(position, bytes_usual)
        size = check_message(buffer, 0)
        if size == CHECK_INCOMPLETE:
            buffer = self._read(position, record_bytes_at(buffer))
            size = check_message(buffer, 0)
        if size == CHECK_INCOMPLETE:
            raise CorruptRecord("its segment ends within it", position & 0xFFFFFFFF)
        return self._message(buffer, 0, position)

    def read_several(self, entries: list[tuple[int, int]], bytes_max: i64) -> list[Message | None]:
        """The messages of the first entries of an index, left where they are, up to the one that
        reaches ``bytes_max``; None for one that can't be read."""
        found: list[Message | None] = []
        buffer = b""
        begins: i64 = 0
        size: i64 = 0
        for _, entry in entries:
            position: i64 = entry
            try:
                if position < begins or position - begins >= len(buffer):
                    begins = position
                    buffer = self._read(position, RUN_BYTES_MAX)
                message = self._whole(buffer, position - begins, position)
                found.append(message)
                size += len(message.content)
            except (CorruptRecord, OSError):
                found.append(None)
                buffer = b""
            if size >= bytes_max:
                break
        return found

    def _whole(self, buffer: bytes, at: i64, position: i64) -> Message:
        """The message at ``at`` of what was read, or read alone if it isn't whole there: what
        follows the first record may have been on its way to the disk."""
        try:
            if check_message(buffer, at) != CHECK_INCOMPLETE:
                return self._message(buffer, at, position)
        except CorruptRecord:
            pass
        return self.read_one(position)

    def _read(self, position: i64, length: i64) -> bytes:
        """Read from what the writers have, or from this turn's batch, which they don't have yet."""
        segment: i64 = position >> 32
        if position < self.readable_end(segment):
            return self.reader.read(segment, position & 0xFFFFFFFF, length)
        journal = self.spill if segment >= SPILL_SEGMENT_FIRST else self.journal
        return journal.unwritten(position, length)

    def keep(self, queue: Queue, message: Message) -> i64:
        """The place on disk of a message in memory, with one more reference to it."""
        position = message.position
        if position == 0:
            return self._spill(queue, message)
        journal = self.spill if position >= SPILL_POSITION_FIRST else self.journal
        journal.retain(position)
        return position

    def release(self, queue: Queue, message: Message) -> None:
        """A queue releases a message that it had in memory."""
        cost = message.cost
        self.resident_bytes -= cost
        queue.resident_bytes -= cost
        position = message.position
        if position >= SPILL_POSITION_FIRST:
            self.spill.release(position)
        elif position != 0 and queue.recorded:
            self.journal.release(position)

    def release_paged(self, paged: PagedIndex) -> None:
        """A queue releases everything that it had on disk only."""
        references: dict[int, int] = {}
        paged.count_references(references)
        for segment, count in references.items():
            journal = self.spill if segment >= SPILL_SEGMENT_FIRST else self.journal
            journal.release(i64(segment) << 32, count)

    def retain_paged(self, paged: PagedIndex) -> None:
        """Add one reference to everything that a queue has on disk only."""
        references: dict[int, int] = {}
        paged.count_references(references)
        for segment, count in references.items():
            journal = self.spill if segment >= SPILL_SEGMENT_FIRST else self.journal
            journal.retain(i64(segment) << 32, count)

    def submitted(self) -> None:
        """The batches of this turn were handed to the writers: they can be read back now."""
        self.journal_end = self.journal.end_position()
        self.spill_end = self.spill.end_position()
        waiting = self.waiting
        self.waiting = []
        for queue in waiting:
            if not queue.marked and not queue.deleted:
                queue.touch()


def record_bytes_at(buffer: bytes) -> i64:
    """Size of the record that begins a buffer, from its header."""
    if len(buffer) < RECORD_HEADER_BYTES:
        return 0
    return (i64(read_i32_be(buffer, 0)) & 0xFFFFFFFF) + RECORD_HEADER_BYTES
