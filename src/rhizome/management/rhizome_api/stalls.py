"""/api/rhizome/stalls: what waits, where, and for what.

A row is {"broker", "kind", "what", "why"}, each text for people; `kind` is one of KINDS. Other
parts of a broker add what they know through `Context.stall_sources`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from starlette.responses import Response

from rhizome.management.api_context import Context
from rhizome.management.cluster_view import (
    CATCHING_UP,
    DRAINING,
    RECOVERING,
    STOPPED,
    ClusterDocument,
)
from rhizome.management.http.api_call import Call
from rhizome.management.http.auth import MONITORING
from rhizome.management.http.endpoint import GET
from rhizome.management.http.json_responses import Row, answer, listed
from rhizome.management.openapi import rhizome_schemas
from rhizome.management.openapi.endpoint_shapes import list_of, rows_of
from rhizome.management.peers.cluster_wide_queries import documents
from rhizome.management.rhizome_api.cluster_status_and_changes import view_of

KINDS: Final = (
    "alarm",
    "isolated",
    "publishers",
    "disk",
    "link",
    "broker",
    "group",
    "copy",
    "transaction",
)
QUEUES_NAMED_MAX: Final = 20
OWN_PATH: Final = "/api/rhizome/stalls/own"


def own_stalls(context: Context) -> list[Row]:
    """What waits at this broker."""
    broker = context.broker
    rows: list[Row] = []

    def add(kind: str, what: str, why: str) -> None:
        rows.append({"broker": context.name, "kind": kind, "what": what, "why": why})

    if context.shell.alarm:
        add("alarm", "publishers", context.shell.alarm)
    if broker.isolation:
        add("isolated", "deliveries, confirms and publishes", broker.isolation)
    if context.shell.congested:
        add("disk", "publishers", "the disk takes less than is published")
    reasons = Counter(
        connection.blocked_reason
        for connection in broker.connections.values()
        if connection.blocked_reason
    )
    for reason, count in reasons.items():
        add("publishers", f"{count} connection{'s' * (count > 1)}", reason)
    for queue in list(broker.congested)[:QUEUES_NAMED_MAX]:
        what = f"publishers of queue '{queue.name}' in vhost '{queue.vhost}'"
        add("publishers", what, "its consumers take less than is published")
    for link in context.others.links():
        if link["congested"]:
            why = f"{link['backlog_bytes']} bytes wait to be sent"
            add("link", f"publishes for {link['broker']}", why)
    for source in context.stall_sources:
        rows += source()
    return rows


def cluster_stalls(document: ClusterDocument, counted: bool = True) -> list[Row]:
    """What is wrong with the cluster as a whole; ``counted``: including how many queues wait."""
    rows: list[Row] = []

    def add(broker: str | None, kind: str, what: str, why: str) -> None:
        rows.append({"broker": broker, "kind": kind, "what": what, "why": why})

    if document.cluster.root is None:
        add(None, "group", "changes of the cluster", "no root is elected")
    for broker in document.brokers:
        if broker.status == STOPPED:
            add(broker.name, "broker", f"broker {broker.name}", "it is gone")
        elif broker.status in (CATCHING_UP, RECOVERING, DRAINING):
            add(broker.name, "broker", f"broker {broker.name}", f"it is {broker.status}")
    for group in document.groups:
        if group.home is None and group.queues:
            what = f"{f'{group.queues} ' if counted else ''}queues of group {group.id}"
            add(None, "group", what, group.unavailable or "their home can't be reached")
    return rows


async def gathered_stalls(call: Call, document: ClusterDocument) -> list[Any]:
    """Everything that waits, as far as the caller may know."""
    if not call.caller.may(MONITORING):
        return []
    rows: list[Any] = [*cluster_stalls(document), *own_stalls(call.context)]
    found, _ = await documents(call, call.question(OWN_PATH))
    for more in found.values():
        rows += more
    return rows


async def list_stalls(call: Call) -> Response:
    document = await view_of(call.context).cluster_document()
    return await listed(call, await gathered_stalls(call, document), lambda row: row)


async def list_own_stalls(call: Call) -> Response:
    return answer(own_stalls(call.context))


ENDPOINTS: Final = (
    GET("/api/rhizome/stalls", MONITORING, list_stalls, rows_of(rhizome_schemas.STALL)),
    GET(OWN_PATH, MONITORING, list_own_stalls, list_of(rhizome_schemas.STALL)),
)
