"""Pager: which messages are in memory, and how the others come back from disk.

Invariant: ``resident_bytes`` adds up the cost of every message that a local queue holds in memory,
ready or unacked, once per queue. While it is above ``budget_bytes`` new messages go to disk only
(persistent ones are in the journal anyway, transient ones are written to spill segments that are
never synced and do not survive a restart), and the queue keeps a few bytes of index for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from librt.strings import read_i32_be
from mypy_extensions import i64, mypyc_attr

from rhizome.broker.lane import Lane
from rhizome.broker.message import (
    SPILL_POSITION_FIRST,
    Message,
    Route,
    content_channel,
    largest_frame,
)
from rhizome.journal.errors import CorruptRecord
from rhizome.journal.index import PagedIndex
from rhizome.journal.journal import SPILL_SEGMENT_FIRST, Journal
from rhizome.journal.records import RECORD_HEADER_BYTES, StoredMessage, decode_message

if TYPE_CHECKING:
    from rhizome.broker.queue import Queue

RUN_BYTES_MAX: Final = 1 << 20
"""How much of a segment is read at once when a backlog is paged in."""

READ_AHEAD_BYTES: Final = 64 * 1024
"""Read beyond the start of a run's last record, which is seldom longer."""

FLOOR_BYTES: Final = 128 * 1024
"""What each queue may keep in memory although the budget is used up by others..."""

FLOOR_TOTAL_FACTOR: Final = 2
"""...as long as the whole stays below this multiple of the budget."""

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

    def admit(self, queue: Queue, lane: Lane, message: Message) -> None:
        """Append a message to a lane: in memory if there is room, else on disk only."""
        if lane.paged_count == 0 and self._has_room(queue):
            cost = message.cost
            self.resident_bytes += cost
            queue.resident_bytes += cost
            lane.push(message)
        elif queue.durable and message.persistent:
            lane.append_paged(message.index, message.position)
        else:
            lane.append_paged(message.index, self._spill(queue, message))

    def charge(self, queue: Queue, message: Message) -> None:
        """A queue keeps a message in memory outside of its lanes."""
        self.resident_bytes += message.cost
        queue.resident_bytes += message.cost

    def _has_room(self, queue: Queue) -> bool:
        resident = self.resident_bytes
        if resident < self.budget_bytes or queue.last_values is not None:
            return True
        return (
            queue.resident_bytes < FLOOR_BYTES and resident < self.budget_bytes * FLOOR_TOTAL_FACTOR
        )

    def _spill(self, queue: Queue, message: Message) -> i64:
        """Write a transient message to the spill, once for all queues that page it."""
        if message.spilled != 0:
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
        """Bring the next run of a lane's paged messages into memory.

        False if they were appended in this very turn; the queue is dispatched again in the next.
        """
        run = lane.paged.peek_run(RUN_BYTES_MAX)
        start: i64 = run.segment << 32 | run.offset
        if start >= self.readable_end(run.segment):
            self.waiting.append(queue)
            return False
        buffer = self.reader.read(run.segment, run.offset, run.span + READ_AHEAD_BYTES)
        taken = self._load(queue, lane, run.offset, run.count, buffer)
        if taken == 0:
            # One record longer than the read: fetch it whole.
            size: i64 = record_bytes_at(buffer)
            buffer = self.reader.read(run.segment, run.offset, size)
            taken = self._load(queue, lane, run.offset, 1, buffer)
        if taken == 0:
            self.waiting.append(queue)
            return False
        return True

    def readable_end(self, segment: i64) -> i64:
        """The position below which everything in that kind of segment can be read back."""
        return self.spill_end if segment >= SPILL_SEGMENT_FIRST else self.journal_end

    def _load(self, queue: Queue, lane: Lane, offset: i64, count: i64, buffer: bytes) -> i64:
        """Turn the records in ``buffer`` into resident messages; answers how many."""
        entries = lane.paged.peek(count)
        taken: i64 = 0
        for index, position in entries:
            at: i64 = (i64(position) & 0xFFFFFFFF) - offset
            if at >= len(buffer):
                break
            try:
                stored = decode_message(buffer, at)
            except CorruptRecord as error:
                if taken > 0:
                    break
                raise CorruptRecord(
                    f"message {index} in segment {position >> 32} can't be read ({error.reason}),",
                    position & 0xFFFFFFFF,
                ) from error
            if stored is None:
                break
            assert stored.index == index, "an index entry points at another message"
            message = self._message(stored, position)
            self.charge(queue, message)
            lane.push(message)
            taken += 1
        if taken > 0:
            lane.paged.drop(taken)
            lane.paged_count -= taken
        return taken

    def _message(self, stored: StoredMessage, position: i64) -> Message:
        content = stored.content
        message = Message(
            self.route(stored.tail), content, content_channel(content), largest_frame(content)
        )
        message.index = stored.index
        message.arrived_ms = stored.arrived_ms
        message.expiration_ms = stored.expiration_ms
        message.priority = stored.priority
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
        except CorruptRecord:
            # Whoever fills the lane says so.
            return None

    def read_one(self, position: i64) -> Message:
        """One paged message, left where it is."""
        segment: i64 = position >> 32
        offset: i64 = position & 0xFFFFFFFF
        buffer = self.reader.read(segment, offset, READ_AHEAD_BYTES)
        stored = decode_message(buffer, 0)
        if stored is None:
            buffer = self.reader.read(segment, offset, record_bytes_at(buffer))
            stored = decode_message(buffer, 0)
        assert stored is not None, "a paged message is not on disk"
        return self._message(stored, position)

    def release(self, queue: Queue, message: Message) -> None:
        """A queue lets go of a message that it had in memory."""
        cost = message.cost
        self.resident_bytes -= cost
        queue.resident_bytes -= cost
        position = message.position
        if position >= SPILL_POSITION_FIRST:
            self.spill.release(position)
        elif position != 0 and queue.durable:
            self.journal.release(position)

    def release_paged(self, paged: PagedIndex) -> None:
        """A queue lets go of everything that it had on disk only."""
        references: dict[int, int] = {}
        paged.count_references(references)
        for segment, count in references.items():
            journal = self.spill if segment >= SPILL_SEGMENT_FIRST else self.journal
            journal.release(i64(segment) << 32, count)

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
