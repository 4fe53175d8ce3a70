"""/api/rhizome/live: what the console shows and asks for again and again, in one answer.

The cluster as this broker sees it, and the load of every broker that answers; as far as the caller
sees it (``caller_visible_totals.py``).
"""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from rhizome.management.http.api_call import Call
from rhizome.management.http.auth import MANAGEMENT, MONITORING
from rhizome.management.http.caller_visible_totals import cluster_row, link_rows, seen_by
from rhizome.management.http.endpoint import GET
from rhizome.management.http.json_responses import Row, answer
from rhizome.management.metrics.process_stats import resident_set_bytes
from rhizome.management.metrics.queue_history import ALL
from rhizome.management.openapi import rhizome_schemas
from rhizome.management.openapi.endpoint_shapes import FLAG, Parameter, row_of
from rhizome.management.peers.cluster_wide_queries import documents
from rhizome.management.rhizome_api.cluster_status_and_changes import view_of
from rhizome.management.rhizome_api.stalls import cluster_stalls, own_stalls

LOAD_PATH: Final = "/api/rhizome/load"
WITH_HISTORY: Final = Parameter("history", FLAG, "With the last minutes, in columns")


async def load_row(call: Call) -> Row:
    """How busy this broker is, and what waits there."""
    context = call.context
    seen = await seen_by(call)
    totals = seen.share.totals
    row: Row = {
        "uptime_ms": context.uptime_ms(),
        **seen.objects(),
        "ready": totals.ready,
        "unacked": totals.unacked,
        "ready_bytes": totals.ready_bytes,
        "rates": seen.share.per_second(),
        "memory_bytes": resident_set_bytes(),
        "memory_max_bytes": context.memory_max_bytes(),
        "disk_free_bytes": context.store.free_bytes(),
        "alarm": context.shell.alarm,
        "http": [listener.url for listener in context.http_listeners],
        "links": link_rows(call),
        "stalls": own_stalls(context) if call.caller.may(MONITORING) else [],
    }
    if call.flag("history"):
        kept, ids = context.rates.history, seen.share.ids
        row["history"] = kept.row(ALL) if ids is None else await kept.together(ids)
    return row


async def show_load(call: Call) -> Response:
    return answer(await load_row(call))


async def show_live(call: Call) -> Response:
    context = call.context
    query = "?history=true" if call.flag("history") else ""
    question = call.question(LOAD_PATH + query)
    found, gathered = await documents(call, question)
    loads: dict[str, Any] = {context.name: await load_row(call), **found}
    document = await view_of(context).cluster_document()
    stalls = cluster_stalls(document, counted=call.caller.may(MONITORING))
    for load in loads.values():
        stalls += load.pop("stalls")
    shown = cluster_row(call, document)
    if not call.caller.may(MONITORING):
        for broker in shown["brokers"]:  # how many connections are the caller's own
            broker["connections"] = loads.get(broker["name"], {}).get("connections", 0)
    return answer(
        {
            **shown,
            "now_ms": context.now_ms(),
            "loads": loads,
            "silent": gathered.silent,
            "stalls": stalls,
        }
    )


ENDPOINTS: Final = (
    GET("/api/rhizome/live", MANAGEMENT, show_live, row_of(rhizome_schemas.LIVE, WITH_HISTORY)),
    GET(LOAD_PATH, MANAGEMENT, show_load, row_of(rhizome_schemas.LOAD, WITH_HISTORY)),
)
