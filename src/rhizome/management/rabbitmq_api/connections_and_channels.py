"""Connections, channels and consumers: /api/connections, /api/channels, /api/consumers."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from rhizome.broker.channel.channel import Channel
from rhizome.broker.channel.consumer import Consumer
from rhizome.broker.connection.connection import Connection
from rhizome.broker.connection.connection_states import CLOSING, RUNNING
from rhizome.management.api_context import Context
from rhizome.management.errors import NotAuthorised, ObjectNotFound
from rhizome.management.http.api_call import Call
from rhizome.management.http.auth import ADMINISTRATOR, MANAGEMENT, MONITORING
from rhizome.management.http.cooperative_yield import Pace
from rhizome.management.http.endpoint import DELETE, GET
from rhizome.management.http.json_responses import Row, done, shown_row
from rhizome.management.openapi import rabbitmq_schemas
from rhizome.management.openapi.endpoint_shapes import DONE, columns_of, rows_of
from rhizome.management.peers.cluster_wide_queries import (
    ask_all,
    listed_everywhere,
    no_rows,
    rows_elsewhere,
    wherever,
)
from rhizome.management.rabbitmq_api.json_rows import consumer_row

CLOSE_REASON_DEFAULT: Final = "Closed via management plugin"


# ---- connections --------------------------------------------------------------------------------


def connection_row(context: Context, connection: Connection) -> Row:
    peer = connection.peer
    name = connection.client_properties.get("connection_name")
    return {
        "name": connection.name,
        "user_provided_name": name if isinstance(name, str) else None,
        "node": context.name,
        "vhost": connection.router.vhost,
        "user": connection.identity.user,
        "state": state_of(connection),
        "protocol": "AMQP 0-9-1",
        "type": "network",
        "peer_host": peer.address,
        "peer_port": int(peer.port),
        "host": _local_of(connection)[0],
        "port": _local_of(connection)[1],
        "ssl": peer.tls,
        "peer_cert_subject": peer.certificate_subject or None,
        "channels": len(connection.channels),
        "channel_max": int(connection.channel_max),
        "frame_max": int(connection.frame_max),
        "timeout": int(connection.heartbeat_s),
        "connected_at": int(connection.connected_ms),
        "client_properties": connection.client_properties,
        "blocked_reason": connection.blocked_reason,
        "send_pend": int(connection.outbox.size()),
        "user_who_performed_action": connection.identity.user,
        **context.rates.of_connection(connection),
    }


def state_of(connection: Connection) -> str:
    if connection.stage == CLOSING:
        return "closing"
    if connection.blocked_reason:
        return "blocked"
    return "flow" if connection.stalled else "running"


def _local_of(connection: Connection) -> tuple[str, int]:
    host, _, port = connection.name.rpartition(" -> ")[2].rpartition(":")
    return host.strip("[]"), int(port) if port.isdecimal() else 0


def _is_open(connection: Connection) -> bool:
    return connection.stage in (RUNNING, CLOSING)


def _visible(call: Call) -> list[Connection]:
    """All connections for those who monitor, their own for others."""
    return [
        connection
        for connection in call.context.broker.connections.values()
        if _is_open(connection) and call.caller.sees(connection.identity.user)
    ]


def _check_visible(call: Call, connection: Connection) -> None:
    if not call.caller.sees(connection.identity.user):
        raise NotAuthorised("User not authorised to access object")


def _connection(call: Call) -> Connection | None:
    """The connection in the path; None if it is another broker's, perhaps."""
    wanted = call.name()
    for connection in call.context.broker.connections.values():
        if connection.name == wanted and _is_open(connection):
            _check_visible(call, connection)
            return connection
    if call.asked:
        raise ObjectNotFound
    return None


async def list_connections(call: Call) -> Response:
    context = call.context
    return await listed_everywhere(
        call, _visible(call), lambda each: connection_row(context, each), brief=_brief
    )


def _brief(connection: Connection) -> Row:
    return {"vhost": connection.router.vhost, "name": connection.name}


async def list_connections_of_vhost(call: Call) -> Response:
    vhost = call.vhost().name
    found = [each for each in _visible(call) if each.router.vhost == vhost]
    return await listed_everywhere(call, found, lambda each: connection_row(call.context, each))


def _of_user(call: Call) -> list[Connection]:
    user = call.name("user")
    if user != call.caller.user:
        call.caller.check(MONITORING)
    return [each for each in _visible(call) if each.identity.user == user]


async def list_connections_of_user(call: Call) -> Response:
    return await listed_everywhere(
        call, _of_user(call), lambda each: connection_row(call.context, each)
    )


async def close_connections_of_user(call: Call) -> Response:
    if call.name("user") != call.caller.user:
        call.caller.check(ADMINISTRATOR)
    pace = Pace()
    for connection in _of_user(call):
        _close(call, connection)
        if pace.is_due():
            await pace.rest()
    await ask_all(call)
    return done()


async def show_connection(call: Call) -> Response:
    connection = _connection(call)
    if connection is None:
        return await wherever(call)
    return shown_row(call, connection_row(call.context, connection))


async def close_connection(call: Call) -> Response:
    """Close with 320 and the reason in the X-Reason header."""
    connection = _connection(call)
    if connection is None:
        return await wherever(call)
    if connection.identity.user != call.caller.user:
        call.caller.check(ADMINISTRATOR)
    _close(call, connection)
    return done()


def _close(call: Call, connection: Connection) -> None:
    reason = call.request.headers.get("x-reason", "") or CLOSE_REASON_DEFAULT
    # Header fields come as Latin-1; people write UTF-8 into them.
    reason = reason.encode("latin-1").decode("utf-8", "replace")
    call.context.shell.begin_turn()
    connection.force_close(reason)


# ---- channels -----------------------------------------------------------------------------------


def channel_row(context: Context, channel: Channel) -> Row:
    connection = channel.connection
    confirms = channel.confirms
    transaction = channel.transaction
    return {
        "name": channel_name(channel),
        "number": int(channel.number),
        "node": context.name,
        "vhost": connection.router.vhost,
        "user": connection.identity.user,
        "state": "closing" if channel.closing else state_of(connection),
        "connection_details": {
            "name": connection.name,
            "peer_host": connection.peer.address,
            "peer_port": int(connection.peer.port),
        },
        "consumer_count": len(channel.consumers),
        "prefetch_count": int(channel.prefetch),
        "global_prefetch_count": int(channel.prefetch_global),
        "messages_unacknowledged": int(channel.unacked.count),
        "messages_unconfirmed": int(confirms.published - confirms.sent) if confirms else 0,
        "messages_uncommitted": len(transaction.publications) if transaction else 0,
        "acks_uncommitted": len(transaction.settled) if transaction else 0,
        "confirm": confirms is not None,
        "transactional": transaction is not None,
        "message_stats": {
            "publish": int(channel.published),
            "deliver_get": int(channel.delivery_tag),
            **({"confirm": int(confirms.sent)} if confirms else {}),
        },
    }


def channel_name(channel: Channel) -> str:
    return f"{channel.connection.name} ({channel.number})"


def _channels(connections: list[Connection]) -> list[Channel]:
    return [channel for each in connections for channel in each.channels.values()]


async def list_channels(call: Call) -> Response:
    found = _channels(_visible(call))
    return await listed_everywhere(call, found, lambda each: channel_row(call.context, each))


async def list_channels_of_vhost(call: Call) -> Response:
    vhost = call.vhost().name
    found = _channels([each for each in _visible(call) if each.router.vhost == vhost])
    return await listed_everywhere(call, found, lambda each: channel_row(call.context, each))


async def list_channels_of_connection(call: Call) -> Response:
    connection = _connection(call)
    found = _channels([connection]) if connection is not None else []
    elsewhere = no_rows() if connection is not None else await rows_elsewhere(call)
    if connection is None and not elsewhere.answered:
        raise ObjectNotFound
    return await listed_everywhere(
        call, found, lambda each: channel_row(call.context, each), elsewhere
    )


async def show_channel(call: Call) -> Response:
    wanted = call.name()
    named = [
        each
        for each in call.context.broker.connections.values()
        if _is_open(each) and wanted.startswith(each.name)
    ]
    for channel in _channels(named):
        if channel_name(channel) == wanted:
            _check_visible(call, channel.connection)
            row = channel_row(call.context, channel)
            row |= {"publishes": [], "deliveries": []}
            row["consumer_details"] = [
                consumer_row(call.context, each) for each in channel.consumers.values()
            ]
            return shown_row(call, row)
    if call.asked:
        raise ObjectNotFound
    return await wherever(call)


# ---- consumers ----------------------------------------------------------------------------------


async def list_consumers(call: Call) -> Response:
    """As connections: all for those who monitor, their own for others, whatever the vhost."""
    vhost = call.request.path_params.get("vhost")
    if vhost is not None and vhost not in call.context.broker.state.vhosts:
        raise ObjectNotFound
    found: list[Consumer] = [
        consumer
        for connection in _visible(call)
        if vhost in (None, connection.router.vhost)
        for channel in connection.channels.values()
        for consumer in channel.consumers.values()
    ]
    return await listed_everywhere(call, found, lambda each: consumer_row(call.context, each))


ENDPOINTS: Final = (
    GET("/api/connections", MANAGEMENT, list_connections, rows_of(rabbitmq_schemas.CONNECTION)),
    GET(
        "/api/connections/username/{user}",
        MANAGEMENT,
        list_connections_of_user,
        rows_of(rabbitmq_schemas.CONNECTION),
    ),
    DELETE("/api/connections/username/{user}", MANAGEMENT, close_connections_of_user, DONE),
    GET(
        "/api/connections/{name}",
        MANAGEMENT,
        show_connection,
        columns_of(rabbitmq_schemas.CONNECTION),
    ),
    DELETE("/api/connections/{name}", MANAGEMENT, close_connection, DONE),
    GET(
        "/api/connections/{name}/channels",
        MANAGEMENT,
        list_channels_of_connection,
        rows_of(rabbitmq_schemas.CHANNEL),
    ),
    GET(
        "/api/vhosts/{vhost}/connections",
        MANAGEMENT,
        list_connections_of_vhost,
        rows_of(rabbitmq_schemas.CONNECTION),
    ),
    GET("/api/channels", MANAGEMENT, list_channels, rows_of(rabbitmq_schemas.CHANNEL)),
    GET(
        "/api/channels/{name}", MANAGEMENT, show_channel, columns_of(rabbitmq_schemas.CHANNEL_WHOLE)
    ),
    GET(
        "/api/vhosts/{vhost}/channels",
        MANAGEMENT,
        list_channels_of_vhost,
        rows_of(rabbitmq_schemas.CHANNEL),
    ),
    GET("/api/consumers", MANAGEMENT, list_consumers, rows_of(rabbitmq_schemas.CONSUMER)),
    GET("/api/consumers/{vhost}", MANAGEMENT, list_consumers, rows_of(rabbitmq_schemas.CONSUMER)),
)
