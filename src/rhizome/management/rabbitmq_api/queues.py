"""/api/queues: show queues, declare, purge and delete them.

A shared queue is active on one broker, its home; requests about its contents are carried out there.
"""

from __future__ import annotations

import json
from itertools import chain
from typing import Final
from urllib.parse import quote

from starlette.responses import Response

from rhizome.broker.channel.channel import Channel
from rhizome.broker.channel.resource_lookup import (
    check_configure,
    check_read,
    check_write,
    find_queue,
    may_tell,
)
from rhizome.broker.erlang_term_text import queue_resource
from rhizome.broker.metadata.metadata_commands import EXCHANGE, QUEUE, DeclareQueue, DeleteQueue
from rhizome.broker.metadata.new_queue_arguments import (
    check_proposed_queue,
    default_type,
    with_default_type,
)
from rhizome.broker.metadata.resource_names import check_declarable_name
from rhizome.broker.metadata.vhost import VHost
from rhizome.broker.queue.queue import Queue
from rhizome.broker.streams.stream_restrictions import is_stream, unsupported
from rhizome.errors import PreconditionFailed
from rhizome.management.api_context import Context
from rhizome.management.direct_channel import open_channel, purge
from rhizome.management.errors import BadRequest, ObjectNotFound, Unavailable
from rhizome.management.http.api_call import Call
from rhizome.management.http.auth import ADMINISTRATOR, MANAGEMENT
from rhizome.management.http.cooperative_yield import Pace
from rhizome.management.http.endpoint import DELETE, GET, POST, PUT
from rhizome.management.http.json_responses import (
    Row,
    answer,
    created,
    done,
    is_plain_page,
    page_part,
    shown_row,
)
from rhizome.management.openapi import rabbitmq_schemas, request_schemas
from rhizome.management.openapi.endpoint_shapes import (
    DONE,
    FLAG,
    MADE,
    Parameter,
    columns_of,
    done_of,
    list_of,
    row_of,
    rows_of,
)
from rhizome.management.peers.cluster_wide_queries import (
    at_home,
    documents,
    listed_everywhere,
    part_and_others,
    rows_elsewhere,
    wherever,
)
from rhizome.management.peers.peer_requests import PeerUnreachable
from rhizome.management.rabbitmq_api.json_rows import absent_queue_row, consumer_row, queue_row
from rhizome.management.state_proposals import propose

ACTIONS: Final = ("sync", "cancel_sync")
IF_UNUSED: Final = Parameter("if-unused", FLAG, "Only if it has no consumers")
IF_EMPTY: Final = Parameter("if-empty", FLAG, "Only if it has no messages")
WITH_DEPTHS: Final = Parameter("history", FLAG, "With the depths of the last minutes")
LISTED: Final = rows_of(rabbitmq_schemas.QUEUE, WITH_DEPTHS)


def usable_queue(call: Call) -> tuple[Channel, Queue]:
    """The queue in the path and a channel to use it with; private ones are for their owner
    alone."""
    vhost = call.vhost()
    if call.name() not in vhost.destinations:
        raise ObjectNotFound
    channel = open_channel(call.context.broker, vhost, call.caller)
    return channel, find_queue(channel, call.name())


def check_told(queue: Queue) -> None:
    """Refuse to report on queues while this home has no lease, or is just taking over (R9, A2)."""
    if queue.away is not None or not may_tell(queue):
        reason = queue.broker.isolation or "its home is changing"
        raise Unavailable(
            f"queue '{queue.name}' in vhost '{queue.vhost}' can't be used now: {reason}; try again"
        )


# ---- looking ------------------------------------------------------------------------------------


async def list_queues(call: Call) -> Response:
    """Every broker lists what is active there; queues whose home is silent are shown as down."""
    with_history = call.flag("history")

    def row(queue: Queue) -> Row:
        if queue.away is not None:
            return absent_queue_row(call.context, queue)
        found = queue_row(call.context, queue)
        if with_history:
            found["depths"] = call.context.rates.history.depths(int(queue.id))
        return found

    elsewhere = None if call.asked else await rows_elsewhere(call)
    silent = [] if elsewhere is None else elsewhere.silent
    answering = [name for name in call.context.others.names() if name not in silent]
    everybody = not silent and (elsewhere is None or not _is_any_absent(call, answering))
    if is_plain_page(call) and everybody:
        part = await page_part(call, await _in_order(call), _brief)
        return await part_and_others(call, part, row, elsewhere)
    here, away = await _found(call)
    if elsewhere is None:
        return await listed_everywhere(call, here, row, brief=_brief)
    seen = elsewhere.names
    absent = (
        queue
        for queue in away
        if (queue.vhost, queue.name) not in seen
        and call.context.others.home_of(queue) not in answering
    )
    return await listed_everywhere(call, chain(here, absent), row, elsewhere, _brief)


def _is_any_absent(call: Call, answering: list[str]) -> bool:
    """Whether a group has a home that doesn't answer. All queues of a group have the same home."""
    others = call.context.others
    for queues in list(call.context.broker.shared_by_group.values()):
        first = next(iter(queues.values()))
        if first.away is not None and others.home_of(first) not in answering:
            return True
    return False


async def _in_order(call: Call) -> list[list[Queue]]:
    """The queues that are active here by name, vhost by vhost."""
    context = call.context
    context.queue_order.keep_only(context.broker.state.vhosts)
    return [await context.queue_order.active(vhost) for vhost in call.vhosts()]


async def _found(call: Call) -> tuple[list[Queue], list[Queue]]:
    """The queues of the vhosts in question: those that are active here, and the others."""
    pace = Pace()
    here: list[Queue] = []
    away: list[Queue] = []
    for vhost in call.vhosts():
        for queue in list(vhost.destinations.values()):
            if isinstance(queue, Queue):
                (here if queue.away is None else away).append(queue)
            if pace.is_due():
                await pace.rest()
    return here, away


def _brief(queue: Queue) -> Row:
    return {"vhost": queue.vhost, "name": queue.name}


async def show_queue(call: Call) -> Response:
    vhost = call.vhost()
    queue = vhost.destinations.get(call.name())
    if not isinstance(queue, Queue):
        if call.asked:
            raise ObjectNotFound
        # It may be a private queue of a connection elsewhere.
        return await wherever(call)
    row = await _row(call, queue)
    if not call.asked or queue.definition.is_private():
        row["consumer_details"] = await _consumers(call, queue)
    return shown_row(call, row)


async def _row(call: Call, queue: Queue) -> Row:
    details: Row = {"incoming": [], "deliveries": []}
    if queue.away is None:
        return {**queue_row(call.context, queue), **details}
    try:
        elsewhere = await at_home(call, queue)
    except PeerUnreachable:
        return {**absent_queue_row(call.context, queue), **details}
    found: Row = json.loads(bytes(elsewhere.body)) if elsewhere is not None else {}
    return found


async def _consumers(call: Call, queue: Queue) -> list[Row]:
    """The consumers of a queue, each as the broker of its connection knows it."""
    rows = await own_consumers(call.context, queue.vhost, queue.name)
    if not queue.definition.is_private():
        question = call.question(consumers_path(queue.vhost, queue.name))
        found, _ = await documents(call, question)
        for more in found.values():
            rows += more
    return rows


def consumers_path(vhost: str, queue: str) -> str:
    parts = (quote(part, safe="", errors="surrogateescape") for part in (vhost, queue))
    return "/api/rhizome/queues/" + "/".join(parts) + "/consumers"


async def own_consumers(context: Context, vhost: str, queue: str) -> list[Row]:
    pace = Pace()
    rows: list[Row] = []
    for connection in list(context.broker.connections.values()):
        if connection.router.vhost == vhost:
            rows += [
                consumer_row(context, consumer)
                for channel in connection.channels.values()
                for consumer in channel.consumers.values()
                if consumer.queue.name == queue
            ]
        if pace.is_due():
            await pace.rest()
    return rows


async def list_own_consumers(call: Call) -> Response:
    """The consumers of a queue that are connected to this broker."""
    return answer(await own_consumers(call.context, call.vhost().name, call.name()))


async def show_history(call: Call) -> Response:
    """The last minutes of a queue, in columns."""
    queue = call.queue()
    elsewhere = await at_home(call, queue)
    if elsewhere is not None:
        return elsewhere
    return answer(call.context.rates.history.row(int(queue.id)))


# ---- changing -----------------------------------------------------------------------------------


async def declare_queue(call: Call) -> Response:
    vhost = call.vhost()
    name = call.name()
    check_configure(open_channel(call.context.broker, vhost, call.caller), QUEUE, name)
    document = await call.document()
    durable, auto_delete = document.flag("durable"), document.flag("auto_delete")
    kind = default_type(call.context.broker.state.parameters, vhost.name)
    there = vhost.queues[name].options.queue_type if name in vhost.queues else ""
    arguments = document.table("arguments")
    command = DeclareQueue(
        vhost.name,
        name,
        durable,
        auto_delete,
        "",
        with_default_type(kind, there, arguments, durable, False, auto_delete),
        user=call.caller.user,
    )
    is_new = name not in vhost.destinations
    _check_declare(call, vhost, command, is_new)
    await propose(call.context, command)
    return created(is_new)


def _check_declare(call: Call, vhost: VHost, command: DeclareQueue, is_new: bool) -> None:
    """The checks that a session makes before it declares a queue."""
    broker = call.context.broker
    channel = open_channel(broker, vhost, call.caller)
    if is_new:
        check_declarable_name(QUEUE, command.name)
        check_proposed_queue(command.vhost, command.name, command.arguments)
    else:
        find_queue(channel, command.name)
    check_configure(channel, QUEUE, command.name)
    dead_letter = command.arguments.get("x-dead-letter-exchange")
    if is_new and isinstance(dead_letter, str):
        check_read(channel, QUEUE, command.name)
        check_write(channel, EXCHANGE, dead_letter)
    if is_new:
        broker.limits.check_queue()


async def delete_queue(call: Call) -> Response:
    channel, queue = usable_queue(call)
    check_configure(channel, QUEUE, queue.name)
    if call.flag("if-unused") or call.flag("if-empty"):
        # Only its home knows. Without a condition a queue can be deleted while its home is away.
        elsewhere = await at_home(call, queue)
        if elsewhere is not None:
            return elsewhere
        check_told(queue)
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
    if is_stream(queue.options):
        raise unsupported("queue.purge", queue.vhost, queue.name, 50, 30)
    elsewhere = await at_home(call, queue)
    if elsewhere is not None:
        return elsewhere
    check_told(queue)
    await purge(call.context, channel, queue.name)
    return done()


async def act_on_queue(call: Call) -> Response:
    """RabbitMQ's tools ask mirrors to synchronise; copies here do so by themselves."""
    call.queue()
    action = (await call.document()).text("action")
    if action not in ACTIONS:
        raise BadRequest(f"unknown action {json.dumps(action[:40])}")
    return done()


ENDPOINTS: Final = (
    GET("/api/queues", MANAGEMENT, list_queues, LISTED),
    GET("/api/queues/{vhost}", MANAGEMENT, list_queues, LISTED),
    GET(
        "/api/queues/{vhost}/{name}",
        MANAGEMENT,
        show_queue,
        columns_of(rabbitmq_schemas.QUEUE_WHOLE),
    ),
    PUT("/api/queues/{vhost}/{name}", MANAGEMENT, declare_queue, MADE, request_schemas.QUEUE),
    DELETE("/api/queues/{vhost}/{name}", MANAGEMENT, delete_queue, done_of(IF_UNUSED, IF_EMPTY)),
    DELETE("/api/queues/{vhost}/{name}/contents", MANAGEMENT, purge_queue, DONE),
    POST(
        "/api/queues/{vhost}/{name}/actions",
        ADMINISTRATOR,
        act_on_queue,
        DONE,
        request_schemas.QUEUE_ACTION,
    ),
    GET(
        "/api/rhizome/queues/{vhost}/{name}/consumers",
        MANAGEMENT,
        list_own_consumers,
        list_of(rabbitmq_schemas.CONSUMER),
    ),
    GET(
        "/api/rhizome/queues/{vhost}/{name}/history",
        MANAGEMENT,
        show_history,
        row_of(rabbitmq_schemas.HISTORY),
    ),
)
