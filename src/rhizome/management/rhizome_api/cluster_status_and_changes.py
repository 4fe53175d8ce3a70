"""/api/rhizome/cluster: the cluster as this broker sees it, and changes that a person orders.

Every change is shown before it is made: a POST with {"preview": true} answers what would happen and
a basis; the same POST with that basis makes the change, or is refused if things have changed since.
"""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from rhizome.broker.group_log.local_group_log import LOCAL_GROUP, LocalGroupLog
from rhizome.management.api_context import Context
from rhizome.management.cluster_view import (
    ACTIVE,
    ADD_PRIMARY,
    FORCE_ROOT,
    PRIMARY,
    READY,
    REMOVE_PRIMARY,
    SECONDARY,
    BrokerInfo,
    Change,
    ChangeRefused,
    ClusterControl,
    ClusterDocument,
    ClusterInfo,
    ClusterView,
    CopyInfo,
    GroupCopies,
    GroupInfo,
    Preview,
    Quorum,
    TxPart,
)
from rhizome.management.errors import BadRequest
from rhizome.management.http.api_call import Call
from rhizome.management.http.auth import ADMINISTRATOR, MANAGEMENT
from rhizome.management.http.caller_visible_totals import cluster_row
from rhizome.management.http.endpoint import GET, POST, PREVIEW_KEY
from rhizome.management.http.json_body import Document
from rhizome.management.http.json_responses import answer
from rhizome.management.openapi import rabbitmq_schemas, request_schemas, rhizome_schemas
from rhizome.management.openapi.endpoint_shapes import row_of

LONE_TERM: Final = 1
LONE_REFUSAL: Final = (
    "this broker is lone, its own root and only primary; a cluster begins with cluster.primaries"
    " in the configuration of each of its brokers"
)


class LoneView:
    """A standalone broker is a cluster of one: the only primary, and so the root."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def cluster_document(self) -> ClusterDocument:
        context = self._context
        totals = await context.rates.totals()
        log = context.broker.log
        epoch = int(log.epoch) if isinstance(log, LocalGroupLog) else 1
        messages = totals.ready + totals.unacked
        return ClusterDocument(
            context.name,
            ClusterInfo(
                context.store.uuid.hex(),
                context.broker.settings.cluster_name,
                LONE_TERM,
                context.name,
                Quorum(1, 1, 1),
            ),
            (self._broker(),),
            (
                GroupInfo(
                    LOCAL_GROUP,
                    context.name,
                    epoch,
                    (),
                    (),
                    totals.queues,
                    messages,
                    local=True,
                    origin=context.name,
                ),
            ),
        )

    def copy_of(self, group: int) -> CopyInfo | None:
        return None

    def group_copies(self) -> list[GroupCopies]:
        return []

    def doubts(self) -> list[TxPart]:
        return []

    def unseen_groups(self) -> list[int]:
        return []

    def key_fingerprints(self) -> list[str]:
        return []

    def link_fingerprints(self) -> dict[str, str]:
        return {}

    def exposed_links(self) -> list[str]:
        return []

    def troubled_homes(self) -> list[str]:
        return []

    def _broker(self) -> BrokerInfo:
        context = self._context
        return BrokerInfo(
            context.name,
            PRIMARY,
            ACTIVE,
            1,
            context.machine,
            tuple(context.addresses()),
            len(context.broker.running_connections()),
            linked=True,
        )


class LoneControl:
    """The control of a standalone broker, which has nothing to change."""

    def preview(self, change: Change) -> Preview:
        return Preview((), refusal=LONE_REFUSAL)

    async def execute(self, change: Change, basis: str) -> str:
        raise ChangeRefused(LONE_REFUSAL)


def view_of(context: Context) -> ClusterView:
    return context.view or LoneView(context)


def control_of(context: Context) -> ClusterControl:
    return context.control or LoneControl()


# ---- handlers -----------------------------------------------------------------------------------


async def show_cluster(call: Call) -> Response:
    return answer(cluster_row(call, await view_of(call.context).cluster_document()))


async def show_failover_map(call: Call) -> Response:
    """Who takes over from each broker, in order."""
    document = await view_of(call.context).cluster_document()
    return answer(document.row()["failover_map"])


async def force_root(call: Call) -> Response:
    return await ordered(call, await call.document(), Change(FORCE_ROOT))


async def change_primaries(call: Call) -> Response:
    document = await call.document()
    wanted = [key for key in ("add", "remove") if key in document]
    if len(wanted) != 1:
        raise BadRequest('name one broker, as {"add": NAME} or {"remove": NAME}')
    kind = ADD_PRIMARY if wanted == ["add"] else REMOVE_PRIMARY
    return await ordered(call, document, Change(kind, document.text(wanted[0])))


async def ordered(call: Call, document: Document, change: Change) -> Response:
    """Preview a change that an operator orders, or make it as it was shown."""
    control = control_of(call.context)
    if document.flag("preview"):
        call.request.scope[PREVIEW_KEY] = True
        return answer(_preview_row(change, control.preview(change)))
    if "basis" not in document:
        raise BadRequest(
            'ask with {"preview": true} first, and send the basis that it answers: a change is made'
            " only as it was shown"
        )
    call.context.shell.begin_turn()
    return answer({"done": await control.execute(change, document.text("basis"))})


def _preview_row(change: Change, preview: Preview) -> dict[str, object]:
    return {
        "change": change.kind,
        "broker": change.broker,
        "group": change.group or None,
        "steps": list(preview.steps),
        "warnings": list(preview.warnings),
        "refusal": preview.refusal,
        "basis": preview.basis,
    }


async def check_quorum_critical(call: Call) -> Response:
    """Fails if stopping this broker would stop the cluster: scripts of rolling restarts ask."""
    document = await view_of(call.context).cluster_document()
    text = quorum_critical(document)
    if not text:
        return answer({"status": "ok"})
    return answer({"status": "failed", "reason": text, "queues": []}, 503)


def quorum_critical(document: ClusterDocument) -> str:
    """Why the cluster can't do without this broker; empty if it can, or if it is standalone."""
    quorum = document.cluster.quorum
    own = [each for each in document.brokers if each.name == document.seen_by]
    votes = any(each.role != SECONDARY and each.status in (ACTIVE, READY) for each in own)
    if quorum.defined <= 1 or not votes:
        return ""
    # A root that stops leaves an election behind, which takes more than half (R1).
    is_root = document.cluster.root == document.seen_by
    needed = quorum.defined // 2 + 1 if is_root else quorum.needed
    if quorum.active - 1 >= needed:
        return ""
    return (
        f"without {document.seen_by} {quorum.active - 1} of {quorum.defined} primaries are left,"
        f" and {needed} are needed"
    )


ENDPOINTS: Final = (
    GET(
        "/api/rhizome/failover-map",
        MANAGEMENT,
        show_failover_map,
        row_of(rhizome_schemas.FAILOVER_MAP),
    ),
    GET("/api/rhizome/cluster", MANAGEMENT, show_cluster, row_of(rhizome_schemas.CLUSTER)),
    POST(
        "/api/rhizome/cluster/force-root",
        ADMINISTRATOR,
        force_root,
        rhizome_schemas.ORDERED,
        request_schemas.FORCE_ROOT,
    ),
    POST(
        "/api/rhizome/cluster/primaries",
        ADMINISTRATOR,
        change_primaries,
        rhizome_schemas.ORDERED,
        request_schemas.PRIMARIES,
    ),
    GET(
        "/api/health/checks/node-is-quorum-critical",
        MANAGEMENT,
        check_quorum_critical,
        rabbitmq_schemas.CHECKED,
    ),
)
