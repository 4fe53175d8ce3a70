"""/api/rhizome/groups: the groups, the copies that brokers have of them, and changes of their
homes.

Changes are previewed before they are made, like those of ``cluster_status_and_changes.py``; any
broker takes them.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any, Final

from starlette.responses import Response

from rhizome.management.cluster_view import (
    DRAIN,
    FORCE_HOME,
    MOVE_HOME,
    SETTINGS,
    UNDRAIN,
    UNPIN,
    Change,
    CopyInfo,
    GroupInfo,
    StandbyInfo,
)
from rhizome.management.errors import BadRequest, ObjectNotFound
from rhizome.management.http.api_call import Call
from rhizome.management.http.auth import ADMINISTRATOR, MANAGEMENT
from rhizome.management.http.caller_visible_totals import copy_row, group_row
from rhizome.management.http.endpoint import GET, POST
from rhizome.management.http.json_responses import answer, listed
from rhizome.management.openapi import request_schemas, rhizome_schemas
from rhizome.management.openapi.endpoint_shapes import maybe, row_of, rows_of
from rhizome.management.peers.cluster_wide_queries import documents
from rhizome.management.rhizome_api.cluster_status_and_changes import ordered, view_of

GROUPS: Final = "/api/rhizome/groups"
GRACE_MS_DEFAULT: Final = 60_000
GRACE_MS_MAX: Final = 24 * 3_600_000


async def list_groups(call: Call) -> Response:
    document = await view_of(call.context).cluster_document()
    return await listed(call, document.groups, lambda group: group_row(call, group))


async def show_group(call: Call) -> Response:
    """One group, and what each broker that answers has of it."""
    group = await _group(call)
    copies, silent = await _copies(call, group.id)
    held = [copy_row(call, each) for each in copies]
    return answer({**group_row(call, group), "held": held, "silent": silent})


async def show_own_copy(call: Call) -> Response:
    copy = view_of(call.context).copy_of(_number(call))
    if copy is None:
        return answer(None)
    # A broker gets everything: it needs the numbers, and shows its caller no more than allowed.
    return answer(asdict(copy) if call.asked else copy_row(call, copy))


async def move_home(call: Call) -> Response:
    group = await _group(call)
    document = await call.document()
    return await ordered(call, document, Change(MOVE_HOME, document.text("broker"), group.id))


async def unpin(call: Call) -> Response:
    group = await _group(call)
    return await ordered(call, await call.document(), Change(UNPIN, group=group.id))


async def force_home(call: Call) -> Response:
    group = await _group(call)
    document = await call.document()
    copies, _ = await _copies(call, group.id)
    change = Change(FORCE_HOME, document.text("broker"), group.id, copies=tuple(copies))
    return await ordered(call, document, change)


async def drain(call: Call) -> Response:
    document = await call.document()
    grace_ms = document.number("grace_ms", GRACE_MS_DEFAULT)
    if not 0 <= grace_ms <= GRACE_MS_MAX:
        raise BadRequest(f"grace_ms is {grace_ms}; it must be from 0 to {GRACE_MS_MAX}")
    return await ordered(call, document, Change(DRAIN, call.name("broker"), grace_ms=grace_ms))


async def undrain(call: Call) -> Response:
    return await ordered(call, await call.document(), Change(UNDRAIN, call.name("broker")))


async def change_settings(call: Call) -> Response:
    document = await call.document()
    given: list[tuple[str, int | str]] = []
    for key in ("copies", "min_copies"):
        if key in document:
            given.append((key, document.number(key)))
    if "placement" in document:
        given.append(("placement", document.text("placement")))
    if not given:
        raise BadRequest("name at least one of copies, min_copies and placement")
    return await ordered(call, document, Change(SETTINGS, settings=tuple(given)))


def _number(call: Call) -> int:
    name = call.name("group")
    if not (name.isascii() and name.isdecimal() and len(name) < 10):
        raise ObjectNotFound
    return int(name)


async def _group(call: Call) -> GroupInfo:
    number = _number(call)
    document = await view_of(call.context).cluster_document()
    found = [each for each in document.groups if each.id == number]
    if not found:
        raise ObjectNotFound
    return found[0]


async def _copies(call: Call, group: int) -> tuple[list[CopyInfo], list[str]]:
    """What brokers have of a group, this one first, and which brokers have not answered."""
    own = view_of(call.context).copy_of(group)
    question = call.question(f"{GROUPS}/{group}/own")
    found, gathered = await documents(call, question)
    rows: list[Any] = [None if own is None else asdict(own), *found.values()]
    return [_copy(row) for row in rows if row is not None], gathered.silent


def _copy(row: dict[str, Any]) -> CopyInfo:
    known = _known(CopyInfo, row)
    standbys = tuple(StandbyInfo(**_known(StandbyInfo, each)) for each in known.pop("standbys", ()))
    return CopyInfo(**known, standbys=standbys)


def _known(kind: type[CopyInfo | StandbyInfo], row: dict[str, Any]) -> dict[str, Any]:
    """A broker of another release may send more fields."""
    names = {each.name for each in fields(kind)}
    return {key: value for key, value in row.items() if key in names}


ENDPOINTS: Final = (
    GET(GROUPS, MANAGEMENT, list_groups, rows_of(rhizome_schemas.GROUP)),
    GET(GROUPS + "/{group}", MANAGEMENT, show_group, row_of(rhizome_schemas.GROUP_WHOLE)),
    GET(GROUPS + "/{group}/own", MANAGEMENT, show_own_copy, row_of(maybe(rhizome_schemas.COPY))),
    POST(
        GROUPS + "/{group}/move",
        ADMINISTRATOR,
        move_home,
        rhizome_schemas.ORDERED,
        request_schemas.MOVE,
    ),
    POST(
        GROUPS + "/{group}/unpin",
        ADMINISTRATOR,
        unpin,
        rhizome_schemas.ORDERED,
        request_schemas.UNDRAIN,
    ),
    POST(
        GROUPS + "/{group}/force-home",
        ADMINISTRATOR,
        force_home,
        rhizome_schemas.ORDERED,
        request_schemas.MOVE,
    ),
    POST(
        "/api/rhizome/brokers/{broker}/drain",
        ADMINISTRATOR,
        drain,
        rhizome_schemas.ORDERED,
        request_schemas.DRAIN,
    ),
    POST(
        "/api/rhizome/brokers/{broker}/undrain",
        ADMINISTRATOR,
        undrain,
        rhizome_schemas.ORDERED,
        request_schemas.UNDRAIN,
    ),
    POST(
        "/api/rhizome/cluster/settings",
        ADMINISTRATOR,
        change_settings,
        rhizome_schemas.ORDERED,
        request_schemas.SETTINGS,
    ),
)
