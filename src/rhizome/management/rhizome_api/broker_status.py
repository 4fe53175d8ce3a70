"""/api/rhizome/status: how this broker is, and the cluster that it belongs to."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from rhizome import __version__
from rhizome.journal.store import MemoryStore
from rhizome.management.api_context import Context
from rhizome.management.cluster_view import STARTING, ClusterDocument
from rhizome.management.http.api_call import Call
from rhizome.management.http.auth import MANAGEMENT
from rhizome.management.http.caller_visible_totals import (
    STORE_COUNTS,
    VisibleObjects,
    cluster_row,
    seen_by,
    told,
)
from rhizome.management.http.endpoint import GET
from rhizome.management.http.json_responses import Row, answer
from rhizome.management.metrics.process_stats import resident_set_bytes
from rhizome.management.openapi import rhizome_schemas
from rhizome.management.openapi.endpoint_shapes import row_of
from rhizome.management.rhizome_api.cluster_status_and_changes import view_of


async def show_status(call: Call) -> Response:
    seen = await seen_by(call)
    document = await view_of(call.context).cluster_document()
    broker = told(call, broker_status(call, document, seen), "resident_bytes")
    return answer({"broker": broker, **cluster_row(call, document)})


def broker_status(call: Call, document: ClusterDocument, seen: VisibleObjects) -> Row:
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
    GET("/api/rhizome/status", MANAGEMENT, show_status, row_of(rhizome_schemas.STATUS)),
)
