"""Internal queues: queues that belong to a group itself, and the workers that process them.

A group keeps work of its own in queues that no application sees: what it has to forward to other
groups (`group_outbox.py`), and prepared transactions. To its log, copies, checkpoints and takeovers
these are ordinary queues, so their contents are as safe as any message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from rhizome.broker.metadata.declare_and_consume_arguments import QueueArguments
from rhizome.broker.metadata.queue_policy_user_records import QueueDefinition
from rhizome.broker.queue.queue import Queue

if TYPE_CHECKING:
    from rhizome.broker.broker_context import BrokerContext

OUTBOX_QUEUE_IDS: Final = 0xFFFF0000
"""The outbox of a group has this id plus the group's number: the last ids that a record can
name."""


def make_internal_queue(broker: BrokerContext, queue_id: i64, name: str, group: i64) -> Queue:
    """Make a queue that belongs to a group itself, in no vhost."""
    options = QueueArguments()
    definition = QueueDefinition(
        int(queue_id), "", name, True, False, "", {}, options, options, group=int(group)
    )
    queue = Queue(broker, definition)
    broker.add_shared(queue)
    broker.internal[queue_id] = queue
    return queue


def drop_internal_queue(broker: BrokerContext, queue: Queue) -> None:
    """Drop an internal queue, because its group is gone."""
    del broker.internal[queue.id]
    broker.queue_deleted(queue)


def touch_workers(broker: BrokerContext) -> None:
    """Run the workers that wait for something to be safe, here or on another broker."""
    for queue in broker.internal.values():
        worker = queue.worker
        if worker is not None and queue.away is None and not queue.marked and worker.waits():
            queue.touch()
