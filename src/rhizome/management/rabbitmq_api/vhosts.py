"""/api/vhosts: show vhosts, create and delete them, and the limits of each."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from rhizome.broker.metadata.metadata_commands import (
    SCOPE_USER,
    SCOPE_VHOST,
    DeleteLimit,
    DeleteVhost,
    PutLimit,
    PutParameter,
    PutPermission,
    PutVhost,
)
from rhizome.broker.metadata.new_queue_arguments import (
    DEFAULT_TYPE,
    DEFAULTS_COMPONENT,
    QUEUE_TYPES,
)
from rhizome.management.errors import BadRequest, ObjectNotFound
from rhizome.management.firehose import trace, until_known
from rhizome.management.http.api_call import BODY_BYTES_MAX, Call
from rhizome.management.http.auth import ADMINISTRATOR, MANAGEMENT
from rhizome.management.http.endpoint import DELETE, GET, POST, PUT
from rhizome.management.http.json_body import Document, read_document
from rhizome.management.http.json_responses import Row, answer, created, done, listed, shown_row
from rhizome.management.openapi import rabbitmq_schemas, request_schemas
from rhizome.management.openapi.endpoint_shapes import DONE, MADE, columns_of, row_of, rows_of
from rhizome.management.peers.cluster_wide_queries import ask_all, documents, peer_request_of
from rhizome.management.rabbitmq_api.json_rows import (
    permission_row,
    topic_permission_row,
    vhost_row,
)
from rhizome.management.rabbitmq_api.overview_and_nodes import add_numbers
from rhizome.management.state_proposals import propose

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
    body = await call.body(BODY_BYTES_MAX)
    document = await read_document(body)
    if call.asked:
        await until_known(call.context, name)
        trace(call.context, name, document.flag("tracing"))
        return done()
    existing = call.context.broker.state.vhosts.get(name)
    tags = document.words("tags") if "tags" in document else existing.tags if existing else ()
    description = document.text("description", existing.description if existing else "")
    kind = checked_type(document) if DEFAULT_TYPE in document else ""
    await propose(call.context, PutVhost(name, description, tags))
    if kind:
        await propose(call.context, PutParameter(DEFAULTS_COMPONENT, name, DEFAULT_TYPE, kind))
    if existing is None:
        user = call.caller.user
        command = PutPermission(user, name, EVERYTHING, EVERYTHING, EVERYTHING)
        await propose(call.context, command)
    if "tracing" in document:
        trace(call.context, name, document.flag("tracing"))
        await ask_all(call, peer_request_of(call, body))
    return created(existing is None)


def checked_type(document: Document) -> str:
    """The default type of queues in a vhost's document; empty if it has none of its own."""
    kind = document.text(DEFAULT_TYPE)
    if kind == "undefined":
        return ""
    if kind not in QUEUE_TYPES:
        raise BadRequest(f"{kind} is not a valid queue type")
    return kind


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
    if limit not in VHOST_LIMITS:  # the state also takes users' limits, without effect
        names = " or ".join(VHOST_LIMITS)
        raise BadRequest(f"unknown limit '{limit}' of a vhost; it must be {names}")
    return await _put_limit(call, SCOPE_VHOST, call.name("vhost"))


async def delete_vhost_limit(call: Call) -> Response:
    call.vhost()
    return await _delete_limit(call, SCOPE_VHOST, call.name("vhost"))


async def list_user_limits(call: Call) -> Response:
    """The limits of all users for those who monitor, of the caller for others: whether there is
    another user is not told either."""
    limits = call.context.broker.state.accounts.limits
    wanted = call.request.path_params.get("user")
    if wanted is not None and wanted not in call.context.broker.state.users:
        if call.caller.sees(wanted):
            raise ObjectNotFound
    shown = [name for name, value in limits.items() if value and call.caller.sees(name)]
    found = [name for name in shown if wanted in (None, name)]
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
    GET("/api/whoami", MANAGEMENT, show_whoami, row_of(rabbitmq_schemas.WHOAMI)),
    GET("/api/vhosts", MANAGEMENT, list_vhosts, rows_of(rabbitmq_schemas.VHOST)),
    GET("/api/vhosts/{vhost}", ADMINISTRATOR, show_vhost, columns_of(rabbitmq_schemas.VHOST)),
    PUT("/api/vhosts/{vhost}", ADMINISTRATOR, put_vhost, MADE, request_schemas.VHOST),
    DELETE("/api/vhosts/{vhost}", ADMINISTRATOR, delete_vhost, DONE),
    POST("/api/vhosts/{vhost}/start/{node}", ADMINISTRATOR, start_vhost, DONE),
    GET(
        "/api/vhosts/{vhost}/permissions",
        ADMINISTRATOR,
        list_permissions_of_vhost,
        rows_of(rabbitmq_schemas.PERMISSION),
    ),
    GET(
        "/api/vhosts/{vhost}/topic-permissions",
        ADMINISTRATOR,
        list_topic_permissions_of_vhost,
        rows_of(rabbitmq_schemas.TOPIC_PERMISSION),
    ),
    GET("/api/vhost-limits", MANAGEMENT, list_vhost_limits, rows_of(rabbitmq_schemas.VHOST_LIMITS)),
    GET(
        "/api/vhost-limits/{vhost}",
        MANAGEMENT,
        list_vhost_limits,
        rows_of(rabbitmq_schemas.VHOST_LIMITS),
    ),
    PUT(
        "/api/vhost-limits/{vhost}/{limit}",
        ADMINISTRATOR,
        put_vhost_limit,
        DONE,
        request_schemas.LIMIT,
    ),
    DELETE("/api/vhost-limits/{vhost}/{limit}", ADMINISTRATOR, delete_vhost_limit, DONE),
    GET("/api/user-limits", MANAGEMENT, list_user_limits, rows_of(rabbitmq_schemas.USER_LIMITS)),
    GET(
        "/api/user-limits/{user}",
        MANAGEMENT,
        list_user_limits,
        rows_of(rabbitmq_schemas.USER_LIMITS),
    ),
    PUT(
        "/api/user-limits/{user}/{limit}",
        ADMINISTRATOR,
        put_user_limit,
        DONE,
        request_schemas.LIMIT,
    ),
    DELETE("/api/user-limits/{user}/{limit}", ADMINISTRATOR, delete_user_limit, DONE),
)
