"""/api/overview and /api/nodes: the cluster at a glance, in the words of RabbitMQ's tools."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from typing import Final

from starlette.responses import Response

from rhizome import __version__
from rhizome.broker.connection.connection_states import RUNNING
from rhizome.broker.metadata.vhost import VHost
from rhizome.broker.routing.exchange_types import EXCHANGE_KINDS
from rhizome.management.api_context import Context, Listener
from rhizome.management.cluster_view import BrokerInfo
from rhizome.management.errors import ObjectNotFound
from rhizome.management.http.api_call import Call
from rhizome.management.http.auth import ADMINISTRATOR, MANAGEMENT, MONITORING, OPEN
from rhizome.management.http.caller_visible_totals import seen_by
from rhizome.management.http.endpoint import GET
from rhizome.management.http.json_responses import Row, answer, shown_row
from rhizome.management.metrics.process_stats import open_files, open_files_max, resident_set_bytes
from rhizome.management.openapi import rabbitmq_schemas
from rhizome.management.openapi.endpoint_shapes import ANY, columns_of, list_of, row_of, rows_of
from rhizome.management.peers.cluster_wide_queries import (
    SILENT,
    documents,
    listed_everywhere,
    passed_on,
    peer_request_of,
    rows_elsewhere,
)
from rhizome.management.peers.peer_requests import LIST_SECONDS_MAX, PeerUnreachable
from rhizome.management.rhizome_api.cluster_status_and_changes import view_of

PRODUCT_NAME: Final = "Rhizome"
OVERVIEW_PATH: Final = "/api/overview"
MECHANISMS: Final = ("AMQPLAIN", "PLAIN", "EXTERNAL")


async def show_overview(call: Call) -> Response:
    row = await overview_row(call)
    # All columns, whatever is asked for, because numbers are added to them.
    found, gathered = await documents(call, call.question(OVERVIEW_PATH))
    for other in found.values():
        add_overview(row, other)
    response = shown_row(call, row)
    if gathered.silent:
        response.headers[SILENT] = ",".join(gathered.silent)
    return response


async def overview_row(call: Call) -> Row:
    """What this broker has, as far as the caller may see it; the sums are of this broker alone."""
    context = call.context
    seen = await seen_by(call)
    settings = context.broker.settings
    row: Row = {
        "rabbitmq_version": settings.compatible_version,
        "management_version": settings.compatible_version,
        "product_name": PRODUCT_NAME,
        "product_version": __version__,
        "rates_mode": "basic",
        "disable_stats": False,
        "enable_queue_totals": False,
        "sample_retention_policies": {"global": [10], "basic": [10], "detailed": [10]},
        "exchange_types": exchange_types(),
        "cluster_name": context.broker.cluster_name(),
        "node": settings.name,
        "erlang_version": f"Python {platform.python_version()}",
        "erlang_full_version": f"{platform.python_implementation()} {platform.python_version()}",
        "statistics_db_event_queue": 0,
        "object_totals": {**seen.objects(), "exchanges": exchange_count(seen.vhosts)},
        "queue_totals": {**seen.depths(), **seen.share.depth_details()},
        "message_stats": seen.share.message_stats(),
        "churn_rates": {},
        "listeners": [],
        "contexts": [],
    }
    if call.caller.may(MONITORING):
        row["listeners"] = [listener_row(context, each) for each in context.listeners()]
        row["contexts"] = [_context_row(context, each) for each in context.http_listeners]
    return row


def add_overview(row: Row, other: Row) -> None:
    """Add what another broker has. Exchanges are the same everywhere, and counted once."""
    for name in ("object_totals", "queue_totals", "message_stats"):
        add_numbers(row[name], other[name], ("exchanges",))
    for name in ("listeners", "contexts"):
        mine, theirs = row[name], other[name]
        if isinstance(mine, list) and isinstance(theirs, list):
            mine += theirs


def add_numbers(sums: object, other: object, but: tuple[str, ...] = ()) -> None:
    """Add the numbers of one object to those of another, field by field."""
    if not isinstance(sums, dict) or not isinstance(other, dict):
        return
    for name, value in other.items():
        mine = sums.get(name, 0)
        if isinstance(value, dict):
            add_numbers(sums.setdefault(name, {}), value, but)
        elif isinstance(value, (int, float)) and name not in but:
            sums[name] = round(mine + value, 2)


def exchange_types() -> list[Row]:
    return [{"name": kind, "description": "", "enabled": True} for kind in EXCHANGE_KINDS]


def exchange_count(vhosts: Iterable[VHost]) -> int:
    return sum(len(vhost.router.exchanges) for vhost in vhosts)


def listener_row(context: Context, listener: Listener) -> Row:
    return {
        "node": context.name,
        "protocol": listener.protocol,
        "ip_address": listener.host or "::",
        "port": listener.port,
        "socket_opts": {},
    }


def _context_row(context: Context, listener: Listener) -> Row:
    return {
        "description": "HTTP API",
        "path": "/",
        "port": str(listener.port),
        "ip": listener.host,
        "node": context.name,
    }


# ---- nodes --------------------------------------------------------------------------------------


def node_row(context: Context) -> Row:
    broker = context.broker
    used = resident_set_bytes()
    alarm = context.shell.alarm
    connections = sum(each.stage == RUNNING for each in broker.connections.values())
    return {
        "name": context.name,
        "type": "disc",
        "running": True,
        "being_drained": False,
        "uptime": context.uptime_ms(),
        "os_pid": str(os.getpid()),
        "processors": os.cpu_count() or 1,
        "rates_mode": "basic",
        "mem_used": used,
        "mem_limit": context.memory_max_bytes(),
        "mem_alarm": is_memory_alarm(alarm),
        "mem_resident_messages": int(broker.pager.resident_bytes),
        "disk_free": context.store.free_bytes(),
        "disk_free_limit": context.config.disk.free_min_bytes,
        "disk_free_alarm": bool(alarm) and not is_memory_alarm(alarm),
        "fd_used": open_files(),
        "fd_total": open_files_max(),
        "sockets_used": connections,
        "sockets_total": broker.limits.connections_max,
        "proc_used": len(broker.connections),
        "proc_total": broker.limits.connections_max,
        "run_queue": 0,
        "partitions": [],
        "exchange_types": exchange_types(),
        "auth_mechanisms": [
            {"name": name, "description": "", "enabled": True} for name in MECHANISMS
        ],
        "applications": [{"name": "rhizome", "description": PRODUCT_NAME, "version": __version__}],
        "contexts": [_context_row(context, each) for each in context.http_listeners],
        "enabled_plugins": ["rabbitmq_management", "rabbitmq_prometheus"],
        "cluster_links": context.others.links(),
        "mem_calculation_strategy": "rss",
        "net_ticktime": 60,
        "log_files": [],
        "config_files": [],
        "db_dir": "",
    }


def is_memory_alarm(alarm: str) -> bool:
    return alarm.startswith("low on memory")


def absent_node_row(broker: BrokerInfo) -> Row:
    """A broker that belongs to the cluster and doesn't answer."""
    return {"name": broker.name, "type": "disc", "running": False, "being_drained": False}


async def list_nodes(call: Call) -> Response:
    own = [node_row(call.context)]
    if call.asked:
        return await listed_everywhere(call, own, _same)
    elsewhere = await rows_elsewhere(call)
    answered = {call.context.name, *elsewhere.answered}
    document = await view_of(call.context).cluster_document()
    absent = [absent_node_row(each) for each in document.brokers if each.name not in answered]
    return await listed_everywhere(call, own + absent, _same, elsewhere)


def _same(row: Row) -> Row:
    return row


async def show_node(call: Call) -> Response:
    if call.name() == call.context.name:
        return shown_row(call, node_row(call.context))
    return await elsewhere(call)


async def elsewhere(call: Call) -> Response:
    """The answer of the broker in the path, which is not this one."""
    name = call.name()
    document = await view_of(call.context).cluster_document()
    found = [each for each in document.brokers if each.name == name]
    if not found or call.asked:
        raise ObjectNotFound
    try:
        reply = await call.context.others.ask(name, peer_request_of(call), LIST_SECONDS_MAX)
    except PeerUnreachable:
        return shown_row(call, absent_node_row(found[0]))
    return passed_on(reply)


async def show_memory(call: Call) -> Response:
    """Where the memory of a broker goes, as far as it is known."""
    if call.name() != call.context.name:
        return await elsewhere(call)
    used = resident_set_bytes()
    messages = min(int(call.context.broker.pager.resident_bytes), used)
    memory = {
        "binary": messages,
        "other_system": used - messages,
        "strategy": "rss",
        "total": {"rss": used, "allocated": used, "erlang": used},
    }
    return answer({"memory": memory})


async def list_nothing(call: Call) -> Response:
    """Extensions of the user interface, feature flags: there are none to choose from."""
    return answer([])


async def show_sign_in(call: Call) -> Response:
    """RabbitMQ's console asks whether people log in elsewhere."""
    return answer({"enable_uaa": False, "uaa_client_id": "", "uaa_location": ""})


ENDPOINTS: Final = (
    GET(OVERVIEW_PATH, MANAGEMENT, show_overview, columns_of(rabbitmq_schemas.OVERVIEW)),
    GET("/api/nodes", MONITORING, list_nodes, rows_of(rabbitmq_schemas.NODE)),
    GET("/api/nodes/{name}", MONITORING, show_node, columns_of(rabbitmq_schemas.NODE)),
    GET("/api/nodes/{name}/memory", MONITORING, show_memory, row_of(rabbitmq_schemas.MEMORY)),
    GET("/api/extensions", MANAGEMENT, list_nothing, list_of(ANY)),
    GET("/api/feature-flags", ADMINISTRATOR, list_nothing, list_of(ANY)),
    GET("/api/auth", OPEN, show_sign_in, row_of(rabbitmq_schemas.SIGN_IN)),
)
