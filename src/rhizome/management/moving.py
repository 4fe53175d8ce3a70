"""Messages of one queue into another: put straight there, and removed once they are safe.

A message is not published again: no exchange routes it, and nothing that it says of itself (CC, its
producer's number, a user) has the rights of whoever moves it, or keeps it from being moved.

Queues of one log (all of a lone broker's, and those of one group) have both sides in one record.
Else each message is held meanwhile, as by an application: if the home of its queue changes, the
next one removes it. Only a crash of this broker then leaves a message in both queues, never in
none; the one that stayed is marked as redelivered. A queue with consumers is refused: messages
would go both ways.
"""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from rhizome.broker.channel import Channel
from rhizome.broker.commands import QUEUE
from rhizome.broker.delayed import DELAYED_QUEUE
from rhizome.broker.errand import Errand
from rhizome.broker.lookup import check_read, check_write, find_queue
from rhizome.broker.queue import Queue
from rhizome.broker.streams.rules import is_stream
from rhizome.management import bodies, declared, shapes
from rhizome.management.answers import answer
from rhizome.management.auth import MANAGEMENT
from rhizome.management.call import BODY_BYTES_MAX, Call
from rhizome.management.context import Context
from rhizome.management.direct import check_open, until_confirmed
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
    target = _target(channel, queue, to)
    moved = 0
    errand = Errand(call.context.broker, f"moves messages of queue '{queue.name}'")
    try:
        while moved < count and await _move_first(call.context, channel, errand, queue, target):
            moved += 1
    except ApiError as error:
        raise type(error)(f"moved {moved}, then {error.reason}") from None
    finally:
        call.context.shell.begin_turn()
        errand.end()
    return answer({"moved": moved, "left": int(queue.ready)})


def _target(channel: Channel, queue: Queue, to: str) -> Queue:
    """The queue that messages go to, if whoever asks may have them there."""
    if to == queue.name:
        raise BadRequest(f"queue '{to}' can't be moved into itself")
    if to not in channel.connection.vhost.destinations:
        raise BadRequest(f"there is no queue '{to}' in vhost '{queue.vhost}'")
    if is_stream(queue.options):
        raise BadRequest(f"queue '{queue.name}' is a stream: its messages stay; read them instead")
    if to == DELAYED_QUEUE:
        raise BadRequest(f"queue '{to}' has what exchanges delay; name the queue it is to go to")
    check_write(channel, QUEUE, to)
    target = find_queue(channel, to)  # a private one is its owner's alone
    if queue.consumer_count:
        raise BadRequest(
            f"queue '{queue.name}' has consumers, which would take messages meanwhile; stop them"
        )
    return target


async def _move_first(
    context: Context, channel: Channel, errand: Errand, queue: Queue, target: Queue
) -> bool:
    """False if there is none."""
    check_open(context.broker)
    message = await until_taken(context, queue, lambda: errand.take(queue))
    if message is None:
        return False
    # It may have taken a while; from here to the copy nothing comes between.
    _check_there(target)
    if not errand.move(message, target, channel):
        raise BadRequest(f"queue '{target.name}' refused a message")
    try:
        copied = await until_confirmed(channel)
    except Unavailable as error:
        doubled = " It may be in both queues then" if errand.holds() else ""
        raise Unavailable(f"{error.reason}{doubled}") from None
    if not copied:
        raise BadRequest(_refusal(target))
    if errand.holds():
        _check_there(target)
    context.shell.begin_turn()
    errand.done()
    return True


def _check_there(target: Queue) -> None:
    """What was copied into a queue that is deleted went with it, and must stay where it was."""
    if target.deleted:
        raise BadRequest(f"queue '{target.name}' was deleted")


def _refusal(target: Queue) -> str:
    """What a home elsewhere has done with what it refused."""
    refused = f"queue '{target.name}' refused a message"
    if target.options.overflow == "reject-publish-dlx":
        return f"{refused}, and dead-lettered a copy of it"
    return refused


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
