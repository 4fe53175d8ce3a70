"""Consumer: one subscription of a channel to a queue, and the encoding of its deliveries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from librt.strings import BytesWriter, write_i64_be
from mypy_extensions import i64

from rhizome.amqp.frames import reframe
from rhizome.amqp.primitives import put_shortstr, put_u16, put_u32
from rhizome.amqp.spec import (
    BASIC,
    BASIC_DELIVER,
    FRAME_END,
    FRAME_METHOD,
    SESSION,
    SESSION_MESSAGE,
)
from rhizome.broker.channel.unacked import ACK, REJECT, REQUEUE
from rhizome.broker.cluster_port import Carrier, Proxy
from rhizome.broker.connection.outbox import COPY_BYTES_MAX, PIECE_BYTES
from rhizome.broker.message import Message, Route
from rhizome.broker.queue.queue_consumer import QueueConsumer, Reader

if TYPE_CHECKING:
    from rhizome.broker.channel.channel import Channel
    from rhizome.broker.message import Message
    from rhizome.broker.queue.queue import Queue
    from rhizome.broker.turn import Turn


IDENTITY_BYTES: Final = 4 + 8 + 4 + 8
"""The payload of session.message: class and method, queue, epoch, index."""


@final
class Consumer(QueueConsumer):
    """Invariant: ``unacked`` counts this consumer's entries in its channel's unacked ring. ``head``
    and ``foot`` are the parts of basic.deliver before and after (delivery tag, redelivered) for the
    route of the last delivery; they are encoded again only when the route changes.

    ``proxy`` is set if the queue is active on another broker; ``carrier`` (with ``number``) if the
    application is connected to another broker; ``reader`` if this consumes a stream that is active
    here, or a lease. ``named`` is the route last named on the link between an application's broker
    and its home, at either end; ``reached`` is the index of the last message over that link.
    ``identified``: the client can resume and is told the identity of each message. ``pulls``: it
    stands for what basic.get has taken, which no prefetch counts.
    """

    channel: Channel
    queue: Queue
    prefetch: i64
    timeout_ms: i64
    route: Route | None
    head: bytes
    foot: bytes
    proxy: Proxy | None
    carrier: Carrier | None
    number: i64
    named: Route | None
    credit: i64
    drained_ms: i64
    argument_bytes: i64
    reader: Reader | None
    identified: bool
    announced: bool
    """Whether something is to be done before each delivery: its client is told the identity, or the
    vhost is traced."""
    pulls: bool

    def __init__(
        self,
        tag: str,
        channel: Channel,
        queue: Queue,
        no_ack: bool,
        exclusive: bool,
        priority: i64,
        prefetch: i64,
        arguments: dict[str, object],
    ) -> None:
        super().__init__(tag, no_ack, exclusive, priority, arguments)
        self.channel = channel
        self.queue = queue
        self.prefetch = prefetch
        self.timeout_ms = -1
        self.route = None
        self.head = b""
        self.foot = b""
        self.proxy = None
        self.carrier = None
        self.number = 0
        self.named = None
        self.credit = 0
        self.drained_ms = 0
        self.argument_bytes = 0
        self.reader = None
        self.identified = not no_ack and len(channel.connection.resume_id) > 0
        self.announced = self.identified or channel.connection.router.traced
        self.pulls = False

    def can_take(self) -> bool:
        """Whether a delivery fits in the consumer's prefetch, the channel's and the outbox."""
        if self.carrier is not None and not self.carrier.can_take(self):
            return False
        return self.channel.connection.can_write() and not self.is_sated()

    def is_sated(self) -> bool:
        """Whether the prefetch of the consumer or of its channel is used up."""
        if self.no_ack:
            return False
        if self.prefetch > 0 and self.unacked >= self.prefetch:
            return True
        channel = self.channel
        return channel.prefetch_global > 0 and channel.is_sated()

    def drained_at(self) -> i64:
        """When its application last took something, in ms."""
        if self.carrier is not None and self.credit <= 0:
            # The link can take more; the application behind it can't.
            return self.drained_ms
        return self.channel.connection.drained_ms

    def deliver(self, message: Message, redelivered: bool) -> None:
        """Write basic.deliver and the content into the outbox of the consumer's connection."""
        if self.carrier is not None:
            self.carrier.deliver(self, message, redelivered)
            return
        channel = self.channel
        connection = channel.connection
        tag = channel.delivery_tag + 1
        channel.delivery_tag = tag
        if message.route is not self.route:
            self._encode_for(message.route)
        writer = connection.outbox.writer
        if self.announced:
            _announce(self, message, redelivered)
        writer.write(self.head)
        write_i64_be(writer, tag)
        writer.append(1 if redelivered else 0)
        writer.write(self.foot)
        content = message.content
        if (
            message.channel == channel.number
            and message.frame_bytes_max <= connection.frame_max
            and len(content) <= COPY_BYTES_MAX
        ):
            writer.write(content)
            if len(writer) >= PIECE_BYTES:
                connection.outbox.seal()
        else:
            put_content(channel, message)
        self.delivered += 1
        if not self.no_ack:
            channel.unacked.push(tag, message, self)
            self.unacked += 1
        if not connection.marked:
            connection.touch()

    def ack(self, message: Message) -> None:
        """Settle a delivery at the broker where its queue is active."""
        if self.reader is not None:
            self.reader.settled(message)
        elif self.proxy is None:
            self.queue.ack(message)
        else:
            self.proxy.settle(self, message, ACK)

    def reject(self, message: Message) -> None:
        if self.reader is not None:
            self.reader.given_up()
        elif self.proxy is None:
            self.queue.reject(message)
        else:
            self.proxy.settle(self, message, REJECT)

    def requeue(self, message: Message) -> None:
        if self.reader is not None:
            self.reader.given_up()
        elif self.proxy is None:
            self.queue.requeue(message)
        else:
            self.proxy.settle(self, message, REQUEUE)

    def take_back(self, message: Message) -> None:
        """A delivery did not reach its application, which is on another broker: take it back."""
        if self.reader is not None:
            self.reader.given_up()
        else:
            self.queue.take_back(message)

    def _encode_for(self, route: Route) -> None:
        tag = BytesWriter()
        put_shortstr(tag, self.tag)
        writer = BytesWriter()
        writer.append(FRAME_METHOD)
        put_u16(writer, self.channel.number)
        put_u32(writer, 4 + len(tag) + 9 + len(route.tail))
        put_u16(writer, BASIC)
        put_u16(writer, BASIC_DELIVER)
        writer.write(tag.getvalue())
        self.head = writer.getvalue()
        self.foot = route.tail + bytes([FRAME_END])
        self.route = route


def consumers_of(queue: Queue) -> list[Consumer]:
    """The consumers of a queue, which only knows what it needs of them."""
    return [each for each in queue.consumers() if isinstance(each, Consumer)]


def _announce(consumer: Consumer, message: Message, redelivered: bool) -> None:
    """Do what comes before a delivery."""
    if consumer.identified:
        put_identity(consumer, message)
    channel = consumer.channel
    tracer = channel.connection.broker.tracer
    if tracer is not None and channel.connection.router.traced:
        tracer.delivered(channel, message, consumer.queue, redelivered)


def put_identity(consumer: Consumer, message: Message) -> None:
    """Write session.message: the next delivery on the channel is this message of this queue."""
    proxy = consumer.proxy
    epoch = consumer.queue.log.epoch if proxy is None else proxy.epoch()
    channel = consumer.channel
    writer = channel.connection.outbox.writer
    writer.append(FRAME_METHOD)
    put_u16(writer, channel.number)
    put_u32(writer, IDENTITY_BYTES)
    put_u16(writer, SESSION)
    put_u16(writer, SESSION_MESSAGE)
    write_i64_be(writer, consumer.queue.id)
    put_u32(writer, epoch)
    write_i64_be(writer, message.index)
    writer.append(FRAME_END)


def put_content(channel: Channel, message: Message) -> None:
    """Write a message's content for a channel. Frames are split again or renumbered where that is
    needed."""
    content = message.content
    connection = channel.connection
    if message.frame_bytes_max > connection.frame_max:
        content = _reframed(connection.broker.turn, content, channel.number, connection.frame_max)
    elif message.channel != channel.number:
        content = _reframed(connection.broker.turn, content, channel.number, 0)
    outbox = connection.outbox
    if len(content) > COPY_BYTES_MAX:
        outbox.put_large(content)
        return
    outbox.writer.write(content)
    if len(outbox.writer) >= PIECE_BYTES:
        outbox.seal()


def _reframed(turn: Turn, content: bytes, number: i64, frame_max: i64) -> bytes:
    """A content in frames for a channel. What goes to many connections in one turn is copied once,
    not for each of them."""
    if len(content) <= COPY_BYTES_MAX:
        return reframe(content, number, frame_max)
    if (
        turn.framed_from is not content
        or turn.framed_channel != number
        or turn.framed_bytes_max != frame_max
    ):
        turn.framed = reframe(content, number, frame_max)
        turn.framed_from = content
        turn.framed_channel = number
        turn.framed_bytes_max = frame_max
    return turn.framed
