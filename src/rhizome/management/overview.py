"""/api/overview and /api/nodes: this broker at a glance, in the words of RabbitMQ's tools."""

from __future__ import annotations

import os
import platform
from typing import Final

from starlette.responses import Response

from rhizome import __version__
from rhizome.broker.routing.kinds import EXCHANGE_KINDS
from rhizome.broker.stages import RUNNING
from rhizome.management.answers import Row, answer, listed
from rhizome.management.auth import MANAGEMENT, MONITORING
from rhizome.management.call import Call
from rhizome.management.context import Context, Listener
from rhizome.management.endpoint import Endpoint
from rhizome.management.errors import ObjectNotFound
from rhizome.management.process import open_files, open_files_max, resident_set_bytes
from rhizome.management.rates import Totals

RABBITMQ_VERSION: Final = "3.10.8"
"""What tools that ask for RabbitMQ's version take this API for."""

PRODUCT_NAME: Final = "Rhizome"
MECHANISMS: Final = ("AMQPLAIN", "PLAIN", "EXTERNAL")


async def show_overview(call: Call) -> Response:
    context = call.context
    totals = await context.rates.totals()
    settings = context.broker.settings
    row: Row = {
        "rabbitmq_version": RABBITMQ_VERSION,
        "management_version": RABBITMQ_VERSION,
        "product_name": PRODUCT_NAME,
        "product_version": __version__,
        "rates_mode": "basic",
        "sample_retention_policies": {"global": [10], "basic": [10], "detailed": [10]},
        "exchange_types": exchange_types(),
        "cluster_name": settings.cluster_name,
        "node": settings.name,
        "erlang_version": f"Python {platform.python_version()}",
        "erlang_full_version": f"{platform.python_implementation()} {platform.python_version()}",
        "statistics_db_event_queue": 0,
        "object_totals": object_totals(context, totals),
        "queue_totals": queue_totals(totals),
        "message_stats": context.rates.of_totals(totals),
        "churn_rates": {},
        "contexts": [_context_row(context, each) for each in context.http_listeners],
    }
    if call.caller.may(MONITORING):
        row["listeners"] = [listener_row(context, each) for each in context.listeners()]
    return answer(row)


def exchange_types() -> list[Row]:
    return [{"name": kind, "description": "", "enabled": True} for kind in EXCHANGE_KINDS]


def object_totals(context: Context, totals: Totals) -> Row:
    running = context.broker.running_connections()
    vhosts = context.broker.state.vhosts.values()
    return {
        "connections": len(running),
        "channels": sum(len(each.channels) for each in running),
        "consumers": totals.consumers,
        "exchanges": sum(len(vhost.router.exchanges) for vhost in vhosts),
        "queues": totals.queues,
    }


def queue_totals(totals: Totals) -> Row:
    return {
        "messages": totals.ready + totals.unacked,
        "messages_ready": totals.ready,
        "messages_unacknowledged": totals.unacked,
    }


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
        "cluster_links": [],
    }


def is_memory_alarm(alarm: str) -> bool:
    return alarm.startswith("low on memory")


async def list_nodes(call: Call) -> Response:
    return await listed(call, [call.context], node_row)


async def show_node(call: Call) -> Response:
    if call.name() != call.context.name:
        raise ObjectNotFound
    return answer(node_row(call.context))


async def show_cluster_name(call: Call) -> Response:
    return answer({"name": call.context.broker.settings.cluster_name})


async def list_extensions(call: Call) -> Response:
    return answer([])


ENDPOINTS: Final = (
    Endpoint("GET", "/api/overview", MANAGEMENT, show_overview),
    Endpoint("GET", "/api/nodes", MONITORING, list_nodes),
    Endpoint("GET", "/api/nodes/{name}", MONITORING, show_node),
    Endpoint("GET", "/api/cluster-name", MANAGEMENT, show_cluster_name),
    Endpoint("GET", "/api/extensions", MANAGEMENT, list_extensions),
)
