"""Cluster-wide queries: lists of the whole cluster, and requests that belong to another broker.

Each broker makes the rows of what it has itself. The broker that a person asked sends a peer
request to all others at once and joins the rows. A broker that doesn't respond in time is named in
the answer's header ``x-rhizome-silent``, and its rows are missing.

On the wire between brokers a list is lines: how many rows there are and how many pass the query's
filter, then the rows, each as JSON. So they can be read a little at a time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from starlette.responses import Response

from rhizome.broker.queue.queue import Queue
from rhizome.management.errors import ObjectNotFound
from rhizome.management.http.api_call import Call
from rhizome.management.http.cooperative_yield import Pace
from rhizome.management.http.json_responses import (
    HEADERS,
    LongResponse,
    Part,
    Pieces,
    Row,
    columns_of,
    encoded,
    encoded_entry,
    part_of,
    place_by,
    row_columns_of,
    selected,
    shown,
)
from rhizome.management.peers.peer_requests import (
    CHECKSUM_HEADER,
    LIST_SECONDS_MAX,
    WORK_SECONDS_MAX,
    PeerRequest,
    PeerResponse,
    PeerUnreachable,
)

SILENT: Final = "x-rhizome-silent"
LINES_TYPE: Final = "application/x-ndjson"

T = TypeVar("T")


@dataclass(slots=True)
class PeerResponses:
    """The responses of other brokers. ``replies`` has the successes only."""

    replies: dict[str, PeerResponse] = field(default_factory=dict)
    refusals: dict[str, PeerResponse] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)


def peer_request_of(call: Call, body: bytes = b"") -> PeerRequest:
    """The same request, for another broker."""
    return PeerRequest(
        call.request.method,
        call.target(),
        call.caller.user,
        body,
        call.request.headers.get("x-reason", ""),
        call.caller.token,
        call.caller.place,
    )


async def ask_all(call: Call, question: PeerRequest | None = None) -> PeerResponses:
    """Ask all other brokers, by default the same; none if this broker is itself asked by a peer."""
    found = PeerResponses()
    if call.asked:
        return found
    others = call.context.others
    asked = peer_request_of(call) if question is None else question
    names = others.names()
    answers = await asyncio.gather(
        *(others.ask(name, asked, LIST_SECONDS_MAX) for name in names), return_exceptions=True
    )
    for name, answer in zip(names, answers, strict=True):
        if isinstance(answer, PeerResponse):
            (found.replies if answer.status < 300 else found.refusals)[name] = answer
        elif isinstance(answer, PeerUnreachable):
            found.silent.append(name)
        else:
            raise answer
    return found


async def documents(
    call: Call, question: PeerRequest | None = None
) -> tuple[dict[str, Any], PeerResponses]:
    """The responses of the other brokers, parsed, by broker."""
    gathered = await ask_all(call, question)
    return {name: json.loads(reply.body) for name, reply in gathered.replies.items()}, gathered


# ---- lists --------------------------------------------------------------------------------------


@dataclass(slots=True)
class PeerRows(Part):
    """What other brokers have of a list. ``answered``: the brokers that have such a list at all."""

    answered: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    names: set[tuple[object, object]] = field(default_factory=set)
    """Vhost and name of each row."""


def no_rows() -> PeerRows:
    return PeerRows([], 0, 0)


async def rows_elsewhere(call: Call) -> PeerRows:
    """The rows that other brokers have for this list."""
    gathered = await ask_all(call)
    found = no_rows()
    found.silent = gathered.silent
    pace = Pace()
    place, columns = place_by(call), columns_of(call)
    for name, reply in gathered.replies.items():
        if reply.content_type != LINES_TYPE:
            continue
        found.answered.append(name)
        counts, *lines = reply.body.split(b"\n")
        total, passed = counts.split()
        found.total += int(total)
        found.passed += int(passed)
        for line in lines:
            row = json.loads(line)
            found.names.add((row.get("vhost"), row.get("name")))
            shown = encoded(selected(row, columns)) if columns else line
            found.entries.append((place(row), shown))
            if pace.is_due():
                await pace.rest()
    return found


def rows_of_reply(reply: PeerResponse) -> list[Row]:
    """The rows that a broker has told for a list, for lists that are short."""
    if reply.content_type != LINES_TYPE:
        return []
    _, *lines = reply.body.split(b"\n")
    return [json.loads(line) for line in lines]


async def listed_everywhere(
    call: Call,
    items: Iterable[T],
    row: Callable[[T], Row],
    elsewhere: PeerRows | None = None,
    brief: Callable[[T], Row] | None = None,
) -> Response:
    """The rows of ``items``, and those of other brokers, as the query asks for them."""
    return await part_and_others(call, await part_of(call, items, row, brief), row, elsewhere)


async def part_and_others(
    call: Call, own: Part, row: Callable[[T], Row], elsewhere: PeerRows | None = None
) -> Response:
    """The same, of rows that were found already."""
    if call.asked:
        return await _told(call, own, row)
    found = await rows_elsewhere(call) if elsewhere is None else elsewhere
    both = Part(own.entries + found.entries, own.total + found.total, own.passed + found.passed)
    response = await shown(call, both, row)
    if found.silent:
        response.headers[SILENT] = ",".join(found.silent)
    return response


async def _told(call: Call, part: Part, row: Callable[[T], Row]) -> Response:
    """The rows for the broker that asks: with the columns that it needs, and of a page no more than
    could be on it."""
    columns = row_columns_of(call)
    pace = Pace()
    pieces = Pieces()
    pieces.add(b"%d %d" % (part.total, part.passed))
    for _, item in part.entries:
        pieces.add(b"\n")
        pieces.add(encoded_entry(item, row, columns))
        if pace.is_due():
            await pace.rest()
    return LongResponse(call, pieces.end(), LINES_TYPE)


# ---- what belongs to another broker -------------------------------------------------------------


async def at_home(call: Call, queue: Queue, body: bytes = b"") -> Response | None:
    """The answer of the broker that a queue is active on; None if that is this one."""
    if queue.away is None:
        return None
    home = call.context.others.home_of(queue)
    if call.asked or not home or home == call.context.name:
        raise PeerUnreachable(
            f"queue '{queue.name}' in vhost '{queue.vhost}' has no home at the moment; try again"
        )
    reply = await call.context.others.ask(home, peer_request_of(call, body), WORK_SECONDS_MAX)
    return passed_on(reply)


async def wherever(call: Call, body: bytes = b"") -> Response:
    """The answer of whichever broker has the object in the path; ObjectNotFound if none has."""
    gathered = await ask_all(call, peer_request_of(call, body))
    refusals = [reply for reply in gathered.refusals.values() if reply.status != 404]
    for reply in [*gathered.replies.values(), *refusals]:
        return passed_on(reply)
    raise ObjectNotFound


def passed_on(reply: PeerResponse) -> Response:
    headers = {**HEADERS, CHECKSUM_HEADER: reply.checksum} if reply.checksum else HEADERS
    return Response(reply.body, reply.status, headers, reply.content_type or None)
