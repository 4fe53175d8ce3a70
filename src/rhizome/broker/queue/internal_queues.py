"""Internal queues: queues that belong to a group itself, and the workers that process them.

A group keeps work of its own in queues that no application sees: what it has to forward to other
groups (`group_outbox.py`), and prepared transactions. To its log, copies, checkpoints and takeovers
these are ordinary queues, so their contents are as safe as any message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

from rhizome.broker.group_log.log_port import GroupLog
from rhizome.broker.message import Message
from rhizome.broker.metadata.declare_and_consume_arguments import QueueArguments
from rhizome.broker.metadata.queue_policy_user_records import QueueDefinition
from rhizome.broker.publishing.forward_port import Forward
from rhizome.broker.publishing.publisher_confirms import Confirms
from rhizome.broker.queue.queue import Queue

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker

OUTBOX_QUEUE_IDS: Final = 0xFFFF0000
"""The outbox of a group has this id plus the group's number: the last ids that a record can
name."""


@mypyc_attr(allow_interpreted_subclasses=True)
class InternalQueueWorker:
    """Processes one internal queue. What it has taken from there counts as unacked."""

    def run(self) -> None:
        """The queue has changed: continue with what can be done."""
        raise NotImplementedError

    def held(self) -> list[Message]:
        """The messages that were taken and aren't settled, in order."""
        raise NotImplementedError

    def waits(self) -> bool:
        """Whether the worker waits for something to be safe, here or on another broker."""
        raise NotImplementedError

    def reserved(self) -> list[tuple[Queue, Message]]:
        """The messages of other queues that the worker has set aside; they count as unacked
        there."""
        return []

    def at_once(self, message: Message, confirms: Confirms) -> bool:
        """Do what a message for this queue asks for without enqueuing it, in one record with the
        number that its edge gave it (`GroupLog.taken`). Returns False if the message belongs in the
        queue."""
        return False

    def let_go(self) -> None:
        """The queue is no longer active here: its new home holds what this worker held."""
        raise NotImplementedError

    def wait_elsewhere(
        self, log: GroupLog, forward: Forward, indexes: list[int], numbers: list[int]
    ) -> None:
        """Wait for a log's next home instead of for the log (`Confirms.wait_elsewhere`)."""
        raise NotImplementedError


def make_internal_queue(broker: Broker, queue_id: i64, name: str, group: i64) -> Queue:
    """Make a queue that belongs to a group itself, in no vhost."""
    options = QueueArguments()
    definition = QueueDefinition(
        int(queue_id), "", name, True, False, "", {}, options, options, group=int(group)
    )
    queue = Queue(broker, definition)
    broker.add_shared(queue)
    broker.internal[queue_id] = queue
    return queue


def drop_internal_queue(queue: Queue) -> None:
    """Drop an internal queue, because its group is gone."""
    del queue.broker.internal[queue.id]
    queue.broker.queue_deleted(queue)


def touch_workers(broker: Broker) -> None:
    """Run the workers that wait for something to be safe, here or on another broker."""
    for queue in broker.internal.values():
        worker = queue.worker
        if worker is not None and queue.away is None and not queue.marked and worker.waits():
            queue.touch()
