"""Answers: JSON, and lists of it with columns, sorting and pages as RabbitMQ's API has them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from heapq import merge
from typing import TYPE_CHECKING, Any, Final, TypeVar

from starlette.responses import Response

from rhizome.amqp.values import Timestamp
from rhizome.management.auth import MONITORING, POLICYMAKER
from rhizome.management.errors import BadRequest, PageOutOfRange
from rhizome.management.pace import Pace
from rhizome.patterns import compile_pattern

if TYPE_CHECKING:
    from rhizome.management.call import Call

JSON_TYPE: Final = "application/json"
PAGE_SIZE_DEFAULT: Final = 100
PAGE_SIZE_MAX: Final = 500
SORT_RUN_ROWS: Final = 1000
BRIEF: Final = ("", "name", "vhost")
"""Columns that a brief row is sorted by."""

HEADERS: Final = {"cache-control": "no-cache", "x-content-type-options": "nosniff"}

Row = dict[str, object]
T = TypeVar("T")


def plain(value: object) -> object:
    """A field value of AMQP's that JSON doesn't know, as the nearest that it does."""
    if isinstance(value, Timestamp):
        return value.seconds
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(f"{type(value).__name__} is nothing that the API shows")


def encoded(value: object) -> bytes:
    return json.dumps(value, default=plain, separators=(",", ":")).encode()


def answer(value: object, status: int = 200) -> Response:
    return Response(encoded(value), status, HEADERS, JSON_TYPE)


def created(is_new: bool = True, location: str = "") -> Response:
    """201 for something new, 204 for something that was there."""
    headers = {**HEADERS, "location": location} if location else HEADERS
    return Response(b"", 201 if is_new else 204, headers)


def done() -> Response:
    return Response(b"", 204, HEADERS)


def refusal(status: int, error: str, reason: str, headers: Mapping[str, str]) -> Response:
    body = encoded({"error": error, "reason": reason})
    return Response(body, status, {**HEADERS, **headers}, JSON_TYPE)


@dataclass(slots=True)
class Part:
    """The rows of a list that pass the query's filter. If it asks for a page, those behind that may
    be missing; ``passed`` counts them all, ``total`` those too that don't pass."""

    rows: list[Row]
    total: int
    passed: int


async def listed(
    call: Call,
    items: Iterable[T],
    row: Callable[[T], Row],
    brief: Callable[[T], Row] | None = None,
) -> Response:
    """Rows of ``items`` as the query asks for them; see `part_of`."""
    return await shown(call, await part_of(call, items, row, brief))


async def part_of(
    call: Call,
    items: Iterable[T],
    row: Callable[[T], Row],
    brief: Callable[[T], Row] | None = None,
) -> Part:
    """The rows of items. ``brief`` makes a row of nothing but vhost and name: where that is enough
    to find the page that is asked for, whole rows are made of that page alone."""
    if brief is None or "page" not in call.request.query_params or sort_of(call) not in BRIEF:
        rows = await made(items, row)
        wanted = await filtered(call, rows)
        return Part(wanted, len(rows), len(wanted))
    found = list(items)
    briefs = await made(found, brief)
    item_of = {id(each): item for each, item in zip(briefs, found, strict=True)}
    wanted = await in_order(call, await filtered(call, briefs))
    page = [item_of[id(each)] for each in wanted[: reach_of(call)]]
    return Part(await made(page, row), len(found), len(wanted))


async def made(items: Iterable[T], row: Callable[[T], Row]) -> list[Row]:
    """The rows of items, made a little at a time."""
    pace = Pace()
    rows: list[Row] = []
    for item in items:
        rows.append(row(item))
        if pace.is_due():
            await pace.rest()
    return rows


async def shown(call: Call, part: Part) -> Response:
    """Rows sorted, cut to columns and pages."""
    wanted = await in_order(call, part.rows)
    if "page" not in call.request.query_params:
        return Response(await array(wanted, columns_of(call)), 200, HEADERS, JSON_TYPE)
    page, size = page_of(call)
    pages = max(1, -(-part.passed // size))
    if page > pages:
        raise PageOutOfRange(
            f"Page out of range, page: {page} page size: {size}, len: {part.passed}"
        )
    items = wanted[(page - 1) * size : page * size]
    head = encoded(
        {
            "page": page,
            "page_count": pages,
            "page_size": size,
            "item_count": len(items),
            "filtered_count": part.passed,
            "total_count": part.total,
        }
    )
    body = b'%s,"items":%s}' % (head[:-1], await array(items, columns_of(call)))
    return Response(body, 200, HEADERS, JSON_TYPE)


def page_of(call: Call) -> tuple[int, int]:
    """Number and size of the page that is asked for."""
    size = call.number("page_size", PAGE_SIZE_DEFAULT, 1, PAGE_SIZE_MAX)
    return call.number("page", 1, 1, 1 << 31), size


def reach_of(call: Call) -> int:
    """How many rows, from the first, it takes to make the page that is asked for."""
    page, size = page_of(call)
    return page * size


def sort_of(call: Call) -> str:
    return call.request.query_params.get("sort", "")


async def in_order(call: Call, rows: list[Row]) -> list[Row]:
    reverse = call.request.query_params.get("sort_reverse") == "true"
    return await _sorted(rows, sort_of(call), reverse)


def columns_of(call: Call) -> list[str]:
    """The columns that the query asks for; none: all of them."""
    return [name for name in call.request.query_params.get("columns", "").split(",") if name]


def shown_row(call: Call, row: Row) -> Response:
    """One object, with the columns that the query asks for."""
    return answer(selected(row, columns_of(call)))


async def long_answer(fields: Mapping[str, object]) -> Response:
    """An object with long lists of rows in it, encoded row by row."""
    pieces = [
        encoded(name)
        + b":"
        + (await array(value, []) if isinstance(value, list) else encoded(value))
        for name, value in fields.items()
    ]
    return Response(b"{" + b",".join(pieces) + b"}", 200, HEADERS, JSON_TYPE)


async def array(rows: list[Row], columns: list[str]) -> bytes:
    """A JSON array, encoded row by row: one long list must not hold the loop."""
    pace = Pace()
    pieces: list[bytes] = []
    for row in rows:
        pieces.append(encoded(selected(row, columns)))
        if pace.is_due():
            await pace.rest()
    return b"[" + b",".join(pieces) + b"]"


async def filtered(call: Call, rows: list[Row]) -> list[Row]:
    """The rows whose name has what the query's ``name`` says in it."""
    query = call.request.query_params
    part = query.get("name", "")
    if not part:
        return rows
    if query.get("use_regex") != "true":
        part = part.lower()
        return await _picked(rows, lambda name: part in name.lower())
    # A pattern costs more than a comparison: it is for those who set patterns or see everything.
    if not call.caller.may(MONITORING):
        call.caller.check(POLICYMAKER)
    expression = compile_pattern(part, ignore_case=True)
    return await _picked(rows, expression.search)


async def _picked(rows: list[Row], wants: Callable[[str], bool]) -> list[Row]:
    pace = Pace()
    found: list[Row] = []
    for row in rows:
        if wants(str(row.get("name", ""))):
            found.append(row)
        if pace.is_due():
            await pace.rest()
    return found


async def _sorted(rows: list[Row], column: str, reverse: bool) -> list[Row]:
    """Sorted in runs that are merged: no step takes long, however many rows there are."""
    path = column.split(".")
    pace = Pace()
    runs: list[list[tuple[Any, int, Row]]] = []
    for start in range(0, len(rows), SORT_RUN_ROWS):
        run: list[tuple[Any, int, Row]] = []
        for at in range(start, min(start + SORT_RUN_ROWS, len(rows))):
            row = rows[at]
            key = _order(_at(row, path)) if column else _place(row)
            run.append((key, -at if reverse else at, row))
            if pace.is_due():
                await pace.rest()
        run.sort(key=_rank, reverse=reverse)
        runs.append(run)
    found: list[Row] = []
    for _, _, row in merge(*runs, key=_rank, reverse=reverse):
        found.append(row)
        if pace.is_due():
            await pace.rest()
    return found


def _rank(entry: tuple[Any, int, Row]) -> tuple[Any, int]:
    return entry[:2]


def _place(row: Row) -> tuple[str, str]:
    return (str(row.get("vhost", "")), str(row.get("name", "")))


def _order(value: Any) -> tuple[int, Any]:
    """Nothing before numbers before words."""
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
