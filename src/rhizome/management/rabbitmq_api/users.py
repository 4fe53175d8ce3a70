"""/api/users, /api/permissions, /api/topic-permissions: who may do what."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from starlette.responses import Response

from rhizome.broker.access.auth_interface import KIND_APPLICATION
from rhizome.broker.metadata.metadata_commands import (
    DeletePermission,
    DeleteTopicPermission,
    DeleteUser,
    PutPermission,
    PutTopicPermission,
    PutUser,
)
from rhizome.broker.metadata.queue_policy_user_records import User
from rhizome.management.errors import BadRequest, ObjectNotFound
from rhizome.management.http.api_call import Call
from rhizome.management.http.auth import ADMINISTRATOR
from rhizome.management.http.cooperative_yield import Pace
from rhizome.management.http.endpoint import DELETE, GET, POST, PUT
from rhizome.management.http.json_body import Document
from rhizome.management.http.json_responses import answer, created, done, listed
from rhizome.management.openapi import rabbitmq_schemas, request_schemas
from rhizome.management.openapi.endpoint_shapes import DONE, MADE, row_of, rows_of
from rhizome.management.rabbitmq_api.json_rows import (
    DEFAULT_EXCHANGE,
    RABBIT_HASH,
    SCRYPT,
    permission_row,
    topic_permission_row,
    user_row,
)
from rhizome.management.state_proposals import propose
from rhizome.regex import check_pattern
from rhizome.security.password_hashes import (
    ScryptCost,
    check_encoded,
    hash_password,
    import_rabbitmq_hash,
    is_same_password,
    needs_rehash,
    upgraded_hash,
    verify_password,
)

# ---- users --------------------------------------------------------------------------------------


async def user_command(
    name: str, document: Document, kind: str, cost: ScryptCost, existing: str = ""
) -> PutUser:
    """The command that a user's JSON asks for. Hashing a password takes a while, so a thread does
    it.

    With neither password nor hash the user can log in by other means only. ``existing``: the hash
    that the user has. It stays if the password is the same, because another hash would end the
    user's open connections; so does a hash that was made from the same imported hash.
    """
    tags = document.words("tags")
    kind = document.text("type", kind)
    if "password" in document and document.text("password"):
        if document.text("password_hash", ""):
            raise BadRequest("both password and password_hash are given; keep one")
        password = document.text("password").encode("utf-8", "surrogateescape")
        loop = asyncio.get_running_loop()
        encoded = await loop.run_in_executor(None, partial(_hash_of, existing, password, cost))
    else:
        encoded = _given_hash(document)
        if encoded and is_same_password(encoded, existing):
            encoded = existing
    return PutUser(name, encoded, kind, tags)


def _hash_of(existing: str, password: bytes, cost: ScryptCost) -> str:
    if verify_password(existing, password):
        return upgraded_hash(existing, password, cost) if needs_rehash(existing, cost) else existing
    return hash_password(password, cost=cost)


def _given_hash(document: Document) -> str:
    given = document.text("password_hash", "")
    algorithm = document.text("hashing_algorithm", RABBIT_HASH["rabbit-sha256"])
    if algorithm == SCRYPT or given.startswith("$"):
        check_encoded(given)
        return given
    return import_rabbitmq_hash(given, algorithm)


def _user(call: Call) -> User:
    user = call.context.broker.state.users.get(call.name())
    if user is None:
        raise ObjectNotFound
    return user


async def list_users(call: Call) -> Response:
    state = call.context.broker.state
    found = list(state.users.values())
    return await listed(
        call, found, lambda user: user_row(user, state.accounts.limits.get(user.name, {}))
    )


async def list_users_without_permissions(call: Call) -> Response:
    state = call.context.broker.state
    some = {user for user, _ in state.permissions}
    found = [user for user in state.users.values() if user.name not in some]
    return await listed(
        call, found, lambda user: user_row(user, state.accounts.limits.get(user.name, {}))
    )


async def show_user(call: Call) -> Response:
    user = _user(call)
    return answer(user_row(user, call.context.broker.state.accounts.limits.get(user.name, {})))


async def put_user(call: Call) -> Response:
    name = call.name()
    existing = call.context.broker.state.users.get(name)
    kind = existing.kind if existing else KIND_APPLICATION
    cost = call.context.config.password_cost()
    encoded = existing.password_hash if existing else ""
    command = await user_command(name, await call.document(), kind, cost, encoded)
    await propose(call.context, command)
    return created(existing is None)


async def delete_user(call: Call) -> Response:
    await propose(call.context, DeleteUser(_user(call).name))
    return done()


async def delete_users(call: Call) -> Response:
    pace = Pace()
    for name in (await call.document()).words("users"):
        await propose(call.context, DeleteUser(name))
        # Deleting a user who doesn't exist changes nothing that could be waited for.
        if pace.is_due():
            await pace.rest()
    return done()


# ---- permissions --------------------------------------------------------------------------------


def permission_command(user: str, vhost: str, document: Document) -> PutPermission:
    patterns = [document.text(name) for name in ("configure", "write", "read")]
    for pattern in patterns:
        check_pattern(pattern)
    return PutPermission(user, vhost, *patterns)


def topic_permission_command(user: str, vhost: str, document: Document) -> PutTopicPermission:
    exchange = document.text("exchange")
    patterns = [document.text(name) for name in ("write", "read")]
    for pattern in patterns:
        check_pattern(pattern)
    # The state keeps the rule under the name that permission checks ask for.
    return PutTopicPermission(user, vhost, exchange or DEFAULT_EXCHANGE, *patterns)


async def list_permissions(call: Call) -> Response:
    found = list(call.context.broker.state.permissions.values())
    return await listed(call, found, permission_row)


async def list_permissions_of_user(call: Call) -> Response:
    user = _user(call).name
    found = call.context.broker.state.permissions.values()
    return await listed(call, [each for each in found if each.user == user], permission_row)


async def show_permission(call: Call) -> Response:
    key = (call.name("user"), call.name("vhost"))
    permission = call.context.broker.state.permissions.get(key)
    if permission is None:
        raise ObjectNotFound
    return answer(permission_row(permission))


async def put_permission(call: Call) -> Response:
    key = (call.name("user"), call.name("vhost"))
    _check_ends(call)
    is_new = key not in call.context.broker.state.permissions
    await propose(call.context, permission_command(*key, await call.document()))
    return created(is_new)


async def delete_permission(call: Call) -> Response:
    key = (call.name("user"), call.name("vhost"))
    if key not in call.context.broker.state.permissions:
        raise ObjectNotFound
    await propose(call.context, DeletePermission(*key))
    return done()


def _check_ends(call: Call) -> None:
    """RabbitMQ answers 400, not 404, to a permission of or for something unknown."""
    state = call.context.broker.state
    if call.name("user") not in state.users:
        raise BadRequest(f"user '{call.name('user')}' does not exist")
    if call.name("vhost") not in state.vhosts:
        raise BadRequest(f"vhost '{call.name('vhost')}' does not exist")


# ---- topic permissions --------------------------------------------------------------------------


async def list_topic_permissions(call: Call) -> Response:
    found = list(call.context.broker.state.topic_permissions.values())
    return await listed(call, found, topic_permission_row)


async def list_topic_permissions_of_user(call: Call) -> Response:
    user = _user(call).name
    found = call.context.broker.state.topic_permissions.values()
    return await listed(call, [each for each in found if each.user == user], topic_permission_row)


async def show_topic_permissions(call: Call) -> Response:
    wanted = (call.name("user"), call.name("vhost"))
    found = [
        each
        for each in call.context.broker.state.topic_permissions.values()
        if (each.user, each.vhost) == wanted
    ]
    if not found:
        raise ObjectNotFound
    return await listed(call, found, topic_permission_row)


async def put_topic_permission(call: Call) -> Response:
    _check_ends(call)
    state = call.context.broker.state
    command = topic_permission_command(call.name("user"), call.name("vhost"), await call.document())
    is_new = (command.user, command.vhost, command.exchange) not in state.topic_permissions
    await propose(call.context, command)
    return created(is_new)


async def delete_topic_permissions(call: Call) -> Response:
    """All rules of a user in a vhost, or the one of the exchange that the path names."""
    wanted = (call.name("user"), call.name("vhost"))
    exchange = call.request.path_params.get("exchange")
    keys = [
        key
        for key in call.context.broker.state.topic_permissions
        if key[:2] == wanted and exchange in (None, key[2])
    ]
    if not keys:
        raise ObjectNotFound
    for key in keys:
        await propose(call.context, DeleteTopicPermission(*key))
    return done()


_TOPIC: Final = "/api/topic-permissions/{vhost}/{user}"

ENDPOINTS: Final = (
    GET("/api/users", ADMINISTRATOR, list_users, rows_of(rabbitmq_schemas.USER)),
    POST("/api/users/bulk-delete", ADMINISTRATOR, delete_users, DONE, request_schemas.USERS),
    GET(
        "/api/users/without-permissions",
        ADMINISTRATOR,
        list_users_without_permissions,
        rows_of(rabbitmq_schemas.USER),
    ),
    GET("/api/users/{name}", ADMINISTRATOR, show_user, row_of(rabbitmq_schemas.USER)),
    PUT("/api/users/{name}", ADMINISTRATOR, put_user, MADE, request_schemas.USER),
    DELETE("/api/users/{name}", ADMINISTRATOR, delete_user, DONE),
    GET(
        "/api/users/{name}/permissions",
        ADMINISTRATOR,
        list_permissions_of_user,
        rows_of(rabbitmq_schemas.PERMISSION),
    ),
    GET(
        "/api/users/{name}/topic-permissions",
        ADMINISTRATOR,
        list_topic_permissions_of_user,
        rows_of(rabbitmq_schemas.TOPIC_PERMISSION),
    ),
    GET("/api/permissions", ADMINISTRATOR, list_permissions, rows_of(rabbitmq_schemas.PERMISSION)),
    GET(
        "/api/permissions/{vhost}/{user}",
        ADMINISTRATOR,
        show_permission,
        row_of(rabbitmq_schemas.PERMISSION),
    ),
    PUT(
        "/api/permissions/{vhost}/{user}",
        ADMINISTRATOR,
        put_permission,
        MADE,
        request_schemas.PERMISSION,
    ),
    DELETE("/api/permissions/{vhost}/{user}", ADMINISTRATOR, delete_permission, DONE),
    GET(
        "/api/topic-permissions",
        ADMINISTRATOR,
        list_topic_permissions,
        rows_of(rabbitmq_schemas.TOPIC_PERMISSION),
    ),
    GET(_TOPIC, ADMINISTRATOR, show_topic_permissions, rows_of(rabbitmq_schemas.TOPIC_PERMISSION)),
    PUT(_TOPIC, ADMINISTRATOR, put_topic_permission, MADE, request_schemas.TOPIC_PERMISSION),
    DELETE(_TOPIC, ADMINISTRATOR, delete_topic_permissions, DONE),
    DELETE(_TOPIC + "/{exchange}", ADMINISTRATOR, delete_topic_permissions, DONE),
)
