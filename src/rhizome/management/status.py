"""/api/rhizome/status: how this broker is, and the cluster that it belongs to.

A lone broker is a cluster of one: the only primary, and so the root.
"""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from rhizome import __version__
from rhizome.broker.log import LOCAL_GROUP, JournalLog
from rhizome.journal.store import MemoryStore
from rhizome.management.answers import Row, answer
from rhizome.management.auth import MANAGEMENT
from rhizome.management.call import Call
from rhizome.management.context import Context
from rhizome.management.endpoint import Endpoint
from rhizome.management.process import resident_set_bytes
from rhizome.management.rates import Totals

PRIMARY: Final = "primary"
ACTIVE: Final = "active"
LONE_TERM: Final = 1


async def show_status(call: Call) -> Response:
    context = call.context
    totals = await context.rates.totals()
    return answer(
        {
            "broker": broker_status(context, totals),
            "cluster": cluster_status(context),
            "brokers": [member_status(context)],
            "groups": [group_status(context, totals)],
            "failover_map": {},
        }
    )


def addresses(context: Context) -> list[str]:
    return [listener.url for listener in context.listeners()]


def broker_status(context: Context, totals: Totals) -> Row:
    broker = context.broker
    running = broker.running_connections()
    alarm = context.shell.alarm
    return {
        "name": context.name,
        "status": ACTIVE,
        "version": __version__,
        "uptime_ms": context.uptime_ms(),
        "addresses": addresses(context),
        "connections": len(running),
        "channels": sum(len(each.channels) for each in running),
        "consumers": totals.consumers,
        "queues": totals.queues,
        "messages": totals.ready + totals.unacked,
        "messages_ready": totals.ready,
        "messages_unacknowledged": totals.unacked,
        "memory_bytes": resident_set_bytes(),
        "resident_bytes": int(broker.pager.resident_bytes),
        "alarms": [alarm] if alarm else [],
        "blocking": broker.blocking,
        "store": store_status(context),
    }


def store_status(context: Context) -> Row:
    store = context.store
    statistics = store.statistics()
    return {
        "kind": "memory" if isinstance(store, MemoryStore) else "journal",
        "uuid": store.uuid.hex(),
        "segments": len(store.journal.segments()),
        "journal_bytes": int(store.journal.disk_bytes()),
        "spill_bytes": int(store.spill.disk_bytes()),
        "free_bytes": store.free_bytes(),
        "backlog_bytes": store.backlog_bytes(),
        "written_bytes": statistics.bytes_written,
        "syncs": statistics.syncs,
    }


def cluster_status(context: Context) -> Row:
    return {
        "uuid": context.store.uuid.hex(),
        "name": context.broker.settings.cluster_name,
        "term": LONE_TERM,
        "root": context.name,
        "quorum": {"defined": 1, "active": 1, "needed": 1},
    }


def member_status(context: Context) -> Row:
    return {
        "name": context.name,
        "role": PRIMARY,
        "status": ACTIVE,
        "seniority": 1,
        "machine": context.machine,
        "addresses": addresses(context),
        "connections": len(context.broker.running_connections()),
    }


def group_status(context: Context, totals: Totals) -> Row:
    log = context.broker.log
    return {
        "id": LOCAL_GROUP,
        "home": context.name,
        "epoch": int(log.epoch) if isinstance(log, JournalLog) else 1,
        "failover": [],
        "in_sync": [],
        "queues": totals.queues,
        "messages": totals.ready + totals.unacked,
    }


ENDPOINTS: Final = (Endpoint("GET", "/api/rhizome/status", MANAGEMENT, show_status),)
