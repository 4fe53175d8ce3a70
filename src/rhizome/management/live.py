"""/api/rhizome/live: what the console shows and asks for again and again, in one answer.

The cluster as this broker sees it, and the load of every broker that answers.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from rhizome.management import declared, ownshapes
from rhizome.management.answers import Row, answer
from rhizome.management.auth import MANAGEMENT, MONITORING
from rhizome.management.call import Call
from rhizome.management.cluster import view_of
from rhizome.management.endpoint import Endpoint
from rhizome.management.everywhere import documents
from rhizome.management.history import ALL
from rhizome.management.process import resident_set_bytes
from rhizome.management.stalls import cluster_stalls, own_stalls

LOAD_PATH: Final = "/api/rhizome/load"
WITH_HISTORY: Final = declared.Parameter(
    "history", declared.FLAG, "With the last minutes, in columns"
)


async def load_row(call: Call) -> Row:
    """How busy this broker is, and what waits there."""
    context = call.context
    totals = await context.rates.totals()
    running = context.broker.running_connections()
    row: Row = {
        "uptime_ms": context.uptime_ms(),
        "connections": len(running),
        "channels": sum(len(each.channels) for each in running),
        "consumers": totals.consumers,
        "queues": totals.queues,
        "ready": totals.ready,
        "unacked": totals.unacked,
        "ready_bytes": totals.ready_bytes,
        "rates": context.rates.per_second(totals),
        "memory_bytes": resident_set_bytes(),
        "memory_max_bytes": context.memory_max_bytes(),
        "disk_free_bytes": context.store.free_bytes(),
        "alarm": context.shell.alarm,
        "http": [listener.url for listener in context.http_listeners],
        "links": context.others.links(),
        "stalls": own_stalls(context) if call.caller.may(MONITORING) else [],
    }
    if call.flag("history"):
        row["history"] = context.rates.history.row(ALL)
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
    stalls = cluster_stalls(document)
    for load in loads.values():
        stalls += load.pop("stalls")
    return answer(
        {
            **document.row(),
            "now_ms": context.now_ms(),
            "loads": loads,
            "silent": gathered.silent,
            "stalls": stalls,
        }
    )


ENDPOINTS: Final = (
    Endpoint(
        "GET",
        "/api/rhizome/live",
        MANAGEMENT,
        show_live,
        declared.row_of(ownshapes.LIVE, WITH_HISTORY),
    ),
    Endpoint(
        "GET", LOAD_PATH, MANAGEMENT, show_load, declared.row_of(ownshapes.LOAD, WITH_HISTORY)
    ),
)
