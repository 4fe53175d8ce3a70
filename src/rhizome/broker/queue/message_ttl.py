"""Message TTL: expired messages leave from the head of their queue.

As in RabbitMQ, a message that expires behind one that doesn't waits until it is the first. A lane
remembers a head that stays, so that a tick over many queues costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from rhizome.broker.queue.priority_lane import Lane
from rhizome.broker.queue.queue import REASON_EXPIRED

if TYPE_CHECKING:
    from rhizome.broker.queue.queue import Queue


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
