"""Workers: queues that belong to a group itself, and whoever works them off.

A group keeps business of its own in queues that no application sees: what it has to forward to
other groups (`post.py`), and transactions that are not settled. To its log, its copies, checkpoints
and takeovers these are queues like all others, so what is in them is as safe as any message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

from rhizome.broker.arguments import QueueArguments
from rhizome.broker.confirms import Confirms
from rhizome.broker.definitions import QueueDefinition
from rhizome.broker.message import Message
from rhizome.broker.port import Forward, GroupLog
from rhizome.broker.queue import Queue

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker

POST_IDS: Final = 0xFFFF0000
"""The post of a group has this id and the group's number: the last ids that a record can name."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Worker:
    """Works off one queue. What it has taken from there counts as unacked."""

    def run(self) -> None:
        """The queue was touched: go on with what can be done."""
        raise NotImplementedError

    def held(self) -> list[Message]:
        """What was taken and isn't settled, in order."""
        raise NotImplementedError

    def waits(self) -> bool:
        """Whether it waits for something to be safe, here or elsewhere."""
        raise NotImplementedError

    def reserved(self) -> list[tuple[Queue, Message]]:
        """What it has set aside of other queues, where it counts as unacked."""
        return []

    def at_once(self, message: Message, confirms: Confirms) -> bool:
        """Do what a message for the queue asks for instead of putting it there, in one record with
        the number that its edge gave it (`GroupLog.taken`); False if it belongs into the queue."""
        return False

    def let_go(self) -> None:
        """The queue is no longer active here: others hold what this one held."""
        raise NotImplementedError

    def wait_elsewhere(
        self, log: GroupLog, forward: Forward, indexes: list[int], numbers: list[int]
    ) -> None:
        """What waits for a log waits for its next home from now on (`Confirms.wait_elsewhere`)."""
        raise NotImplementedError


def make_internal(broker: Broker, queue_id: i64, name: str, group: i64) -> Queue:
    """A queue that belongs to a group itself, in no vhost."""
    options = QueueArguments()
    definition = QueueDefinition(
        int(queue_id), "", name, True, False, "", {}, options, options, group=int(group)
    )
    queue = Queue(broker, definition)
    broker.shared[queue_id] = queue
    broker.internal[queue_id] = queue
    return queue


def drop_internal(queue: Queue) -> None:
    """The group of such a queue is gone."""
    del queue.broker.internal[queue.id]
    queue.broker.queue_deleted(queue)


def touch_workers(broker: Broker) -> None:
    """Something is safe, here or elsewhere: whoever waits for that goes on."""
    for queue in broker.internal.values():
        worker = queue.worker
        if worker is not None and queue.away is None and not queue.marked and worker.waits():
            queue.touch()
