"""/api/rhizome/transactions: the transactions over several groups that aren't settled (L4).

Each broker knows a part; the list is joined from the responses of all. A group whose home doesn't
answer is shown as unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final

from starlette.responses import Response

from rhizome.management.cluster_view import TxInfo, TxPart, TxParty
from rhizome.management.http.api_call import Call
from rhizome.management.http.auth import MONITORING
from rhizome.management.http.endpoint import GET
from rhizome.management.http.json_responses import Row, answer, listed
from rhizome.management.openapi.endpoint_shapes import list_of, rows_of, shape_of
from rhizome.management.peers.cluster_wide_queries import documents
from rhizome.management.rhizome_api.cluster_status_and_changes import view_of

PATH: Final = "/api/rhizome/transactions"
OWN_PATH: Final = PATH + "/own"

EDGE: Final = "edge"
DECIDES: Final = "decides"
IN_DOUBT: Final = "in doubt"
UNDECIDED: Final = "undecided"
UNKNOWN: Final = "unknown"


def together(parts: Iterable[Mapping[str, Any]]) -> list[TxInfo]:
    """One entry for each transaction, the oldest first."""
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for part in parts:
        by_name.setdefault(part["transaction"], []).append(part)
    found = [_together(each) for each in by_name.values()]
    return sorted(found, key=lambda each: (-each.age_ms, each.id))


def _together(parts: list[Mapping[str, Any]]) -> TxInfo:
    some = parts[0]
    by_role = {part["role"]: part for part in parts}
    decided, edge = by_role.get(DECIDES), by_role.get(EDGE)
    told = decided or edge
    waiting = [told] if told is not None else parts
    return TxInfo(
        some["transaction"],
        max(part["age_ms"] for part in parts),
        IN_DOUBT if told is None else told["state"],
        some["edge"],
        some["edge_is_gone"],
        some["decider"],
        tuple(
            _party(some, group, home, parts)
            for group, home in zip(some["groups"], some["homes"], strict=True)
        ),
        tuple(dict.fromkeys(each for part in waiting for each in part["waits_for"])),
    )


def _party(
    some: Mapping[str, Any], group: int, home: str, parts: list[Mapping[str, Any]]
) -> TxParty:
    for part in parts:
        if part["group"] == group:
            return TxParty(group, home, part["state"], part["set_aside"])
    return TxParty(group, home, UNDECIDED if group == some["decider"] else UNKNOWN, 0)


def own_parts(call: Call) -> list[Row]:
    return [asdict(each) for each in view_of(call.context).doubts()]


async def list_transactions(call: Call) -> Response:
    parts: list[Any] = own_parts(call)
    found, _ = await documents(call, call.question(OWN_PATH))
    for more in found.values():
        parts += more
    return await listed(call, together(parts), asdict)


async def list_own(call: Call) -> Response:
    return answer(own_parts(call))


ENDPOINTS: Final = (
    GET(PATH, MONITORING, list_transactions, rows_of(shape_of(TxInfo))),
    GET(OWN_PATH, MONITORING, list_own, list_of(shape_of(TxPart))),
)
