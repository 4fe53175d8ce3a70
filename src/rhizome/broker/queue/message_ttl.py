"""Message TTL: expired messages leave their queue, each at its time.

Those at the head of a lane are seen there: a lane remembers a head that stays, so that a tick over
many queues costs next to nothing. Those that expire behind others are found by their queue's
`ExpiryIndex`; RabbitMQ leaves them until they are the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from rhizome.broker.queue.due_heap import SWEPT_AT_ONCE, ExpiryIndex
from rhizome.broker.queue.priority_lane import Lane
from rhizome.broker.queue.queue import REASON_EXPIRED, claim

if TYPE_CHECKING:
    from rhizome.broker.queue.queue import Queue

MOVED_PER_WORK: Final = 200
"""One unit of work for this many messages that move up when one before them is taken out."""
SWEPT_PER_WORK: Final = 4


def expire(queue: Queue, now_ms: i64) -> None:
    """Discard the expired messages at the head of each lane, or as many as this turn has time for:
    the next tick continues."""
    turn = queue.broker.turn
    for lane in queue.lanes:
        while lane.ready() > 0 and not turn.is_full() and _must_go(queue, lane, now_ms):
            message = lane.pop()
            if message is None:
                if not queue.broker.pager.fill(queue, lane):
                    break
            else:
                queue.discount(message)
                queue.discard(message, REASON_EXPIRED)
    found = queue.expiries
    if found is not None:
        _expire_behind(queue, found, now_ms)


def _expire_behind(queue: Queue, found: ExpiryIndex, now_ms: i64) -> None:
    """Discard the expired messages behind others, or as many as this turn has time for."""
    turn = queue.broker.turn
    if queue.ready == 0:
        # What is unacked is noted again if it comes back.
        queue.expiries = None
        return
    while found.first_ms() < now_ms and not turn.is_full():
        index = found.pop()
        turn.work += _work_of_claim(queue, index)
        message = claim(queue, index)
        if message is None:
            continue
        if len(message.content) == 0:
            queue.unacked -= 1
            queue.broker.damage.put_back(queue, message, "it has expired, and can't be sent on")
        elif queue.is_expired(message, now_ms):
            queue.unacked -= 1
            queue.discard(message, REASON_EXPIRED)
        else:
            # A policy gave it more time since.
            queue.take_back(message)
    if found.is_sweeping() or len(found.due) >= found.sweep_at:
        found.sweep(_first_index(queue))
        turn.work += SWEPT_AT_ONCE // SWEPT_PER_WORK


def _work_of_claim(queue: Queue, index: i64) -> i64:
    """What taking a message out of the middle costs: what is in memory before it moves up."""
    depth: i64 = 0
    for lane in queue.lanes:
        depth += lane.depth(index)
    return 1 + depth // MOVED_PER_WORK


def _first_index(queue: Queue) -> i64:
    """The lowest index of the ready messages."""
    lowest: i64 = -1
    for lane in queue.lanes:
        if lane.ready() > 0:
            first = lane.first_index()
            if lowest < 0 or first < lowest:
                lowest = first
    return lowest


def _must_go(queue: Queue, lane: Lane, now_ms: i64) -> bool:
    """Whether the first message of a lane has expired, or can't be read."""
    first = lane.first_index()
    if first == lane.fresh_index and now_ms <= lane.fresh_until_ms:
        return False
    message = lane.peek()
    if message is None:
        if not queue.broker.pager.can_read_first(lane):
            return False
        message = queue.broker.pager.read_first(lane)
        if message is None:
            # Damaged: filling the lane sets it aside.
            return True
    expires_ms = queue.expires_ms(message)
    if now_ms > expires_ms:
        return True
    lane.fresh_index = first
    lane.fresh_until_ms = expires_ms
    return False
