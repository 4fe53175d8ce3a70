"""Edge call handler: carries out the calls of an edge on the queues of a home.

A home says that a queue is purged, empty or unused only under a lease (R9). It answers a purge when
no takeover can bring the messages back. Calls that can't be answered yet wait here, as at any home
(`broker/channel/deferred_methods.py`). If the home has changed by then, the edge asks the new one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from mypy_extensions import i64

from rhizome.amqp.field_table import encode_table
from rhizome.broker.channel.consume_methods import pull, pull_consumer
from rhizome.broker.channel.resource_lookup import may_tell
from rhizome.broker.channel.topology_methods import check_deletable
from rhizome.broker.group_log.log_port import GroupLog
from rhizome.broker.queue.redelivered_flag import was_delivered, with_delivery_count
from rhizome.cluster.home.edge_attachment import EdgeAttachment
from rhizome.cluster.link.frame_codec import put_frame
from rhizome.cluster.protocol.call_table_codec import (
    OP_COUNTS,
    OP_DELETE,
    OP_GET,
    OP_PURGE,
    number_in,
    number_or,
)
from rhizome.cluster.protocol.catalogue import ANSWER
from rhizome.errors import AmqpError, InternalFault, NotFound

if TYPE_CHECKING:
    from rhizome.broker.queue.queue import Queue
    from rhizome.cluster.home.edge_channels import EdgeConnection


@final
class PendingPurge:
    """A queue that was purged for an edge, and the index up to which its log must be safe."""

    table: dict[str, object]
    queue: Queue
    log: GroupLog
    index: i64
    count: i64

    def __init__(self, table: dict[str, object], queue: Queue, count: i64) -> None:
        self.table = table
        self.queue = queue
        self.log = queue.log
        self.index = queue.log.mark()
        self.count = count

    def is_safe(self) -> bool:
        return self.queue.deleted or self.index <= self.log.committed_disk

    def is_here(self) -> bool:
        """Whether the purge can become safe: the queue is still where it was purged."""
        return self.queue.away is None and self.queue.log is self.log


@final
class EdgeCallHandler:
    """The calls of one edge.

    Invariant: ``unanswered`` are calls that can't be carried out yet; ``purges`` are carried out,
    but not safe yet.
    """

    edge_connection: EdgeConnection
    unanswered: list[dict[str, object]]
    purges: list[PendingPurge]

    def __init__(self, edge_connection: EdgeConnection) -> None:
        self.edge_connection = edge_connection
        self.unanswered = []
        self.purges = []

    def call(self, attached: EdgeAttachment, table: dict[str, object]) -> None:
        try:
            self._carry_out(attached, table)
        except AmqpError as error:
            self.refuse(table, error)

    def _carry_out(self, attached: EdgeAttachment, table: dict[str, object]) -> None:
        queue = self.queue_of(table)
        operation = table["op"]
        queue.last_used_ms = queue.broker.turn.now_ms
        if operation == OP_GET:
            self._get(attached, table, queue)
        elif operation == OP_COUNTS:
            self.answer(table, {"ready": queue.ready, "consumers": queue.consumer_count})
        elif operation == OP_PURGE:
            self._purge(table, queue)
        elif operation == OP_DELETE:
            self._delete(table, queue)
        else:
            raise InternalFault(f"this broker knows no operation '{operation}'")

    def _purge(self, table: dict[str, object], queue: Queue) -> None:
        if not may_tell(queue):
            self.unanswered.append(table)
            return
        count = queue.purge()
        if queue.recorded and count > 0:
            self.purges.append(PendingPurge(table, queue, count))
        else:
            self.answer(table, {"ready": count})

    def _delete(self, table: dict[str, object], queue: Queue) -> None:
        if_unused = table["if_unused"] is True
        if_empty = table["if_empty"] is True
        if (if_unused or if_empty) and not may_tell(queue):
            self.unanswered.append(table)
            return
        check_deletable(queue, if_unused, if_empty)
        self.answer(table, {"ready": queue.ready})

    def _get(self, attached: EdgeAttachment, table: dict[str, object], queue: Queue) -> None:
        message = pull(queue)
        if message is None:
            if queue.is_coming() or not may_tell(queue):
                # The call is tried again when the message can be shown, and read.
                self.unanswered.append(table)
            else:
                self.answer(table, {})
            return
        redelivered = was_delivered(queue, message)
        if redelivered:
            queue.redelivered += 1
            message = with_delivery_count(queue, message)
        queue.delivered += 1
        queue.unacked += 1
        if queue.durable_bytes > 0:
            queue.broker.delivered_marks.note(queue, message)
        channel = self.edge_connection.channel(attached, number_in(table, "session"))
        tag = channel.hold(message, pull_consumer(channel, queue))
        self.answer(
            table,
            {
                "tag": tag,
                "index": message.index,
                "redelivered": redelivered,
                "left": queue.ready,
                "tail": message.route.tail,
                "frame_max": message.frame_bytes_max,
                "content": message.content,
            },
        )

    def nobody_waits(self, group: i64, session: i64) -> None:
        """Drop the calls of a session that is over, or with session 0 all calls about a group,
        because they are asked anew: a message that was got for them now would stay with nobody."""
        self.unanswered = [
            table
            for table in self.unanswered
            if number_in(table, "group") != group
            or session not in (0, number_or(table, "session", -1))
        ]

    def try_again(self) -> None:
        """Try the unanswered calls again: what they wait for may be there."""
        if len(self.unanswered) > 0:
            unanswered = self.unanswered
            self.unanswered = []
            for table in unanswered:
                self.edge_connection.call(table)
        if len(self.purges) > 0:
            purges = self.purges
            self.purges = []
            for purged in purges:
                if purged.is_safe():
                    self.answer(purged.table, {"ready": purged.count})
                elif purged.is_here():
                    self.purges.append(purged)

    def queue_of(self, table: dict[str, object]) -> Queue:
        """The queue that a call is about; raises NotFound if it isn't active here."""
        broker = self.edge_connection.broker
        queue = broker.shared.get(number_in(table, "id"))
        if queue is None:
            raise NotFound(f"no queue '{table['queue']}' in vhost '{table['vhost']}'")
        if queue.away is not None:
            raise NotFound(
                f"broker '{broker.settings.name}' is not the home of queue '{queue.name}' in "
                f"vhost '{queue.vhost}'"
            )
        return queue

    def answer(self, table: dict[str, object], answer: dict[str, object]) -> None:
        whole: dict[str, object] = {"call": table["call"], "group": table["group"], "code": 0}
        whole.update(answer)
        self._put(whole)

    def refuse(self, table: dict[str, object], error: AmqpError) -> None:
        whole: dict[str, object] = {
            "call": table["call"],
            "group": table["group"],
            "code": error.code,
            "text": error.text,
        }
        self._put(whole)

    def _put(self, answer: dict[str, object]) -> None:
        put_frame(self.edge_connection.outbox, ANSWER, encode_table(answer))
        self.edge_connection.link.touch()
