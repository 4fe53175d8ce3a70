"""Home calls: what an edge asks the home of a queue for one channel, and how it uses the answer.

A call is asked again, under a new number, whenever its home, or another one, is attached to. The
home takes back whatever was done for it before, and a late answer is ignored. So a home that dies
costs its callers a pause.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from mypy_extensions import i64

from rhizome.amqp.methods import (
    BasicCancel,
    BasicConsumeOk,
    BasicGet,
    BasicGetEmpty,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
)
from rhizome.amqp.spec import BASIC, QUEUE, SESSION
from rhizome.broker.channel.consume_methods import check_free, get, pull_consumer, show_pulled
from rhizome.broker.channel.topology_methods import delete_counted, queue_delete, queue_purge
from rhizome.broker.channel.unacked import ACK
from rhizome.broker.connection.session_resume import resume
from rhizome.broker.metadata.metadata_changes import Outcome
from rhizome.broker.metadata.metadata_commands import DeleteQueue
from rhizome.broker.streams.stream_reader import start_at
from rhizome.cluster.protocol.call_table_codec import bytes_in, number_in
from rhizome.errors import AmqpError, NotFound

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.channel.channel import Channel
    from rhizome.broker.channel.consumer import Consumer
    from rhizome.broker.cluster_port import Away, Waiter
    from rhizome.broker.queue.queue import Queue
    from rhizome.cluster.edge.edge_group import EdgeGroup


class Call:
    """A request to a home. The channel's connection is suspended for each until it is answered.

    ``frame`` and ``table`` are what is sent; ``class_id`` and ``method_id`` are the application's
    method, for an error.
    """

    home: EdgeGroup
    channel: Channel
    queue: Queue
    class_id: int
    method_id: int
    asked_ms: i64
    frame: i64
    table: dict[str, object]

    def __init__(
        self, home: EdgeGroup, channel: Channel, queue: Queue, class_id: int, method_id: int
    ) -> None:
        self.home = home
        self.channel = channel
        self.queue = queue
        self.class_id = class_id
        self.method_id = method_id
        self.asked_ms = channel.connection.broker.turn.now_ms
        self.frame = 0
        self.table = {}

    def answered(self, answer: dict[str, object]) -> None:
        raise NotImplementedError

    def carry_out(self) -> None:
        """The home is this broker now: do the operation here; raises the error with which it is
        refused."""
        raise NotImplementedError

    def failed(self, error: AmqpError) -> None:
        if error.class_id == 0:
            error.class_id = self.class_id
            error.method_id = self.method_id
        self.channel.connection.fail_on(self.channel, error)


@final
class AttachCall(Call):
    consumer: Consumer
    no_wait: bool

    def __init__(self, home: EdgeGroup, consumer: Consumer, no_wait: bool) -> None:
        super().__init__(home, consumer.channel, consumer.queue, BASIC, 20)
        self.consumer = consumer
        self.no_wait = no_wait

    def answered(self, answer: dict[str, object]) -> None:
        if self.channel.closing or self.queue.deleted:
            return
        start = answer.get("start")
        if isinstance(start, int):
            start_at(self.consumer, start)
        self.queue.add_consumer(self.consumer)
        if not self.no_wait:
            self.channel.send(BasicConsumeOk(self.consumer.tag))

    def carry_out(self) -> None:
        check_free(self.queue, self.consumer.exclusive)
        self.home.forget(self.consumer)
        self.consumer.proxy = None
        self.answered({})

    def failed(self, error: AmqpError) -> None:
        self.home.forget(self.consumer)
        self.channel.consumers.pop(self.consumer.tag, None)
        super().failed(error)


@final
class ReattachCall(Call):
    """A consumer that was attached before its link broke. The application waits for nothing."""

    consumer: Consumer

    def __init__(self, home: EdgeGroup, consumer: Consumer) -> None:
        super().__init__(home, consumer.channel, consumer.queue, BASIC, 20)
        self.consumer = consumer

    def answered(self, answer: dict[str, object]) -> None:
        start = answer.get("start")
        if isinstance(start, int):
            start_at(self.consumer, start)

    def carry_out(self) -> None:
        pass

    def failed(self, error: AmqpError) -> None:
        consumer = self.consumer
        channel = self.channel
        self.home.forget(consumer)
        if channel.consumers.get(consumer.tag) is consumer:
            del channel.consumers[consumer.tag]
            self.queue.remove_consumer(consumer)
            if channel.connection.cancel_notify and not channel.closing:
                channel.send(BasicCancel(consumer.tag, True))


@final
class ResumeCall(Call):
    """A client presents something of an epoch in which this broker had not heard of the home."""

    entries: bytes
    asked: list[Away]

    def __init__(
        self,
        home: EdgeGroup,
        channel: Channel,
        queue: Queue,
        entries: bytes,
        asked: list[Away],
    ) -> None:
        super().__init__(home, channel, queue, SESSION, 40)
        self.entries = entries
        self.asked = asked

    def answered(self, answer: dict[str, object]) -> None:
        if not self.channel.closing:
            try:
                self.carry_out()
            except AmqpError as error:
                super().failed(error)

    def carry_out(self) -> None:
        resume(self.channel, self.entries, self.asked)

    def failed(self, error: AmqpError) -> None:
        self.answered({})


@final
class GetCall(Call):
    no_ack: bool

    def __init__(self, home: EdgeGroup, channel: Channel, queue: Queue, no_ack: bool) -> None:
        super().__init__(home, channel, queue, BASIC, 70)
        self.no_ack = no_ack

    def answered(self, answer: dict[str, object]) -> None:
        content = answer.get("content")
        channel = self.channel
        if not isinstance(content, bytes):
            if not channel.closing:
                channel.send(BasicGetEmpty())
            return
        if channel.closing:
            # The channel's session has ended, and the home takes back what that held.
            return
        session = self.home.session(channel)
        message = self.home.message(
            bytes_in(answer, "tail"), content, number_in(answer, "frame_max")
        )
        message.index = number_in(answer, "index")
        message.tag = number_in(answer, "tag")
        pulled = pull_consumer(channel, self.queue)
        pulled.proxy = session
        redelivered = answer.get("redelivered") is True
        left = number_in(answer, "left")
        show_pulled(channel, self.queue, message, self.no_ack, redelivered, left)
        if self.no_ack:
            session.settle(pulled, message, ACK)

    def carry_out(self) -> None:
        get(self.channel, BasicGet(self.queue.name, self.no_ack))


@final
class CountsCall(Call):
    def __init__(self, home: EdgeGroup, channel: Channel, queue: Queue) -> None:
        super().__init__(home, channel, queue, QUEUE, 10)

    def answered(self, answer: dict[str, object]) -> None:
        if not self.channel.closing:
            self.channel.send(
                QueueDeclareOk(
                    self.queue.name, number_in(answer, "ready"), number_in(answer, "consumers")
                )
            )

    def carry_out(self) -> None:
        self.answered({"ready": self.queue.ready, "consumers": self.queue.consumer_count})


@final
class PurgeCall(Call):
    no_wait: bool

    def __init__(self, home: EdgeGroup, channel: Channel, queue: Queue, no_wait: bool) -> None:
        super().__init__(home, channel, queue, QUEUE, 30)
        self.no_wait = no_wait

    def answered(self, answer: dict[str, object]) -> None:
        count = number_in(answer, "ready")
        connection = self.channel.connection
        connection.broker.observer.queue_purged(connection, self.queue, count)
        if not self.no_wait and not self.channel.closing:
            self.channel.send(QueuePurgeOk(count))

    def carry_out(self) -> None:
        queue_purge(self.channel, QueuePurge(self.queue.name, self.no_wait))


@final
class DeleteCall(Call):
    method: QueueDelete

    def __init__(
        self, home: EdgeGroup, channel: Channel, queue: Queue, method: QueueDelete
    ) -> None:
        super().__init__(home, channel, queue, QUEUE, 40)
        self.method = method

    def answered(self, answer: dict[str, object]) -> None:
        if self.channel.closing:
            return
        try:
            delete_counted(self.channel, self.queue, number_in(answer, "ready"), self.method)
        except AmqpError as error:
            self.failed(error)

    def failed(self, error: AmqpError) -> None:
        """The home knows no such queue any more: it was deleted meanwhile, which is no error."""
        if not isinstance(error, NotFound) or not error.text.startswith("no queue"):
            super().failed(error)
        elif not self.method.no_wait and not self.channel.closing:
            self.channel.send(QueueDeleteOk(0))

    def carry_out(self) -> None:
        method = self.method
        queue_delete(
            self.channel,
            QueueDelete(self.queue.name, method.if_unused, method.if_empty, method.no_wait),
        )


@final
class PendingCancel:
    """A client that waits for the end of an auto-delete queue whose last consumer it cancelled.
    The home has it deleted; a second deletion behind that one ends when every broker knows."""

    queue: Queue
    waiter: Waiter
    asked_ms: i64

    def __init__(self, queue: Queue, waiter: Waiter, asked_ms: i64) -> None:
        self.queue = queue
        self.waiter = waiter
        self.asked_ms = asked_ms

    def done(self, broker: Broker, unused: bool) -> None:
        """The home knows that the consumer is gone, and whether the queue is deleted."""
        queue = self.queue
        if unused:
            command = DeleteQueue(queue.vhost, queue.name, queue.definition.id)
            broker.cluster.propose(command, self.waiter)
        else:
            self.waiter.resolved(Outcome())
