"""The methods of the basic class off the hot path: qos, consume, cancel, get, recover."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from rhizome.amqp.field_table import encode_table
from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import (
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicQos,
    BasicQosOk,
    BasicRecoverOk,
)
from rhizome.broker.channel.consumer import Consumer, put_content, put_identity
from rhizome.broker.channel.direct_reply_to import REPLY_QUEUE
from rhizome.broker.channel.resource_lookup import check_read, find_queue, may_tell, queue_name
from rhizome.broker.channel.topology_methods import Reply
from rhizome.broker.channel.unacked import REQUEUE
from rhizome.broker.cluster_port import away_of
from rhizome.broker.erlang_term_text import queue_resource
from rhizome.broker.group_log.log_port import EVERYTHING
from rhizome.broker.message import Message
from rhizome.broker.metadata.declare_and_consume_arguments import check_consume_arguments
from rhizome.broker.metadata.metadata_changes import Outcome
from rhizome.broker.metadata.metadata_commands import QUEUE
from rhizome.broker.queue.queue import Queue
from rhizome.broker.queue.queue_consumer import LEASE_ARGUMENT
from rhizome.broker.queue.redelivered_flag import was_delivered, with_delivery_count
from rhizome.broker.queue_leases.lease_request import check_lease
from rhizome.broker.streams.stream_directory_queue import DIRECTORY_QUEUE, tell_streams
from rhizome.broker.streams.stream_restrictions import check_consumer, is_stream, unsupported
from rhizome.broker.turn import COUNTED_PER_WORK
from rhizome.errors import AccessRefused, NotAllowed, NotImplementedFault, PreconditionFailed

if TYPE_CHECKING:
    from rhizome.broker.channel.channel import Channel
    from rhizome.broker.connection.connection import Connection

CONSUMER_ARGUMENTS_BYTES_MAX: Final = 16 * 1024
"""The largest arguments of one consumer."""
CONSUMER_BYTES: Final = 512
"""What a consumer takes of memory, at least, besides its arguments."""
CONSUMERS_BYTES_MAX: Final = 16 << 20
"""What all consumers of a connection may take together, 32,768 if they have no arguments."""


def qos(channel: Channel, method: BasicQos) -> None:
    """Set the prefetch of later consumers, or with global_ that of the whole channel.

    As in RabbitMQ, a prefetch for consumers removes the channel's.
    """
    if method.prefetch_size != 0:
        raise NotImplementedFault(f"prefetch_size!=0 ({method.prefetch_size})", 60, 10)
    if method.global_:
        channel.prefetch_global = method.prefetch_count
    else:
        channel.prefetch = method.prefetch_count
        channel.prefetch_global = 0
    channel.connection.broker.turn.work += len(channel.consumers) // COUNTED_PER_WORK
    channel.wake_consumers()
    for consumer in channel.consumers.values():
        away = away_of(consumer.queue)
        if away is not None:
            away.prefetch(channel)
    channel.send(BasicQosOk())


def consume(channel: Channel, method: BasicConsume) -> None:
    connection = channel.connection
    name = queue_name(channel, method.queue)
    tag = method.consumer_tag or connection.broker.make_name("amq.ctag-")
    _check_new(channel, tag)
    if name == REPLY_QUEUE:
        _consume_replies(channel, method, tag)
        return
    if name == DIRECTORY_QUEUE:
        tell_streams(channel, method, tag)
        return
    check_read(channel, QUEUE, name)
    queue = find_queue(channel, name)
    _check_kind(queue, method.no_ack, LEASE_ARGUMENT in method.arguments)
    options = check_consume_arguments(queue.vhost, name, method.arguments, queue.options.queue_type)
    if LEASE_ARGUMENT in method.arguments:
        _check_lease(queue, method)
    if is_stream(queue.options):
        check_consumer(queue.vhost, name, method.no_ack, channel.prefetch, method.arguments)
    if queue.away is None:
        check_free(queue, method.exclusive)
    consumer = Consumer(
        tag,
        channel,
        queue,
        method.no_ack,
        method.exclusive,
        options.priority,
        channel.prefetch,
        method.arguments,
    )
    consumer.timeout_ms = options.timeout_ms
    consumer.argument_bytes = _check_size(connection, method.arguments)
    channel.consumers[tag] = consumer
    connection.broker.events.consumer_added(consumer)
    if (away := away_of(queue)) is not None:
        away.consume(consumer, method.no_wait)
        return
    if not method.no_wait:
        channel.send(BasicConsumeOk(tag))
    queue.add_consumer(consumer)


def _check_kind(queue: Queue, no_ack: bool, leases: bool) -> None:
    """Refuse to consume what waits for its time, and a consumer of a keyed queue that doesn't
    acknowledge."""
    if queue.holds:
        raise AccessRefused(
            f"queue '{queue.name}' in vhost '{queue.vhost}' holds messages until they are due; "
            "nobody consumes it"
        )
    if queue.options.group_key is not None and no_ack and not leases:
        text = "is keyed: without acknowledgements nobody knows when a key is free again"
        raise PreconditionFailed(f"{queue_resource(queue.vhost, queue.name)} {text}", 60, 20)


def _check_lease(queue: Queue, method: BasicConsume) -> None:
    check_lease(
        queue_resource(queue.vhost, queue.name),
        queue.options,
        queue.definition.is_private(),
        method.no_ack,
        method.exclusive,
        method.arguments,
    )


def _check_new(channel: Channel, tag: str) -> None:
    if tag in channel.consumers or (
        channel.reply_consumer is not None and channel.reply_consumer.tag == tag
    ):
        raise NotAllowed(f"attempt to reuse consumer tag '{tag}'", 60, 20)


def _check_size(connection: Connection, arguments: dict[str, object]) -> i64:
    """Return what a consumer takes. Refuse arguments that are too large, alone or with the
    connection's other consumers: they are kept as long as the consumer is."""
    size: i64 = len(encode_table(arguments)) if len(arguments) > 0 else 0
    if size > CONSUMER_ARGUMENTS_BYTES_MAX:
        raise PreconditionFailed(
            f"the arguments of a consumer have {size} bytes; at most"
            f" {CONSUMER_ARGUMENTS_BYTES_MAX} are possible"
        )
    size += CONSUMER_BYTES
    if connection.consumer_bytes + size > CONSUMERS_BYTES_MAX:
        connection.consumer_bytes = _kept_bytes(connection)  # without those that are gone
    if connection.consumer_bytes + size > CONSUMERS_BYTES_MAX:
        raise PreconditionFailed(
            "the arguments of this connection's consumers have, with"
            f" {CONSUMER_BYTES} bytes for each, {connection.consumer_bytes + size} bytes; at most"
            f" {CONSUMERS_BYTES_MAX} are possible"
        )
    connection.consumer_bytes += size
    return size


def _kept_bytes(connection: Connection) -> i64:
    kept: i64 = 0
    for channel in connection.channels.values():
        for consumer in channel.consumers.values():
            kept += consumer.argument_bytes
    connection.broker.turn.work += kept // (CONSUMER_BYTES * COUNTED_PER_WORK)
    return kept


def check_free(queue: Queue, exclusive: bool) -> None:
    """Raise AccessRefused if a consumer has exclusive access, or asks for it and can't get it."""
    if queue.exclusive or (exclusive and _is_shared(queue)):
        raise AccessRefused(f"{queue_resource(queue.vhost, queue.name)} in exclusive use")


def _is_shared(queue: Queue) -> bool:
    """Whether nobody can have exclusive access: others consume the queue, or consumers take
    turns."""
    return queue.consumer_count > 0 or queue.options.single_active_consumer


def _consume_replies(channel: Channel, method: BasicConsume, tag: str) -> None:
    broker = channel.connection.broker
    if channel.reply_consumer is not None:
        raise PreconditionFailed("reply consumer already set")
    if not method.no_ack:
        raise PreconditionFailed("reply consumer cannot acknowledge")
    queue = broker.reply_queue(channel.connection.router.vhost)
    consumer = Consumer(tag, channel, queue, True, False, 0, 0, method.arguments)
    channel.reply_consumer = consumer
    channel.reply_token = broker.make_name("")
    broker.replies.register(channel.reply_token, consumer)
    if not method.no_wait:
        channel.send(BasicConsumeOk(tag))


def cancel(channel: Channel, method: BasicCancel) -> None:
    """End a consumer; its unacked deliveries stay with the channel."""
    broker = channel.connection.broker
    tag = method.consumer_tag
    consumer = channel.consumers.pop(tag, None)
    replies = channel.reply_consumer
    if replies is not None and replies.tag == tag:
        broker.replies.forget(channel.reply_token)
        channel.reply_consumer = None
    reply = CancelReply(channel, None if method.no_wait else BasicCancelOk(tag), method)
    if consumer is None or not broker.remove_consumer(consumer, None if method.no_wait else reply):
        reply.resolved(Outcome())
    elif reply.outcome is None:
        reply.late = True
        channel.connection.suspend()


class CancelReply(Reply):
    """Answers basic.cancel, when a queue that ends with its last consumer is gone."""

    def finish(self) -> None:
        if self.method is not None and not self.channel.closing:
            self.channel.send(self.method)


def get(channel: Channel, method: BasicGet) -> None:
    name = queue_name(channel, method.queue)
    check_read(channel, QUEUE, name)
    queue = find_queue(channel, name)
    _check_kind(queue, False, False)
    if is_stream(queue.options):
        raise unsupported("basic.get", queue.vhost, name, 60, 70)
    away = away_of(queue)
    if away is not None:
        away.get(channel, queue, method)
        return
    broker = channel.connection.broker
    message = pull(queue)
    if message is None:
        if queue.is_coming() or not may_tell(queue):
            broker.defer(channel, method)
        else:
            channel.send(BasicGetEmpty())
        return
    _send_pulled(channel, queue, message, method.no_ack)


def pull(queue: Queue) -> Message | None:
    """Take the first message for a client that asked for one.

    Returns None if no message may be delivered now: because it isn't committed (L1), or because
    this broker has no lease (R9) and another home may be about to deliver it. Consumers that can
    take messages get theirs first. A message in its last instant before expiry goes to waiting
    consumers only, not to basic.get.
    """
    now_ms = queue.broker.turn.now_ms
    queue.last_used_ms = now_ms
    if not queue.broker.may_deliver:
        return None
    if queue.ready > 0 and queue.consumer_count > 0:
        queue.dispatch(now_ms)
    if queue.keys is not None:
        return queue.keys.pull(now_ms + 1)
    if queue.log.visible < EVERYTHING and queue.ready > 0 and not queue.may_show_first():
        return None
    return queue.next_message(now_ms + 1)


def _send_pulled(channel: Channel, queue: Queue, message: Message, no_ack: bool) -> None:
    redelivered = was_delivered(queue, message)
    if redelivered:
        queue.redelivered += 1
        message = with_delivery_count(queue, message)
    queue.delivered += 1
    if not no_ack:
        queue.unacked += 1
        if queue.durable_bytes > 0:
            queue.broker.delivered_marks.note(queue, message)
    show_pulled(channel, queue, message, no_ack, redelivered, queue.ready)
    if no_ack:
        queue.forget(message)


def show_pulled(
    channel: Channel, queue: Queue, message: Message, no_ack: bool, redelivered: bool, left: int
) -> None:
    """Answer basic.get with a message, and hold it until it is settled."""
    if no_ack:
        channel.delivery_tag += 1
        tag = channel.delivery_tag
    else:
        holder = pull_consumer(channel, queue)
        tag = channel.hold(message, holder)
        if holder.identified:
            put_identity(holder, message)
    tracer = channel.connection.broker.tracer
    if tracer is not None and channel.connection.router.traced:
        tracer.delivered(channel, message, queue, redelivered)
    route = message.route
    answer = BasicGetOk(tag, redelivered, route.exchange, route.key, left)
    channel.connection.outbox.put(method_frame(channel.number, answer))
    put_content(channel, message)
    channel.connection.touch()


def pull_consumer(channel: Channel, queue: Queue) -> Consumer:
    """The consumer that stands for the messages that a channel pulls from a queue."""
    return _holder(channel, queue, queue.name, True)


def restored_consumer(channel: Channel, queue: Queue) -> Consumer:
    """The consumer that stands for the messages of a queue that a channel held before a consumer
    was cancelled or a client resumed; a prefetch counts them."""
    return _holder(channel, queue, f"\n{queue.name}", False)


def _holder(channel: Channel, queue: Queue, key: str, pulls: bool) -> Consumer:
    consumer = channel.pulls.get(key)
    if consumer is None or consumer.queue is not queue:
        consumer = Consumer("", channel, queue, False, False, 0, 0, {})
        consumer.pulls = pulls
        channel.pulls[key] = consumer
    return consumer


def recover(channel: Channel, requeue: bool, answer: bool) -> None:
    """Requeue everything unacked on the channel, but for what an open transaction settles;
    recover-async is not answered."""
    if not requeue:
        raise NotImplementedFault("requeue=false", 60, 110 if answer else 100)
    tags = channel.unsettled_tags(0)
    channel.check_settle(tags, "basic.recover", 110 if answer else 100)
    channel.settle_all(tags, REQUEUE, BasicRecoverOk() if answer else None)
