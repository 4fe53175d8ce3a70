"""JSON responses, and lists with columns, sorting and pages as RabbitMQ's API has them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from heapq import merge
from math import isfinite
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rhizome.amqp.field_table import Timestamp
from rhizome.management.errors import BadRequest, PageOutOfRange
from rhizome.management.http.auth import MONITORING, POLICYMAKER
from rhizome.management.http.cooperative_yield import Pace
from rhizome.regex import compile_pattern

if TYPE_CHECKING:
    from rhizome.management.http.api_call import Call

JSON_TYPE: Final = "application/json"
PAGE_SIZE_DEFAULT: Final = 100
PAGE_SIZE_MAX: Final = 500
SORT_RUN_ROWS: Final = 500
REASON_CHARS_MAX: Final = 4000
KEY_COLUMNS: Final = ("vhost", "name")
COLUMNS_MAX: Final = 200
PIECE_BYTES: Final = 64 * 1024
BRIEF: Final = ("", "name", "vhost")
"""The columns by which a brief row is sorted."""

HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""The headers of every answer: it is not cached, and no page of another site shows or reads it."""

_FIRST: Final = itemgetter(0)

Row = dict[str, object]
T = TypeVar("T")


def plain(value: object) -> object:
    """An AMQP field value that JSON doesn't have, as the nearest one that it has."""
    if isinstance(value, Timestamp):
        return value.seconds
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(f"{type(value).__name__} is nothing that the API shows")


def encoded(value: object) -> bytes:
    """JSON that every program can read: numbers that JSON doesn't have become null."""
    try:
        return _encode(value).encode()
    except ValueError:
        return _encode(_finite(value)).encode()


_encode: Final = json.JSONEncoder(
    default=plain, separators=(",", ":"), allow_nan=False, check_circular=False
).encode


def _finite(value: object) -> object:
    """A value without infinities and NaN, which AMQP arguments may have."""
    if isinstance(value, (float, Decimal)):
        return float(value) if isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): _finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return value


def answer(value: object, status: int = 200) -> Response:
    return Response(encoded(value), status, HEADERS, JSON_TYPE)


def created(is_new: bool = True, location: str = "") -> Response:
    """201 for something new, 204 for something that was there."""
    headers = {**HEADERS, "location": location} if location else HEADERS
    return Response(b"", 201 if is_new else 204, headers)


def done() -> Response:
    return Response(b"", 204, HEADERS)


def refusal(status: int, error: str, reason: str, headers: Mapping[str, str]) -> Response:
    body = encoded({"error": error, "reason": reason[:REASON_CHARS_MAX]})
    return Response(body, status, {**HEADERS, **headers}, JSON_TYPE)


class LongResponse(Response):
    """An answer of many pieces. They are sent as fast as the client reads, and counted while they
    wait. Raises Unavailable if too many wait, unless the answer is ``due`` in any case: what was
    taken to make it is gone."""

    def __init__(
        self, call: Call, pieces: list[bytes], media_type: str = JSON_TYPE, due: bool = False
    ) -> None:
        self._call = call
        self._pieces = pieces
        self._size = sum(map(len, pieces))
        if not due:
            call.context.waiting_answers.check(call.caller.user, self._size)
        call.context.waiting_answers.add(call.caller.user, self._size)
        super().__init__(None, 200, {**HEADERS, "content-length": str(self._size)}, media_type)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pace = Pace()
        try:
            start = {"type": "http.response.start", "status": self.status_code}
            await send({**start, "headers": self.raw_headers})
            for piece in self._pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                if pace.is_due():
                    await pace.rest()
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._call.context.waiting_answers.remove(self._call.caller.user, self._size)


class Pieces:
    """Collects encoded bytes in pieces of a suitable size."""

    def __init__(self) -> None:
        self.whole: list[bytes] = []
        self._rest: list[bytes] = []
        self._size = 0

    def add(self, data: bytes) -> None:
        self._rest.append(data)
        self._size += len(data)
        if self._size >= PIECE_BYTES:
            self.end()

    def end(self) -> list[bytes]:
        """All pieces."""
        if self._rest:
            self.whole.append(b"".join(self._rest))
        self._rest, self._size = [], 0
        return self.whole


# ---- lists --------------------------------------------------------------------------------------

Entry = tuple[Any, Any]
"""A row's place in the order of its list, and the row: encoded, or the item that it is made
from."""


@dataclass(slots=True)
class Part:
    """The rows of a list that pass the query's filter. ``passed`` counts them, ``total`` all rows.
    If the query asks for a page, rows behind it may be missing."""

    entries: list[Entry]
    total: int
    passed: int


async def listed(
    call: Call,
    items: Iterable[T],
    row: Callable[[T], Row],
    brief: Callable[[T], Row] | None = None,
) -> Response:
    """Rows of ``items`` as the query asks for them; see `part_of`."""
    return await shown(call, await part_of(call, items, row, brief), row)


async def part_of(
    call: Call,
    items: Iterable[T],
    row: Callable[[T], Row],
    brief: Callable[[T], Row] | None = None,
) -> Part:
    """The rows of items, in order if a page of them is asked for.

    No row is kept: it is encoded at once or, for a page, looked at for its place and made again if
    it is on that page. ``brief`` makes a row of nothing but vhost and name, where that is enough
    for its place.
    """
    in_pages = is_paged(call)
    made = brief if brief is not None and in_pages and sort_of(call) in BRIEF else row
    wants, place, columns = wanted_by(call), place_by(call), row_columns_of(call)
    pace = Pace()
    part = Part([], 0, 0)
    for item in items:
        found = made(item)
        part.total += 1
        if wants is None or wants(str(found.get("name", ""))):
            shown = item if in_pages else encoded(selected(found, columns))
            part.entries.append((place(found), shown))
        if pace.is_due():
            await pace.rest()
    part.passed = len(part.entries)
    if in_pages:
        part.entries = (await in_order(call, part.entries))[: reach_of(call)]
    return part


def is_plain_page(call: Call) -> bool:
    """Whether a page of all rows is asked for, in the order of names or its reverse."""
    by_name = sort_of(call) in ("", "name")
    return is_paged(call) and by_name and not call.request.query_params.get("name")


async def page_part(call: Call, runs: list[list[T]], brief: Callable[[T], Row]) -> Part:
    """What `part_of` finds for a plain page, of items that are in runs by name, one for each vhost.
    Only what could be on the page is looked at."""
    reverse = call.request.query_params.get("sort_reverse") == "true"
    reach, place = reach_of(call), place_by(call)
    pace = Pace()
    entries: list[Entry] = []
    for run in runs:
        for item in run[-reach:] if reverse else run[:reach]:
            entries.append((place(brief(item)), item))
            if pace.is_due():
                await pace.rest()
    total = sum(map(len, runs))
    return Part((await in_order(call, entries))[:reach], total, total)


async def shown(call: Call, part: Part, row: Callable[[Any], Row]) -> Response:
    """Rows sorted, and cut to the page that is asked for. ``row`` makes those that are no bytes."""
    wanted = await in_order(call, part.entries)
    pieces = Pieces()
    if not is_paged(call):
        await _add_array(call, pieces, wanted, row)
        return LongResponse(call, pieces.end())
    page, size = page_of(call)
    pages = max(1, -(-part.passed // size))
    if page > pages:
        raise PageOutOfRange(
            f"Page out of range, page: {page} page size: {size}, len: {part.passed}"
        )
    wanted = wanted[(page - 1) * size : page * size]
    head = encoded(
        {
            "page": page,
            "page_count": pages,
            "page_size": size,
            "item_count": len(wanted),
            "filtered_count": part.passed,
            "total_count": part.total,
        }
    )
    pieces.add(b'%s,"items":' % head[:-1])
    await _add_array(call, pieces, wanted, row)
    pieces.add(b"}")
    return LongResponse(call, pieces.end())


async def _add_array(
    call: Call, pieces: Pieces, entries: list[Entry], row: Callable[[Any], Row]
) -> None:
    pace = Pace()
    columns = columns_of(call)
    for at, (_, item) in enumerate(entries):
        pieces.add(b"," if at else b"[")
        pieces.add(encoded_entry(item, row, columns))
        if pace.is_due():
            await pace.rest()
    pieces.add(b"]" if entries else b"[]")


def encoded_entry(item: Any, row: Callable[[Any], Row], columns: list[str]) -> bytes:
    return item if isinstance(item, bytes) else encoded(selected(row(item), columns))


async def long_answer(call: Call, fields: Mapping[str, object]) -> Response:
    """An object with long lists of rows in it, which are made and encoded row by row."""
    pace = Pace()
    pieces = Pieces()
    for at, (name, value) in enumerate(fields.items()):
        pieces.add((b"," if at else b"{") + encoded(name) + b":")
        if not isinstance(value, Iterator):
            pieces.add(encoded(value))
            continue
        before = b"["
        for row in value:
            pieces.add(before + encoded(row))
            before = b","
            if pace.is_due():
                await pace.rest()
        pieces.add(b"]" if before == b"," else b"[]")
    pieces.add(b"}")
    return LongResponse(call, pieces.end())


# ---- the query of lists -------------------------------------------------------------------------


def is_paged(call: Call) -> bool:
    return "page" in call.request.query_params


def page_of(call: Call) -> tuple[int, int]:
    """Number and size of the page that is asked for."""
    size = call.number("page_size", PAGE_SIZE_DEFAULT, 1, PAGE_SIZE_MAX)
    return call.number("page", 1, 1, 1 << 31), size


def reach_of(call: Call) -> int:
    """How many rows, from the first, are needed for the page that is asked for."""
    page, size = page_of(call)
    return page * size


def sort_of(call: Call) -> str:
    return call.request.query_params.get("sort", "")


def columns_of(call: Call) -> list[str]:
    """The columns that the query asks for; none: all of them."""
    given = call.request.query_params.get("columns", "").split(",", COLUMNS_MAX + 1)
    if len(given) > COLUMNS_MAX:
        raise BadRequest(f"columns: more than {COLUMNS_MAX} are asked for")
    return [name for name in given if name]


def row_columns_of(call: Call) -> list[str]:
    """The same for the rows of a list; a broker that asks needs some more columns to sort them."""
    found = columns_of(call)
    if call.asked and found:
        found = list(dict.fromkeys([*found, *KEY_COLUMNS, sort_of(call) or "name"]))
    return found


def shown_row(call: Call, row: Row) -> Response:
    """One object, with the columns that the query asks for."""
    return answer(selected(row, columns_of(call)))


def wanted_by(call: Call) -> Callable[[str], bool] | None:
    """A check whether a name contains the query's ``name``; None: every name passes."""
    query = call.request.query_params
    part = query.get("name", "")
    if not part:
        return None
    if query.get("use_regex") != "true":
        part = part.lower()
        return lambda name: part in name.lower()
    # A pattern costs more than a comparison, so it is for those who set patterns or see everything.
    if not call.caller.may(MONITORING):
        call.caller.check(POLICYMAKER)
    return compile_pattern(part, ignore_case=True).search


def place_by(call: Call) -> Callable[[Row], Any]:
    """What rows are sorted by."""
    column = sort_of(call)
    if not column:
        return _place
    path = column.split(".")
    return lambda row: _order(_at(row, path))


async def in_order(call: Call, entries: list[Entry]) -> list[Entry]:
    """Sorted in runs that are merged: no step takes long, however many rows there are."""
    reverse = call.request.query_params.get("sort_reverse") == "true"
    pace = Pace()
    runs: list[list[Entry]] = []
    for start in range(0, len(entries), SORT_RUN_ROWS):
        runs.append(sorted(entries[start : start + SORT_RUN_ROWS], key=_FIRST, reverse=reverse))
        if pace.is_due():
            await pace.rest()
    if len(runs) <= 1:
        return runs[0] if runs else []
    found: list[Entry] = []
    for entry in merge(*runs, key=_FIRST, reverse=reverse):
        found.append(entry)
        if pace.is_due():
            await pace.rest()
    return found


def _place(row: Row) -> tuple[str, str]:
    return (str(row.get("vhost", "")), str(row.get("name", "")))


def _order(value: Any) -> tuple[int, Any]:
    """None sorts before numbers, numbers before strings."""
    if value is None:
        return (0, 0)
    if isinstance(value, (int, float)):
        return (1, value)
    return (2, str(value))


def _at(row: Row, path: list[str]) -> object:
    value: object = row
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return None
        value = value[name]
    return value


def selected(row: Row, columns: list[str]) -> Row:
    """A row's columns; `message_stats.publish` names a field of a field."""
    if not columns:
        return row
    found: Row = {}
    for column in columns:
        path = column.split(".")
        holder = _at(row, path[:-1])
        if not isinstance(holder, dict) or path[-1] not in holder:
            continue
        place = found
        for name in path[:-1]:
            inner = place.setdefault(name, {})
            if not isinstance(inner, dict):
                raise BadRequest(f"columns: {name} is asked for as a whole and in parts")
            place = inner
        place[path[-1]] = holder[path[-1]]
    return found
