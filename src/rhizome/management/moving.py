"""Messages of one queue into another: copied, and removed once the copy is safe.

Each is held meanwhile, as by an application: if the home of the queue changes between the two, the
next one removes it. Only a crash of this broker then leaves a message in both queues, never in
none. A queue with consumers is refused: messages would go both ways.
"""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from rhizome.amqp.frames import body_of, header_payload_of
from rhizome.amqp.properties import decode_properties
from rhizome.broker.channel import Channel
from rhizome.broker.commands import QUEUE
from rhizome.broker.errand import Errand
from rhizome.broker.lookup import check_read, find_queue
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
from rhizome.management.errors import ApiError, BadRequest, Unavailable
from rhizome.management.everywhere import at_home
from rhizome.management.messages import until_taken
from rhizome.management.queues import check_told, usable_queue

COUNT_MAX: Final = 1000


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
    errand = Errand(call.context.broker, f"moves messages of queue '{queue.name}'")
    try:
        while moved < count and await _move_first(call.context, channel, errand, queue, to):
            moved += 1
    except ApiError as error:
        raise type(error)(f"moved {moved}, then {error.reason}") from None
    finally:
        call.context.shell.begin_turn()
        errand.end()
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
    context: Context, channel: Channel, errand: Errand, queue: Queue, to: str
) -> bool:
    """False if there is none."""
    message = await until_taken(context, queue, lambda: errand.take(queue))
    if message is None:
        return False
    properties = decode_properties(header_payload_of(message.content))
    try:
        copied = await publish(context, channel, "", to, properties, body_of(message.content))
    except Unavailable as error:
        raise Unavailable(f"{error.reason} It may be in both queues then") from None
    if not copied:
        raise BadRequest(f"queue '{to}' refused a message")
    context.shell.begin_turn()
    errand.done()
    return True


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
