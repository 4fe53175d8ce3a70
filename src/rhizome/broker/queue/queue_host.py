"""QueueHost: what a queue asks of the broker that it is at, and of the parts that it may have.

The broker is one, and so may a test be. Nothing here knows channels, connections or publishing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64, mypyc_attr

from rhizome.broker.access.retry_and_quorum_limits import RetryAndQuorumLimits
from rhizome.broker.group_log.log_port import GroupLog
from rhizome.broker.message import Message
from rhizome.broker.publishing.forward_port import Forward
from rhizome.broker.publishing.publisher_confirms import Confirms
from rhizome.broker.queue.queue_consumer import QueueConsumer
from rhizome.broker.turn import Turn

if TYPE_CHECKING:
    from rhizome.broker.queue.damaged_messages import Damage
    from rhizome.broker.queue.pager import Pager
    from rhizome.broker.queue.queue import Queue
    from rhizome.broker.queue.redelivered_flag import DeliveredMarks


class QueueStream:
    """The part of a queue that makes it a stream."""

    def attach(self, consumer: QueueConsumer) -> None:
        """Attach a consumer, which begins where its arguments say or after what its name has
        acknowledged."""
        raise NotImplementedError

    def dispatch(self) -> None:
        """Deliver to each consumer what it has credit for."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class RemoteHome:
    """The home of a queue that is active on another broker, for what is published here."""

    def forward(self) -> Forward:
        raise NotImplementedError


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


class QueueHost:
    """``log`` is that of queues which no group has; nothing is delivered unless ``may_deliver``,
    and ``isolation`` says why; ``congested`` are the queues that hold publishers back."""

    turn: Turn
    log: GroupLog
    pager: Pager
    damage: Damage
    delivered_marks: DeliveredMarks
    queue_limits: RetryAndQuorumLimits
    may_deliver: bool
    isolation: str
    congested: dict[Queue, None]

    # ---- messages -------------------------------------------------------------------------------

    def dead_letter(self, queue: Queue, message: Message, reason: str) -> None:
        """Note a dead letter; it is sent before the turn ends."""
        raise NotImplementedError

    def delay_retry(self, queue: Queue, message: Message, due_ms: i64) -> None:
        """Give a message back to its queue when its retry is due (`Queue.retry`)."""
        raise NotImplementedError

    def return_delayed(self, queue: Queue) -> None:
        """Give back all messages of a queue that wait for their retry."""
        raise NotImplementedError

    def put_back_scheduled(self, queue: Queue, message: Message) -> None:
        """A message that waits for the time it asked for is back in its queue."""
        raise NotImplementedError

    def forget_scheduled(self, queue: Queue) -> None:
        """Nothing in a queue waits for its time any more."""
        raise NotImplementedError

    def look_at_scheduled(self, due_ms: i64) -> None:
        """See then which messages are due."""
        raise NotImplementedError

    def unacked_messages(self, queue: Queue) -> list[Message]:
        """What consumers and pulls of a queue hold."""
        raise NotImplementedError

    def watch_expiry(self, queue: Queue) -> None:
        """Look for what expires in a queue from time to time."""
        raise NotImplementedError

    # ---- consumers ------------------------------------------------------------------------------

    def attach_lease(self, consumer: QueueConsumer) -> None:
        """Serve a consumer that leases messages instead of taking them."""
        raise NotImplementedError

    def forget_lease(self, consumer: QueueConsumer) -> None:
        raise NotImplementedError

    def lease_came_home(self, consumer: QueueConsumer) -> None:
        """The queue of such a consumer is active here from now on: carry out its request here."""
        raise NotImplementedError

    def restore_leases(self, queue: Queue, packed: bytes) -> None:
        """Restore the leases of a queue from the last record of its log that has them."""
        raise NotImplementedError

    # ---- messages that can't be read ------------------------------------------------------------

    def ask_copies(self, queue: Queue, index: i64) -> bool:
        """Ask the copies of a queue's group for a message; False if there is no broker to ask."""
        raise NotImplementedError

    def copies_answered(self) -> None:
        """What waited for copies may go on."""
        raise NotImplementedError

    def message_damaged(self, queue: Queue, index: i64, reason: str) -> None:
        """A message that can't be read was set aside: report it."""
        raise NotImplementedError

    def message_repaired(self, queue: Queue, index: i64) -> None:
        raise NotImplementedError

    def copy_damaged(self, queue_id: i64, index: i64, reason: str) -> None:
        """A message in a copy of a group that is active elsewhere can't be read."""
        raise NotImplementedError
