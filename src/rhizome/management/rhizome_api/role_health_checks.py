"""/api/health/...: what this broker is now, for load balancers and resource managers.

200 {"status": "ok"} if it is that, 503 {"status": "failed", "reason": ...} if not. Each is about
the broker that is asked, and is answered from memory.
"""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from rhizome.management.cluster_view import ACTIVE, READY, BrokerInfo, ClusterDocument
from rhizome.management.http.api_call import Call
from rhizome.management.http.auth import MANAGEMENT
from rhizome.management.http.endpoint import GET
from rhizome.management.http.json_responses import answer
from rhizome.management.openapi.rabbitmq_schemas import CHECKED
from rhizome.management.rabbitmq_api.health_checks import OK, failed
from rhizome.management.rhizome_api.cluster_status_and_changes import view_of

HEALTH: Final = "/api/health"


def _own(document: ClusterDocument) -> BrokerInfo | None:
    found = [each for each in document.brokers if each.name == document.seen_by]
    return found[0] if found else None


def _checked(reason: str) -> Response:
    return failed(reason) if reason else answer(OK)


async def check_ready(call: Call) -> Response:
    """Whether applications should be sent here."""
    document = await view_of(call.context).cluster_document()
    return _checked(
        why_not_ready(document, call.context.broker.isolation, call.context.shell.alarm)
    )


def why_not_ready(document: ClusterDocument, isolation: str, alarm: str) -> str:
    own = _own(document)
    if own is None:
        return "it is starting"
    if isolation:
        return isolation
    if own.draining:
        return "it is being drained"
    if own.status not in (ACTIVE, READY):
        return f"it is {own.status}"
    return alarm


async def check_root(call: Call) -> Response:
    """Whether this broker is the root."""
    document = await view_of(call.context).cluster_document()
    root = document.cluster.root
    return _checked("" if root == document.seen_by else f"the root is {root or 'nobody'}")


async def check_home_of_group(call: Call) -> Response:
    """Whether this broker is the home of a group."""
    document = await view_of(call.context).cluster_document()
    wanted = call.name("group")
    found = [each for each in document.groups if str(each.id) == wanted]
    if not found:
        return _checked(f"there is no group {wanted[:20]}")
    home = found[0].home
    return _checked("" if home == document.seen_by else f"its home is {home or 'nobody'}")


async def check_home_of_queue(call: Call) -> Response:
    """Whether a queue is active at this broker."""
    queue = call.queue()
    if queue.away is None:
        return answer(OK)
    return failed(f"its home is {call.context.others.home_of(queue) or 'nobody'}")


async def check_drained(call: Call) -> Response:
    """Whether this broker is drained, and may stop."""
    return _checked(why_not_drained(await view_of(call.context).cluster_document()))


def why_not_drained(document: ClusterDocument) -> str:
    own = _own(document)
    if own is None or not own.draining:
        return "it is not being drained"
    left = {
        "homes": own.homes - own.stuck,
        "copies that others wait for": own.copies,
        "connections": own.connections,
    }
    waiting = [f"{count} {what}" for what, count in left.items() if count > 0]
    return f"it still has {', '.join(waiting)}" if waiting else ""


ENDPOINTS: Final = (
    GET(HEALTH + "/ready", MANAGEMENT, check_ready, CHECKED),
    GET(HEALTH + "/root", MANAGEMENT, check_root, CHECKED),
    GET(HEALTH + "/drained", MANAGEMENT, check_drained, CHECKED),
    GET(HEALTH + "/home/{group}", MANAGEMENT, check_home_of_group, CHECKED),
    GET(HEALTH + "/home/{vhost}/{name}", MANAGEMENT, check_home_of_queue, CHECKED),
)
