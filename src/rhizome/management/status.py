"""/api/rhizome/status: how this broker is, and the cluster that it belongs to."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from rhizome import __version__
from rhizome.journal.store import MemoryStore
from rhizome.management import declared, ownshapes
from rhizome.management.answers import Row, answer
from rhizome.management.auth import MANAGEMENT
from rhizome.management.call import Call
from rhizome.management.cluster import view_of
from rhizome.management.clusterview import STARTING, ClusterDocument
from rhizome.management.context import Context
from rhizome.management.endpoint import Endpoint
from rhizome.management.process import resident_set_bytes
from rhizome.management.seen import STORE_COUNTS, Seen, cluster_row, seen_by, told


async def show_status(call: Call) -> Response:
    seen = await seen_by(call)
    document = await view_of(call.context).cluster_document()
    broker = told(call, broker_status(call, document, seen), "resident_bytes")
    return answer({"broker": broker, **cluster_row(call, document)})


def broker_status(call: Call, document: ClusterDocument, seen: Seen) -> Row:
    context = call.context
    broker = context.broker
    statuses = {each.name: each.status for each in document.brokers}
    alarm = context.shell.alarm
    return {
        "name": context.name,
        "status": statuses.get(context.name, STARTING),
        "version": __version__,
        "uptime_ms": context.uptime_ms(),
        "addresses": context.addresses(),
        **seen.objects(),
        **seen.depths(),
        "memory_bytes": resident_set_bytes(),
        "resident_bytes": int(broker.pager.resident_bytes),
        "alarms": [alarm] if alarm else [],
        "blocking": broker.blocking,
        "store": told(call, store_status(context), *STORE_COUNTS),
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


ENDPOINTS: Final = (
    Endpoint(
        "GET", "/api/rhizome/status", MANAGEMENT, show_status, declared.row_of(ownshapes.STATUS)
    ),
)
