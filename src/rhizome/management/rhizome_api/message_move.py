"""Message move: puts messages of one queue straight into another, and removes them once they are
safe.

A message is not published again: no exchange routes it, and its own headers (CC, its producer's
sequence, a user) neither get the rights of the caller nor keep it from being moved.

Queues of one log (all of a standalone broker, and those of one group) have both sides in one
record. Otherwise an admin consumer holds each message meanwhile: if the home of its queue changes,
the next home removes it. Then only a crash of this broker leaves a message in both queues, never in
none; the one that stayed is marked as redelivered. A queue with consumers is refused, because
messages would go both ways.
"""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from rhizome.broker.channel.channel import Channel
from rhizome.broker.channel.resource_lookup import check_read, check_write, find_queue
from rhizome.broker.message import Message
from rhizome.broker.metadata.metadata_commands import QUEUE
from rhizome.broker.publishing.delayed_messages import DELAYED_QUEUE
from rhizome.broker.queue.admin_consumer import AdminConsumer
from rhizome.broker.queue.queue import Queue
from rhizome.broker.streams.stream_restrictions import is_stream
from rhizome.management.api_context import Context
from rhizome.management.direct_channel import check_open, until_confirmed
from rhizome.management.errors import ApiError, BadRequest, Unavailable
from rhizome.management.http.api_call import BODY_BYTES_MAX, Call
from rhizome.management.http.auth import MANAGEMENT
from rhizome.management.http.endpoint import POST
from rhizome.management.http.json_body import parse_document
from rhizome.management.http.json_responses import answer
from rhizome.management.openapi import rabbitmq_schemas, request_schemas
from rhizome.management.openapi.endpoint_shapes import row_of
from rhizome.management.peers.cluster_wide_queries import at_home
from rhizome.management.rabbitmq_api.queue_messages import until_taken
from rhizome.management.rabbitmq_api.queues import check_told, usable_queue

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
    if queue.consumer_count:
        raise BadRequest(
            f"queue '{queue.name}' has consumers, which would take messages meanwhile; stop them"
        )
    target = move_target(channel, queue, to)
    moved = 0
    admin_consumer = AdminConsumer(call.context.broker, f"moves messages of queue '{queue.name}'")
    try:
        while moved < count and await _move_first(
            call.context, channel, admin_consumer, queue, target
        ):
            moved += 1
    except ApiError as error:
        raise type(error)(f"moved {moved}, then {error.reason}") from None
    finally:
        call.context.shell.begin_turn()
        admin_consumer.end()
    return answer({"moved": moved, "left": int(queue.ready)})


def move_target(channel: Channel, queue: Queue, to: str) -> Queue:
    """The queue that messages go to, if the caller may put them there."""
    if to == queue.name:
        raise BadRequest(f"queue '{to}' can't be moved into itself")
    if to not in channel.connection.vhost.destinations:
        raise BadRequest(f"there is no queue '{to}' in vhost '{queue.vhost}'")
    if is_stream(queue.options):
        raise BadRequest(f"queue '{queue.name}' is a stream: its messages stay; read them instead")
    if to == DELAYED_QUEUE:
        raise BadRequest(f"queue '{to}' has what exchanges delay; name the queue it is to go to")
    check_write(channel, QUEUE, to)
    target = find_queue(channel, to)  # a private one is for its owner alone
    if target.of_broker:
        raise BadRequest(f"queue '{to}' is the broker's own; name another one")
    return target


async def _move_first(
    context: Context, channel: Channel, admin_consumer: AdminConsumer, queue: Queue, target: Queue
) -> bool:
    """Move the first message; False if there is none."""
    check_open(context.broker)
    message = await until_taken(context, queue, lambda: admin_consumer.take(queue))
    if message is None:
        return False
    # Taking it may have taken a while; from here to the copy nothing comes between.
    await move_held(context, channel, admin_consumer, message, target)
    return True


async def move_held(
    context: Context,
    channel: Channel,
    admin_consumer: AdminConsumer,
    message: Message,
    target: Queue,
) -> None:
    """Put the held message, as ``message`` has it, at the end of a queue, and remove it where it
    was once it is safe there."""
    _check_there(target)
    if not admin_consumer.move(message, target, channel):
        raise BadRequest(f"queue '{target.name}' refused a message")
    try:
        copied = await until_confirmed(channel)
    except Unavailable as error:
        doubled = " It may be in both queues then" if admin_consumer.holds() else ""
        raise Unavailable(f"{error.reason}{doubled}") from None
    if not copied:
        raise BadRequest(_refusal(target))
    if admin_consumer.holds():
        _check_there(target)
    context.shell.begin_turn()
    admin_consumer.done()


def _check_there(target: Queue) -> None:
    """A message copied into a queue that was deleted went with it, and must stay where it was."""
    if target.deleted:
        raise BadRequest(f"queue '{target.name}' was deleted")


def _refusal(target: Queue) -> str:
    """What a home elsewhere did with a message that it refused."""
    refused = f"queue '{target.name}' refused a message"
    if target.options.overflow == "reject-publish-dlx":
        return f"{refused}, and dead-lettered a copy of it"
    return refused


ENDPOINTS: Final = (
    POST(
        "/api/rhizome/queues/{vhost}/{name}/move",
        MANAGEMENT,
        move_messages,
        row_of(rabbitmq_schemas.MOVED),
        request_schemas.MOVE_MESSAGES,
    ),
)
