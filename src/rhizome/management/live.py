"""/api/rhizome/live: what the console shows and asks for again and again, in one answer.

The cluster as this broker sees it, and the load of every broker that answers. Who doesn't monitor
sees the load of the vhosts that it may enter, and its own connections, as in the lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from starlette.responses import Response

from rhizome.broker.connection import Connection
from rhizome.management import declared, ownshapes
from rhizome.management.answers import Row, answer
from rhizome.management.auth import MANAGEMENT, MONITORING
from rhizome.management.call import Call
from rhizome.management.cluster import view_of
from rhizome.management.clusterview import ClusterDocument
from rhizome.management.endpoint import Endpoint
from rhizome.management.everywhere import documents
from rhizome.management.history import ALL
from rhizome.management.process import resident_set_bytes
from rhizome.management.rates import Totals
from rhizome.management.stalls import cluster_stalls, own_stalls

LOAD_PATH: Final = "/api/rhizome/load"
WITH_HISTORY: Final = declared.Parameter(
    "history", declared.FLAG, "With the last minutes, in columns"
)


async def load_row(call: Call) -> Row:
    """How busy this broker is, and what waits there."""
    context = call.context
    seen = await (_whole(call) if call.caller.may(MONITORING) else _narrow(call))
    totals, running = seen.totals, seen.connections
    row: Row = {
        "uptime_ms": context.uptime_ms(),
        "connections": len(running),
        "channels": sum(len(each.channels) for each in running),
        "consumers": totals.consumers,
        "queues": totals.queues,
        "ready": totals.ready,
        "unacked": totals.unacked,
        "ready_bytes": totals.ready_bytes,
        "rates": seen.rates,
        "memory_bytes": resident_set_bytes(),
        "memory_max_bytes": context.memory_max_bytes(),
        "disk_free_bytes": context.store.free_bytes(),
        "alarm": context.shell.alarm,
        "http": [listener.url for listener in context.http_listeners],
        "links": context.others.links(),
        "stalls": own_stalls(context) if call.caller.may(MONITORING) else [],
    }
    if seen.history is not None:
        row["history"] = seen.history
    return row


@dataclass(frozen=True, slots=True)
class Seen:
    """What a caller sees of the load of this broker. ``history`` is None if it wasn't asked for."""

    totals: Totals
    rates: Row
    connections: list[Connection]
    history: Row | None


async def _whole(call: Call) -> Seen:
    rates, broker = call.context.rates, call.context.broker
    totals = await rates.totals()
    history = rates.history.row(ALL) if call.flag("history") else None
    return Seen(totals, rates.per_second(totals), broker.running_connections(), history)


async def _narrow(call: Call) -> Seen:
    """The queues in the vhosts that the caller may enter, and its own connections."""
    rates, broker = call.context.rates, call.context.broker
    share = await rates.share({vhost.name for vhost in call.vhosts()})
    running = broker.running_connections()
    own = [each for each in running if each.identity.user == call.caller.user]
    history = await rates.history.together(share.ids) if call.flag("history") else None
    return Seen(share.totals, rates.per_second_of(share), own, history)


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
    shown = document.row()
    if not call.caller.may(MONITORING):
        shown |= _without_counts(document, loads)
    return answer(
        {
            **shown,
            "now_ms": context.now_ms(),
            "loads": loads,
            "silent": gathered.silent,
            "stalls": stalls,
        }
    )


def _without_counts(document: ClusterDocument, loads: Mapping[str, Row]) -> Row:
    """Brokers and groups for who doesn't monitor: homes don't count messages by vhost."""
    return {
        "brokers": [
            {**asdict(each), "connections": loads.get(each.name, {}).get("connections", 0)}
            for each in document.brokers
        ],
        "groups": [{**asdict(each), "queues": None, "messages": None} for each in document.groups],
    }


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
