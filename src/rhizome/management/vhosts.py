"""/api/vhosts: look at vhosts, create and delete them, and the limits of each."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from rhizome.broker.commands import (
    SCOPE_USER,
    SCOPE_VHOST,
    DeleteLimit,
    DeleteVhost,
    PutLimit,
    PutPermission,
    PutVhost,
)
from rhizome.management import bodies, declared, shapes
from rhizome.management.answers import Row, answer, created, done, listed, shown_row
from rhizome.management.auth import ADMINISTRATOR, MANAGEMENT
from rhizome.management.call import Call
from rhizome.management.endpoint import Endpoint
from rhizome.management.errors import BadRequest, ObjectNotFound
from rhizome.management.everywhere import documents
from rhizome.management.overview import add_numbers
from rhizome.management.proposals import propose
from rhizome.management.rows import permission_row, topic_permission_row, vhost_row

EVERYTHING: Final = ".*"
VHOST_LIMITS: Final = ("max-connections", "max-queues")
MESSAGES: Final = ("messages", "messages_ready", "messages_unacknowledged")


async def list_vhosts(call: Call) -> Response:
    """Those who monitor see all vhosts, though not what is in them."""
    found = call.monitored_vhosts()
    rows = [await vhost_row(call.context, vhost) for vhost in found]
    if call.asked:
        return answer(rows)
    others, _ = await documents(call, call.question("/api/vhosts"))
    for more in others.values():
        add_vhosts(rows, more)
    return await listed(call, rows, lambda row: row)


def add_vhosts(rows: list[Row], others: list[Row]) -> None:
    """Add the messages that another broker has, vhost by vhost."""
    by_name = {other["name"]: other for other in others}
    for row in rows:
        other = by_name.get(row["name"])
        if other is None:
            continue
        for name in MESSAGES:
            add_numbers(row, {name: other[name]})
        mine, theirs = row["cluster_state"], other["cluster_state"]
        if isinstance(mine, dict) and isinstance(theirs, dict):
            mine.update(theirs)


async def show_vhost(call: Call) -> Response:
    rows = [await vhost_row(call.context, call.vhost())]
    others, _ = await documents(call, call.question("/api/vhosts"))
    for more in others.values():
        add_vhosts(rows, more)
    return shown_row(call, rows[0])


async def start_vhost(call: Call) -> Response:
    """RabbitMQ starts a vhost again that has failed on a node; here vhosts don't fail."""
    call.vhost()
    return done()


async def put_vhost(call: Call) -> Response:
    """Create a vhost; as in RabbitMQ, whoever creates it may do everything in it."""
    name = call.name("vhost")
    document = await call.document()
    existing = call.context.broker.state.vhosts.get(name)
    tags = document.words("tags") if "tags" in document else existing.tags if existing else ()
    description = document.text("description", existing.description if existing else "")
    await propose(call.context, PutVhost(name, description, tags))
    if existing is None:
        user = call.caller.user
        command = PutPermission(user, name, EVERYTHING, EVERYTHING, EVERYTHING)
        await propose(call.context, command)
    return created(existing is None)


async def delete_vhost(call: Call) -> Response:
    if call.name("vhost") not in call.context.broker.state.vhosts:
        raise ObjectNotFound
    await propose(call.context, DeleteVhost(call.name("vhost")))
    return done()


async def list_permissions_of_vhost(call: Call) -> Response:
    vhost = call.vhost().name
    found = call.context.broker.state.permissions.values()
    return await listed(call, [each for each in found if each.vhost == vhost], permission_row)


async def list_topic_permissions_of_vhost(call: Call) -> Response:
    vhost = call.vhost().name
    found = call.context.broker.state.topic_permissions.values()
    rows = [each for each in found if each.vhost == vhost]
    return await listed(call, rows, topic_permission_row)


# ---- limits -------------------------------------------------------------------------------------


async def list_vhost_limits(call: Call) -> Response:
    found = [vhost for vhost in call.monitored_vhosts() if vhost.limits]
    return await listed(
        call, found, lambda vhost: {"vhost": vhost.name, "value": dict(vhost.limits)}
    )


async def put_vhost_limit(call: Call) -> Response:
    call.vhost()
    limit = call.name("limit")
    if limit not in VHOST_LIMITS:  # the state takes those of users as well, and nobody heeds them
        names = " or ".join(VHOST_LIMITS)
        raise BadRequest(f"unknown limit '{limit}' of a vhost; it must be {names}")
    return await _put_limit(call, SCOPE_VHOST, call.name("vhost"))


async def delete_vhost_limit(call: Call) -> Response:
    call.vhost()
    return await _delete_limit(call, SCOPE_VHOST, call.name("vhost"))


async def list_user_limits(call: Call) -> Response:
    limits = call.context.broker.state.accounts.limits
    wanted = call.request.path_params.get("user")
    if wanted is not None and wanted not in call.context.broker.state.users:
        raise ObjectNotFound
    found = [name for name, value in limits.items() if value and wanted in (None, name)]
    return await listed(call, found, lambda name: {"user": name, "value": dict(limits[name])})


async def put_user_limit(call: Call) -> Response:
    return await _put_limit(call, SCOPE_USER, call.name("user"))


async def delete_user_limit(call: Call) -> Response:
    return await _delete_limit(call, SCOPE_USER, call.name("user"))


async def _put_limit(call: Call, scope: str, name: str) -> Response:
    value = (await call.document()).number("value")
    await propose(call.context, PutLimit(scope, name, call.name("limit"), value))
    return done()


async def _delete_limit(call: Call, scope: str, name: str) -> Response:
    if scope == SCOPE_USER and name not in call.context.broker.state.users:
        raise ObjectNotFound
    await propose(call.context, DeleteLimit(scope, name, call.name("limit")))
    return done()


async def show_whoami(call: Call) -> Response:
    return answer({"name": call.caller.user, "tags": list(call.caller.identity.tags)})


ENDPOINTS: Final = (
    Endpoint("GET", "/api/whoami", MANAGEMENT, show_whoami, declared.row_of(shapes.WHOAMI)),
    Endpoint("GET", "/api/vhosts", MANAGEMENT, list_vhosts, declared.rows_of(shapes.VHOST)),
    Endpoint(
        "GET", "/api/vhosts/{vhost}", ADMINISTRATOR, show_vhost, declared.columns_of(shapes.VHOST)
    ),
    Endpoint("PUT", "/api/vhosts/{vhost}", ADMINISTRATOR, put_vhost, declared.MADE, bodies.VHOST),
    Endpoint("DELETE", "/api/vhosts/{vhost}", ADMINISTRATOR, delete_vhost, declared.DONE),
    Endpoint("POST", "/api/vhosts/{vhost}/start/{node}", ADMINISTRATOR, start_vhost, declared.DONE),
    Endpoint(
        "GET",
        "/api/vhosts/{vhost}/permissions",
        ADMINISTRATOR,
        list_permissions_of_vhost,
        declared.rows_of(shapes.PERMISSION),
    ),
    Endpoint(
        "GET",
        "/api/vhosts/{vhost}/topic-permissions",
        ADMINISTRATOR,
        list_topic_permissions_of_vhost,
        declared.rows_of(shapes.TOPIC_PERMISSION),
    ),
    Endpoint(
        "GET",
        "/api/vhost-limits",
        MANAGEMENT,
        list_vhost_limits,
        declared.rows_of(shapes.VHOST_LIMITS),
    ),
    Endpoint(
        "GET",
        "/api/vhost-limits/{vhost}",
        MANAGEMENT,
        list_vhost_limits,
        declared.rows_of(shapes.VHOST_LIMITS),
    ),
    Endpoint(
        "PUT",
        "/api/vhost-limits/{vhost}/{limit}",
        ADMINISTRATOR,
        put_vhost_limit,
        declared.DONE,
        bodies.LIMIT,
    ),
    Endpoint(
        "DELETE",
        "/api/vhost-limits/{vhost}/{limit}",
        ADMINISTRATOR,
        delete_vhost_limit,
        declared.DONE,
    ),
    Endpoint(
        "GET",
        "/api/user-limits",
        MANAGEMENT,
        list_user_limits,
        declared.rows_of(shapes.USER_LIMITS),
    ),
    Endpoint(
        "GET",
        "/api/user-limits/{user}",
        MANAGEMENT,
        list_user_limits,
        declared.rows_of(shapes.USER_LIMITS),
    ),
    Endpoint(
        "PUT",
        "/api/user-limits/{user}/{limit}",
        ADMINISTRATOR,
        put_user_limit,
        declared.DONE,
        bodies.LIMIT,
    ),
    Endpoint(
        "DELETE", "/api/user-limits/{user}/{limit}", ADMINISTRATOR, delete_user_limit, declared.DONE
    ),
)
