"""/api/queues: look at queues, declare, purge and delete them."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from rhizome.broker.channel import Channel
from rhizome.broker.commands import EXCHANGE, QUEUE, DeclareQueue, DeleteQueue
from rhizome.broker.lookup import check_configure, check_read, check_write, find_queue
from rhizome.broker.names import check_declarable_name
from rhizome.broker.queue import Queue
from rhizome.broker.vhost import VHost
from rhizome.broker.words import queue_resource
from rhizome.errors import PreconditionFailed
from rhizome.management.answers import answer, created, done, listed
from rhizome.management.auth import MANAGEMENT
from rhizome.management.call import Call
from rhizome.management.direct import open_channel
from rhizome.management.endpoint import Endpoint
from rhizome.management.errors import ObjectNotFound
from rhizome.management.proposals import propose
from rhizome.management.rows import queue_details, queue_row


def usable_queue(call: Call) -> tuple[Channel, Queue]:
    """The queue in the path and a channel to use it with; private ones are their owner's alone."""
    vhost = call.vhost()
    if call.name() not in vhost.destinations:
        raise ObjectNotFound
    channel = open_channel(call.context.broker, vhost, call.caller)
    return channel, find_queue(channel, call.name())


async def list_queues(call: Call) -> Response:
    found = [
        queue
        for vhost in call.vhosts()
        for queue in vhost.destinations.values()
        if isinstance(queue, Queue)
    ]
    return await listed(call, found, lambda queue: queue_row(call.context, queue))


async def show_queue(call: Call) -> Response:
    return answer(queue_details(call.context, call.queue()))


async def declare_queue(call: Call) -> Response:
    vhost = call.vhost()
    name = call.name()
    document = await call.document()
    command = DeclareQueue(
        vhost.name,
        name,
        document.flag("durable"),
        document.flag("auto_delete"),
        "",
        document.table("arguments"),
        user=call.caller.user,
    )
    is_new = name not in vhost.destinations
    _check_declare(call, vhost, command, is_new)
    await propose(call.context, command)
    return created(is_new)


def _check_declare(call: Call, vhost: VHost, command: DeclareQueue, is_new: bool) -> None:
    """What a session asks before it declares a queue."""
    broker = call.context.broker
    channel = open_channel(broker, vhost, call.caller)
    if is_new:
        check_declarable_name(QUEUE, command.name)
    else:
        find_queue(channel, command.name)
    check_configure(channel, QUEUE, command.name)
    dead_letter = command.arguments.get("x-dead-letter-exchange")
    if isinstance(dead_letter, str):
        check_read(channel, QUEUE, command.name)
        check_write(channel, EXCHANGE, dead_letter)
    if is_new:
        broker.limits.check_queue()


async def delete_queue(call: Call) -> Response:
    channel, queue = usable_queue(call)
    check_configure(channel, QUEUE, queue.name)
    where = queue_resource(queue.vhost, queue.name)
    if call.flag("if-unused") and queue.consumer_count > 0:
        raise PreconditionFailed(f"{where} in use")
    if call.flag("if-empty") and queue.ready > 0:
        raise PreconditionFailed(f"{where} is not empty")
    await propose(call.context, DeleteQueue(queue.vhost, queue.name, queue.definition.id))
    return done()


async def purge_queue(call: Call) -> Response:
    channel, queue = usable_queue(call)
    check_read(channel, QUEUE, queue.name)
    call.context.shell.begin_turn()
    queue.purge()
    return done()


ENDPOINTS: Final = (
    Endpoint("GET", "/api/queues", MANAGEMENT, list_queues),
    Endpoint("GET", "/api/queues/{vhost}", MANAGEMENT, list_queues),
    Endpoint("GET", "/api/queues/{vhost}/{name}", MANAGEMENT, show_queue),
    Endpoint("PUT", "/api/queues/{vhost}/{name}", MANAGEMENT, declare_queue),
    Endpoint("DELETE", "/api/queues/{vhost}/{name}", MANAGEMENT, delete_queue),
    Endpoint("DELETE", "/api/queues/{vhost}/{name}/contents", MANAGEMENT, purge_queue),
)
