"""Messages of one queue into another: copied, and removed once the copy is safe.

A crash between the two leaves a message in both queues, never in none. Nothing is held between
turns: what is copied is what is first in the queue, and what is removed is that and nothing else.
A queue with consumers is refused, since they would have it meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.responses import Response

from rhizome.amqp.frames import body_of, header_payload_of
from rhizome.amqp.properties import decode_properties
from rhizome.broker.channel import Channel
from rhizome.broker.commands import QUEUE
from rhizome.broker.lookup import check_read, find_queue
from rhizome.broker.message import Message
from rhizome.broker.queue import Queue
from rhizome.broker.streams.rules import is_stream
from rhizome.management import bodies, declared, shapes
from rhizome.management.answers import answer
from rhizome.management.auth import MANAGEMENT
from rhizome.management.call import BODY_BYTES_MAX, Call
from rhizome.management.context import Context
from rhizome.management.direct import publish
from rhizome.management.document import parse_document
from rhizome.management.endpoint import Endpoint
from rhizome.management.errors import BadRequest
from rhizome.management.everywhere import at_home
from rhizome.management.messages import look_at
from rhizome.management.queues import check_told, usable_queue

COUNT_MAX: Final = 1000
REMOVE_SECONDS_MAX: Final = 30.0
REMOVE_POLL_SECONDS: Final = 0.01


async def move_messages(call: Call) -> Response:
    """Move the first ready messages; how many there were, and how many are left."""
    channel, queue = usable_queue(call)
    check_read(channel, QUEUE, queue.name)
    body = await call.body(BODY_BYTES_MAX)
    elsewhere = await at_home(call, queue, body)
    if elsewhere is not None:
        return elsewhere
    check_told(queue)
    document = parse_document(body)
    to = document.text("to")
    count = document.number("count", COUNT_MAX)
    if not 1 <= count <= COUNT_MAX:
        raise BadRequest(f"count is {count}; it must be from 1 to {COUNT_MAX}")
    _check(channel, queue, to)
    moved = 0
    while moved < count and await _move_first(call.context, channel, queue, to, moved):
        moved += 1
    return answer({"moved": moved, "left": int(queue.ready)})


def _check(channel: Channel, queue: Queue, to: str) -> None:
    if to == queue.name:
        raise BadRequest(f"queue '{to}' can't be moved into itself")
    if to not in channel.connection.vhost.destinations:
        raise BadRequest(f"there is no queue '{to}' in vhost '{queue.vhost}'")
    if is_stream(queue.options):
        raise BadRequest(f"queue '{queue.name}' is a stream: its messages stay; read them instead")
    find_queue(channel, to)  # a private one is its owner's alone
    if queue.consumer_count:
        raise BadRequest(
            f"queue '{queue.name}' has consumers, which would take messages meanwhile; stop them"
        )


async def _move_first(
    context: Context, channel: Channel, queue: Queue, to: str, moved: int
) -> bool:
    found = await look_at(context, queue, 0, 1)
    if not found:
        return False
    message = found[0].message
    properties = decode_properties(header_payload_of(message.content))
    if not await publish(context, channel, "", to, properties, body_of(message.content)):
        raise BadRequest(f"moved {moved}, then queue '{to}' refused a message")
    if not await _remove(context, queue, message):
        raise BadRequest(
            f"moved {moved}; the next message was taken meanwhile, or the queue has got another"
            f" home: it may be in both queues; look at '{to}' and try again"
        )
    return True


async def _remove(context: Context, queue: Queue, copied: Message) -> bool:
    """Remove the first message if it is the one that was copied.

    One that is on its way to disk can't be had for a while: that is waited for, or it would be in
    both queues. A queue that has got another home meanwhile has nothing here any more.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + REMOVE_SECONDS_MAX
    first = _next(context, queue)
    while first is None and queue.ready and not queue.deleted and loop.time() < deadline:
        await asyncio.sleep(REMOVE_POLL_SECONDS)
        first = _next(context, queue)
    if first is None:
        return False
    queue.unacked += 1
    queue.delivered += 1
    if first.index != copied.index:
        queue.requeue(first)
        return False
    queue.ack(first)
    return True


def _next(context: Context, queue: Queue) -> Message | None:
    context.shell.begin_turn()
    return queue.next_message(queue.broker.turn.now_ms)


ENDPOINTS: Final = (
    Endpoint(
        "POST",
        "/api/rhizome/queues/{vhost}/{name}/move",
        MANAGEMENT,
        move_messages,
        declared.row_of(shapes.MOVED),
        bodies.MOVE_MESSAGES,
    ),
)
