"""Redelivered flag: which messages were delivered and not acked, recorded for after a crash.

Such a message comes back marked as redelivered. Messages of a lane are delivered in order, so one
number covers all of them. It is recorded once per queue and turn, along with another record that
has to be written; on a quiet broker after at most QUIET_MS. Nobody waits for it, so a delivery
costs no sync.

So a crash can come before the record. A broker that recovers its own queues after a crash (a single
broker, or queues that only it has) marks all their messages as delivered: an unmarked message was
certainly not seen. A clean stop loses no record, and the marks are exact. A standby that takes over
knows what the home had recorded, and what applications of living brokers hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from rhizome.broker.dead_letters.dead_letter_headers import with_header
from rhizome.broker.message import Message, largest_frame
from rhizome.journal.journal import Journal

if TYPE_CHECKING:
    from rhizome.broker.queue.queue import Queue

QUIET_MS: Final = 100
"""How long a mark may wait for another record to be written: on a broker that writes nothing else,
this makes ten small records a second."""


@final
class DeliveredMarks:
    """Invariant: ``queues`` are those whose mark says so; ``due`` if they have waited long
    enough."""

    journal: Journal
    queues: list[Queue]
    written_ms: i64
    due: bool

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.queues = []
        self.written_ms = 0
        self.due = False

    def note(self, queue: Queue, message: Message) -> None:
        """A message was delivered, and all before it in its lane that are still there."""
        lane = queue.lane_of(message)
        if message.index > lane.shown:
            lane.shown = message.index
            if not queue.shown_marked:
                queue.shown_marked = True
                self.queues.append(queue)

    def tick(self, now_ms: i64) -> None:
        self.due = now_ms - self.written_ms >= QUIET_MS

    def write(self, now_ms: i64) -> None:
        """At the end of a turn: record the marks, if that costs no extra write or they have waited
        long enough."""
        if not self.due and not self.journal.pending():
            return
        self.written_ms = now_ms
        self.due = False
        queues = self.queues
        self.queues = []
        for queue in queues:
            queue.shown_marked = False
            if queue.unacked > 0 and queue.recorded and not queue.deleted:
                _record(queue)


def _record(queue: Queue) -> None:
    for priority, lane in enumerate(queue.lanes):
        if lane.shown > lane.noted:
            lane.noted = lane.shown
            queue.log.shown(queue.id, priority, lane.shown)


def was_delivered(queue: Queue, message: Message) -> bool:
    """Whether a message came back to its queue, or an application held it when a broker crashed."""
    if len(queue.counts) > 0 and message.index in queue.counts:
        return True
    return message.index <= queue.shown_before and message.index <= queue.lane_of(message).before


def restore_shown(queue: Queue, shown: dict[int, int], crashed: bool = False) -> None:
    """Restore the marks that a restart found: by priority, up to which index messages were
    delivered. After a crash all messages may have been.

    The last of them may have been transient. The log doesn't know of those, and gives their indexes
    to messages that nobody has seen.
    """
    last = queue.log.next_index - 1
    for priority in range(len(queue.lanes)):
        if priority not in shown and not queue.lanes[priority].is_made():
            continue
        lane = queue.made_lane(priority)
        lane.before = last if crashed else min(i64(shown.get(priority, -1)), last)
        lane.shown = lane.before
        lane.noted = lane.before
        if lane.before > queue.shown_before:
            queue.shown_before = lane.before


def shown_of(queue: Queue) -> dict[int, int]:
    """By priority, up to which index messages were delivered."""
    return {at: int(lane.shown) for at, lane in enumerate(queue.lanes) if lane.shown >= 0}


def with_delivery_count(queue: Queue, message: Message) -> Message:
    """The message as a quorum queue delivers it again, with its x-delivery-count. Every return
    counts here, so it was with a consumer as often (x-acquired-count)."""
    count = queue.counts.get(message.index, 0)
    if queue.options.queue_type != "quorum" or count == 0:
        return message
    content = with_header(message.content, b"x-delivery-count", count)
    if queue.broker.queue_limits.tells_acquired_count:
        content = with_header(content, b"x-acquired-count", count)
    shown = Message(message.route, content, message.channel, largest_frame(content))
    shown.index = message.index
    shown.position = message.position
    shown.spilled = message.spilled
    shown.arrived_ms = message.arrived_ms
    shown.expiration_ms = message.expiration_ms
    shown.priority = message.priority
    shown.persistent = message.persistent
    shown.cost = message.cost
    return shown
