"""/api/exchanges: show exchanges, declare and delete them."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from rhizome.broker.channel.resource_lookup import check_configure, check_read, check_write
from rhizome.broker.erlang_term_text import exchange_resource
from rhizome.broker.metadata.metadata_commands import EXCHANGE, DeclareExchange, DeleteExchange
from rhizome.broker.metadata.resource_names import (
    check_declarable_name,
    check_deletable_exchange,
    check_not_default_exchange,
)
from rhizome.broker.metadata.vhost import VHost
from rhizome.broker.routing.exchange import Exchange
from rhizome.errors import PreconditionFailed
from rhizome.management.direct_channel import open_channel
from rhizome.management.errors import ObjectNotFound
from rhizome.management.http.api_call import Call
from rhizome.management.http.auth import MANAGEMENT
from rhizome.management.http.endpoint import DELETE, GET, PUT
from rhizome.management.http.json_responses import created, done, listed, shown_row
from rhizome.management.openapi import rabbitmq_schemas, request_schemas
from rhizome.management.openapi.endpoint_shapes import (
    FLAG,
    MADE,
    Parameter,
    columns_of,
    done_of,
    rows_of,
)
from rhizome.management.rabbitmq_api.json_rows import DEFAULT_EXCHANGE, exchange_row
from rhizome.management.state_proposals import propose

IF_UNUSED: Final = Parameter("if-unused", FLAG, "Only if nothing is bound to it")


def exchange_name(call: Call) -> str:
    """The exchange in the path; the nameless one is called amq.default there."""
    name = call.name()
    return "" if name == DEFAULT_EXCHANGE else name


def find_exchange(call: Call, vhost: VHost) -> Exchange:
    exchange = vhost.router.exchanges.get(exchange_name(call))
    if exchange is None:
        raise ObjectNotFound
    return exchange


async def list_exchanges(call: Call) -> Response:
    found = [
        (vhost, exchange) for vhost in call.vhosts() for exchange in vhost.router.exchanges.values()
    ]
    return await listed(call, found, lambda each: exchange_row(*each))


async def show_exchange(call: Call) -> Response:
    vhost = call.vhost()
    row = exchange_row(vhost, find_exchange(call, vhost))
    return shown_row(call, {**row, "incoming": [], "outgoing": []})


async def declare_exchange(call: Call) -> Response:
    vhost = call.vhost()
    name = exchange_name(call)
    channel = open_channel(call.context.broker, vhost, call.caller)
    check_not_default_exchange(name)
    check_configure(channel, EXCHANGE, name)
    document = await call.document()
    arguments = document.table("arguments")
    command = DeclareExchange(
        vhost.name,
        name,
        document.text("type", "direct"),
        document.flag("durable"),
        document.flag("auto_delete"),
        document.flag("internal"),
        arguments,
    )
    is_new = name not in vhost.router.exchanges
    if is_new:
        check_declarable_name(EXCHANGE, name)
    alternate = arguments.get("alternate-exchange")
    if is_new and isinstance(alternate, str):
        check_read(channel, EXCHANGE, name)
        check_write(channel, EXCHANGE, alternate)
    await propose(call.context, command)
    return created(is_new)


async def delete_exchange(call: Call) -> Response:
    vhost = call.vhost()
    exchange = find_exchange(call, vhost)
    check_deletable_exchange(vhost.name, exchange.name)
    channel = open_channel(call.context.broker, vhost, call.caller)
    check_configure(channel, EXCHANGE, exchange.name)
    if call.flag("if-unused") and not exchange.is_unused():
        raise PreconditionFailed(f"{exchange_resource(vhost.name, exchange.name)} in use")
    command = DeleteExchange(vhost.name, exchange.name, call.flag("if-unused"))
    await propose(call.context, command)
    return done()


ENDPOINTS: Final = (
    GET("/api/exchanges", MANAGEMENT, list_exchanges, rows_of(rabbitmq_schemas.EXCHANGE)),
    GET("/api/exchanges/{vhost}", MANAGEMENT, list_exchanges, rows_of(rabbitmq_schemas.EXCHANGE)),
    GET(
        "/api/exchanges/{vhost}/{name}",
        MANAGEMENT,
        show_exchange,
        columns_of(rabbitmq_schemas.EXCHANGE_WHOLE),
    ),
    PUT(
        "/api/exchanges/{vhost}/{name}",
        MANAGEMENT,
        declare_exchange,
        MADE,
        request_schemas.EXCHANGE,
    ),
    DELETE("/api/exchanges/{vhost}/{name}", MANAGEMENT, delete_exchange, done_of(IF_UNUSED)),
)
