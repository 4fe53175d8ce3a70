"""/api/bindings, and the bindings of one exchange or queue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Final
from urllib.parse import quote

from starlette.responses import Response

from rhizome.broker.channel.channel import Channel
from rhizome.broker.channel.resource_lookup import check_read, check_write, find_queue
from rhizome.broker.metadata.metadata_commands import EXCHANGE, QUEUE, Bind, Unbind
from rhizome.broker.metadata.resource_names import check_not_default_exchange
from rhizome.broker.metadata.vhost import VHost
from rhizome.broker.queue.queue import Queue
from rhizome.broker.routing.bindings_and_destinations import Binding, Destination
from rhizome.broker.routing.exchange import Exchange
from rhizome.errors import AccessRefused
from rhizome.management.direct_channel import open_channel
from rhizome.management.errors import ObjectNotFound
from rhizome.management.http.api_call import Call
from rhizome.management.http.auth import MANAGEMENT
from rhizome.management.http.endpoint import DELETE, GET, POST, Endpoint
from rhizome.management.http.json_responses import Row, answer, created, done, listed
from rhizome.management.openapi import rabbitmq_schemas, request_schemas
from rhizome.management.openapi.endpoint_shapes import DONE, MADE, row_of, rows_of
from rhizome.management.peers.cluster_wide_queries import listed_everywhere, no_rows, rows_elsewhere
from rhizome.management.rabbitmq_api.exchanges import find_exchange
from rhizome.management.rabbitmq_api.json_rows import (
    DEFAULT_EXCHANGE,
    binding_row,
    default_binding_row,
    is_shown,
    properties_key,
)
from rhizome.management.state_proposals import propose


def _same(row: Row) -> Row:
    return row


# ---- looking ------------------------------------------------------------------------------------


async def list_bindings(call: Call) -> Response:
    """Bindings of private queues are known to their own broker only, all others to everybody."""
    rows: Iterator[Row] = (row for vhost in call.vhosts() for row in _rows_of(vhost, call.asked))
    return await listed_everywhere(call, rows, _same)


def _rows_of(vhost: VHost, private_only: bool) -> Iterator[Row]:
    for queue in list(vhost.destinations.values()):
        if is_private(queue) or not private_only:
            yield default_binding_row(queue)
    for exchange in list(vhost.router.exchanges.values()):
        for binding in exchange.bindings():
            if is_shown(binding) and (is_private(binding.destination) or not private_only):
                yield binding_row(vhost.name, binding)


def is_private(destination: Destination) -> bool:
    return isinstance(destination, Queue) and destination.definition.is_private()


async def list_bindings_of_queue(call: Call) -> Response:
    queue = call.vhost().destinations.get(call.name())
    rows: Iterable[Row] = ()
    elsewhere = no_rows()
    if isinstance(queue, Queue):
        found = (binding_row(queue.vhost, binding) for binding in list(queue.incoming))
        rows = chain([default_binding_row(queue)], found)
    elif call.asked:
        raise ObjectNotFound
    else:
        elsewhere = await rows_elsewhere(call)
        if not elsewhere.answered:
            raise ObjectNotFound
    return await listed_everywhere(call, rows, _same, elsewhere)


async def list_bindings_from_exchange(call: Call) -> Response:
    vhost = call.vhost()
    exchange = find_exchange(call, vhost)
    if exchange.name == "":
        queues = list(vhost.destinations.values())
        rows = (
            default_binding_row(queue) for queue in queues if is_private(queue) or not call.asked
        )
    else:
        rows = (
            binding_row(vhost.name, binding)
            for binding in exchange.bindings()
            if is_shown(binding) and (is_private(binding.destination) or not call.asked)
        )
    return await listed_everywhere(call, rows, _same)


async def list_bindings_to_exchange(call: Call) -> Response:
    vhost = call.vhost()
    incoming = [binding for binding in find_exchange(call, vhost).incoming if is_shown(binding)]
    return await listed(call, incoming, lambda binding: binding_row(vhost.name, binding))


# ---- between two --------------------------------------------------------------------------------


def _ends(call: Call, vhost: VHost, kind: str) -> tuple[Exchange, Destination]:
    name = call.name("source")
    source = vhost.router.exchanges.get("" if name == DEFAULT_EXCHANGE else name)
    table = vhost.destinations if kind == QUEUE else vhost.router.exchanges
    destination = table.get(call.name("destination"))
    if source is None or destination is None:
        raise ObjectNotFound
    return source, destination


def _between(source: Exchange, destination: Destination) -> Iterable[Row]:
    if source.name == "":
        return [default_binding_row(destination)] if isinstance(destination, Queue) else []
    return (
        binding_row(source.vhost, binding)
        for binding in list(destination.incoming)
        if binding.source == source.name
    )


def _find(call: Call, source: Exchange, destination: Destination) -> Binding:
    """The binding whose properties_key is in the path, encoded once or, by some tools, not."""
    wanted = call.name("properties")
    keys = {
        properties_key(binding): binding
        for binding in destination.incoming
        if binding.source == source.name
    }
    found = keys.get(wanted) or keys.get(quote(wanted, safe="", errors="surrogateescape"))
    if found is None:
        raise ObjectNotFound
    return found


async def _list_between(call: Call, kind: str) -> Response:
    return await listed(call, _between(*_ends(call, call.vhost(), kind)), _same)


async def _show(call: Call, kind: str) -> Response:
    vhost = call.vhost()
    return answer(binding_row(vhost.name, _find(call, *_ends(call, vhost, kind))))


async def _create(call: Call, kind: str) -> Response:
    vhost = call.vhost()
    source, destination = _ends(call, vhost, kind)
    channel = _check_access(call, vhost, source, destination)
    document = await call.document()
    key = document.text("routing_key", "")
    arguments = document.table("arguments")
    _check_topic(channel, source, key)
    command = Bind(vhost.name, source.name, destination.name, kind, key, arguments)
    await propose(call.context, command)
    binding = source.find(destination, key, arguments)
    made = properties_key(binding) if binding is not None else "~"
    location = f"{quote(destination.name, safe='', errors='surrogateescape')}/{quote(made)}"
    return created(location=location)


async def _delete(call: Call, kind: str) -> Response:
    vhost = call.vhost()
    source, destination = _ends(call, vhost, kind)
    binding = _find(call, source, destination)
    _check_topic(_check_access(call, vhost, source, destination), source, binding.key)
    command = Unbind(
        vhost.name, source.name, destination.name, kind, binding.key, binding.arguments
    )
    await propose(call.context, command)
    return done()


def _check_access(call: Call, vhost: VHost, source: Exchange, destination: Destination) -> Channel:
    """The checks that a session makes before it binds or unbinds, except for the topic."""
    check_not_default_exchange(source.name)
    channel = open_channel(call.context.broker, vhost, call.caller)
    if destination.is_exchange:
        check_not_default_exchange(destination.name)
        check_write(channel, EXCHANGE, destination.name)
    else:
        check_write(channel, QUEUE, destination.name)
        find_queue(channel, destination.name)
    check_read(channel, EXCHANGE, source.name)
    return channel


def _check_topic(channel: Channel, source: Exchange, key: str) -> None:
    identity = channel.connection.identity
    if source.kind == "topic" and not identity.may_read_topic(source.vhost, source.name, key):
        raise AccessRefused(
            f"access to topic '{key}' in exchange '{source.name}' in vhost '{source.vhost}' refused"
            f" for user '{identity.user}'"
        )


def _endpoints_between(path: str, kind: str) -> tuple[Endpoint, ...]:
    one = path + "/{properties}"
    list_all, bind, show, unbind = (
        partial(handle, kind=kind) for handle in (_list_between, _create, _show, _delete)
    )
    return (
        GET(path, MANAGEMENT, list_all, rows_of(rabbitmq_schemas.BINDING), about=f"List to {kind}"),
        POST(path, MANAGEMENT, bind, MADE, request_schemas.BINDING, about=f"Bind {kind}"),
        GET(one, MANAGEMENT, show, row_of(rabbitmq_schemas.BINDING), about=f"Show to {kind}"),
        DELETE(one, MANAGEMENT, unbind, DONE, about=f"Unbind {kind}"),
    )


ENDPOINTS: Final = (
    GET("/api/bindings", MANAGEMENT, list_bindings, rows_of(rabbitmq_schemas.BINDING)),
    GET("/api/bindings/{vhost}", MANAGEMENT, list_bindings, rows_of(rabbitmq_schemas.BINDING)),
    *_endpoints_between("/api/bindings/{vhost}/e/{source}/q/{destination}", QUEUE),
    *_endpoints_between("/api/bindings/{vhost}/e/{source}/e/{destination}", EXCHANGE),
    GET(
        "/api/queues/{vhost}/{name}/bindings",
        MANAGEMENT,
        list_bindings_of_queue,
        rows_of(rabbitmq_schemas.BINDING),
    ),
    GET(
        "/api/exchanges/{vhost}/{name}/bindings/source",
        MANAGEMENT,
        list_bindings_from_exchange,
        rows_of(rabbitmq_schemas.BINDING),
    ),
    GET(
        "/api/exchanges/{vhost}/{name}/bindings/destination",
        MANAGEMENT,
        list_bindings_to_exchange,
        rows_of(rabbitmq_schemas.BINDING),
    ),
)
