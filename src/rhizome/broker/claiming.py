"""Claiming: a message is taken out of the middle of its queue, because somebody turns out to have
it.

After a takeover, or a restart, everything that was unacked is ready again. What edges then present
as held or settled is claimed: it becomes what it was, unacked (A2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from rhizome.broker.message import Message
from rhizome.journal.errors import CorruptRecord

if TYPE_CHECKING:
    from rhizome.broker.lane import Lane
    from rhizome.broker.queue import Queue


def claim(queue: Queue, index: i64) -> Message | None:
    """Take the ready message of this index; it counts as unacked. None if it isn't ready."""
    for lane in queue.lanes:
        message = _take(queue, lane, index)
        if message is None:
            continue
        queue.discount(message)
        queue.unacked += 1
        return message
    return None


def _take(queue: Queue, lane: Lane, index: i64) -> Message | None:
    message = lane.take(index)
    if message is None and lane.paged_count > 0:
        position = lane.paged.remove(index)
        if position != 0:
            lane.paged_count -= 1
            try:
                message = queue.broker.pager.read_one(position)
            except (CorruptRecord, OSError):
                message = queue.broker.damage.held(queue, lane, index, position)
            queue.broker.pager.charge(queue, message)
    return message
