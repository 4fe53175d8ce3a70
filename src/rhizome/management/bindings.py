"""/api/bindings, and the bindings of one exchange or queue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final
from urllib.parse import quote

from starlette.responses import Response

from rhizome.broker.channel import Channel
from rhizome.broker.commands import EXCHANGE, QUEUE, Bind, Unbind
from rhizome.broker.lookup import check_read, check_write, find_queue
from rhizome.broker.names import check_not_default_exchange
from rhizome.broker.queue import Queue
from rhizome.broker.routing.destination import Binding, Destination
from rhizome.broker.routing.exchange import Exchange
from rhizome.broker.vhost import VHost
from rhizome.errors import AccessRefused
from rhizome.management import bodies, declared, shapes
from rhizome.management.answers import Row, answer, created, done, listed
from rhizome.management.auth import MANAGEMENT
from rhizome.management.call import Call
from rhizome.management.direct import open_channel
from rhizome.management.endpoint import Endpoint
from rhizome.management.errors import ObjectNotFound
from rhizome.management.everywhere import listed_everywhere, no_rows, rows_elsewhere
from rhizome.management.exchanges import find_exchange
from rhizome.management.proposals import propose
from rhizome.management.rows import (
    DEFAULT_EXCHANGE,
    binding_row,
    default_binding_row,
    is_shown,
    properties_key,
)


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
    """What a session asks before it binds or unbinds, but for the topic."""
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


async def list_to_queue(call: Call) -> Response:
    return await _list_between(call, QUEUE)


async def list_to_exchange(call: Call) -> Response:
    return await _list_between(call, EXCHANGE)


async def bind_queue(call: Call) -> Response:
    return await _create(call, QUEUE)


async def bind_exchange(call: Call) -> Response:
    return await _create(call, EXCHANGE)


async def show_to_queue(call: Call) -> Response:
    return await _show(call, QUEUE)


async def show_to_exchange(call: Call) -> Response:
    return await _show(call, EXCHANGE)


async def unbind_queue(call: Call) -> Response:
    return await _delete(call, QUEUE)


async def unbind_exchange(call: Call) -> Response:
    return await _delete(call, EXCHANGE)


_TO_QUEUE: Final = "/api/bindings/{vhost}/e/{source}/q/{destination}"
_TO_EXCHANGE: Final = "/api/bindings/{vhost}/e/{source}/e/{destination}"

ENDPOINTS: Final = (
    Endpoint("GET", "/api/bindings", MANAGEMENT, list_bindings, declared.rows_of(shapes.BINDING)),
    Endpoint(
        "GET", "/api/bindings/{vhost}", MANAGEMENT, list_bindings, declared.rows_of(shapes.BINDING)
    ),
    Endpoint("GET", _TO_QUEUE, MANAGEMENT, list_to_queue, declared.rows_of(shapes.BINDING)),
    Endpoint("POST", _TO_QUEUE, MANAGEMENT, bind_queue, declared.MADE, bodies.BINDING),
    Endpoint(
        "GET",
        _TO_QUEUE + "/{properties}",
        MANAGEMENT,
        show_to_queue,
        declared.row_of(shapes.BINDING),
    ),
    Endpoint("DELETE", _TO_QUEUE + "/{properties}", MANAGEMENT, unbind_queue, declared.DONE),
    Endpoint("GET", _TO_EXCHANGE, MANAGEMENT, list_to_exchange, declared.rows_of(shapes.BINDING)),
    Endpoint("POST", _TO_EXCHANGE, MANAGEMENT, bind_exchange, declared.MADE, bodies.BINDING),
    Endpoint(
        "GET",
        _TO_EXCHANGE + "/{properties}",
        MANAGEMENT,
        show_to_exchange,
        declared.row_of(shapes.BINDING),
    ),
    Endpoint("DELETE", _TO_EXCHANGE + "/{properties}", MANAGEMENT, unbind_exchange, declared.DONE),
    Endpoint(
        "GET",
        "/api/queues/{vhost}/{name}/bindings",
        MANAGEMENT,
        list_bindings_of_queue,
        declared.rows_of(shapes.BINDING),
    ),
    Endpoint(
        "GET",
        "/api/exchanges/{vhost}/{name}/bindings/source",
        MANAGEMENT,
        list_bindings_from_exchange,
        declared.rows_of(shapes.BINDING),
    ),
    Endpoint(
        "GET",
        "/api/exchanges/{vhost}/{name}/bindings/destination",
        MANAGEMENT,
        list_bindings_to_exchange,
        declared.rows_of(shapes.BINDING),
    ),
)
