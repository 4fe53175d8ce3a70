"""Queue recovery: a queue gets back what its journal, or a copy of its group, has kept for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from rhizome.broker.queue.last_value import LastValues
from rhizome.broker.queue.queue import Queue
from rhizome.broker.queue.queue_message_totals import ready_body_bytes
from rhizome.broker.queue.redelivered_flag import restore_shown
from rhizome.journal.paged_index import PagedIndex
from rhizome.journal.record_replay import merged

if TYPE_CHECKING:
    from rhizome.journal.recovery import RecoveredQueue


def restore_queue(queue: Queue, found: RecoveredQueue, crashed: bool = False) -> None:
    """Give an empty queue the messages that were found for it; takes the indexes over.

    ``crashed``: the broker that had it last was this one, and it was not stopped cleanly.
    """
    queue.prepare_for(max(found.levels, default=0))
    _restore_lanes(queue, {0: found.in_order()} if queue.single else found.levels)
    queue.ready_bytes = found.content_bytes
    queue.durable_bytes = found.content_bytes
    queue.counts = _counts_of_known(found.delivery_counts, queue.log.next_index)
    if queue.retrying:
        queue.restored = dict.fromkeys(queue.counts)
    queue.seen = found.seen
    restore_shown(queue, found.shown, crashed)
    if queue.bounded:
        queue.body_bytes = ready_body_bytes(queue)
        # What clients held is ready again and may exceed the limits. An isolated broker touches its
        # queues when it no longer is isolated.
        if queue.ready > 0 and not queue.marked and queue.broker.may_deliver:
            queue.touch()
    if not queue.holds:
        queue.may_expire = True
        queue.broker.watch_expiry(queue)
    if queue.keys is not None:
        queue.keys.restart()
    if queue.last_values is not None:
        _recall_values(queue, queue.last_values)
    if len(found.leases) > 0:
        queue.broker.restore_leases(queue, found.leases)


def _counts_of_known(counts: dict[int, int], next_index: i64) -> dict[int, int]:
    """The delivery counts without those of transient messages at the log's end: the log has
    forgotten these, and reuses their indexes."""
    return {index: count for index, count in counts.items() if index < next_index}


def _restore_lanes(queue: Queue, levels: dict[int, PagedIndex]) -> None:
    top: i64 = len(queue.lanes) - 1
    for priority in sorted(levels):
        lane = queue.made_lane(priority if priority < top else top)
        paged = levels[priority]
        if lane.paged_count > 0:
            paged = merged([lane.paged, paged])
        lane.paged = paged
        lane.paged_count = len(paged)
    queue.ready = 0
    for lane in queue.lanes:
        queue.ready += lane.paged_count


def _recall_values(queue: Queue, last_values: LastValues) -> None:
    """Bring everything into memory, as always in a last-value queue, and index it by key."""
    for lane in queue.lanes:
        while lane.paged_count > 0 and queue.broker.pager.fill(queue, lane):
            pass
        for message in lane.resident():
            last_values.put(message.index, message.content)
