"""The directory of streams: the streams of a vhost, for readers that choose by a pattern.

A consumer of the queue ``amq.rhizome.streams`` without acks gets one delivery with the names of the
streams that it may read, and nothing after it. Any broker answers, from the topology that all of
them have. A vhost may have many queues, so an answer covers ``QUEUES_LOOKED_AT_MAX`` of them: its
header ``x-stream-next`` is the value of ``x-stream-from`` for the next request, or -1 at the end.

The body has one short string per name.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter

from rhizome.amqp.methods import BasicConsume, BasicConsumeOk
from rhizome.amqp.primitives import put_shortstr
from rhizome.broker.channel.consumer import Consumer
from rhizome.broker.message import Message
from rhizome.broker.message_batch_content import FRAME_BYTES_MAX, bulk_content, put_number
from rhizome.broker.queue.queue import Queue
from rhizome.broker.streams.chunk_delivery import chunk_tail
from rhizome.broker.streams.stream_restrictions import is_stream
from rhizome.errors import PreconditionFailed
from rhizome.journal.streams.stream_format import CONTENT_CHANNEL

if TYPE_CHECKING:
    from rhizome.broker.channel.channel import Channel

DIRECTORY_QUEUE: Final = "amq.rhizome.streams"
FROM_ARGUMENT: Final = "x-stream-from"
QUEUES_LOOKED_AT_MAX: Final = 5_000
QUEUES_PER_WORK: Final = 10
"""How many queues are passed over for one unit of a turn's work; a stream is a unit of its own."""


def tell_streams(channel: Channel, method: BasicConsume, tag: str) -> None:
    """Answer a consumer of the directory."""
    start = method.arguments.get(FROM_ARGUMENT, 0)
    if isinstance(start, bool) or not isinstance(start, int) or start < 0:
        text = f"invalid arg '{FROM_ARGUMENT}' for queue '{DIRECTORY_QUEUE}': it must be 0 or more"
        raise PreconditionFailed(text, 60, 20)
    if not method.no_ack:
        text = f"consumers of queue '{DIRECTORY_QUEUE}' cannot acknowledge: set no-ack"
        raise PreconditionFailed(text, 60, 20)
    if not method.no_wait:
        channel.send(BasicConsumeOk(tag))
    broker = channel.connection.broker
    consumer = Consumer(
        tag,
        channel,
        broker.reply_queue(channel.connection.router.vhost),
        True,
        False,
        0,
        0,
        method.arguments,
    )
    route = broker.pager.route(chunk_tail(DIRECTORY_QUEUE))
    content = _content(channel, min(start, 1 << 40))
    consumer.deliver(Message(route, content, CONTENT_CHANNEL, FRAME_BYTES_MAX), False)


def _content(channel: Channel, start: int) -> bytes:
    connection = channel.connection
    router = connection.router
    body = BytesWriter()
    after = start + QUEUES_LOOKED_AT_MAX
    count = 0
    for queue in islice(router.queues.values(), start, after):
        if isinstance(queue, Queue) and is_stream(queue.options):
            if connection.identity.may_read(router.vhost, queue.name):
                put_shortstr(body, queue.name)
                count += 1
    looked_at = min(after, len(router.queues))
    connection.broker.turn.work += looked_at // QUEUES_PER_WORK + count
    table = BytesWriter()
    put_number(table, "x-stream-count", count)
    put_number(table, "x-stream-next", after if after < len(router.queues) else -1)
    return bulk_content(table, body.getvalue())
