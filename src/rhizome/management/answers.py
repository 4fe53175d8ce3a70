"""Answers: JSON, and lists of it with columns, sorting and pages as RabbitMQ's API has them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypeVar

from starlette.responses import Response

from rhizome.amqp.values import Timestamp
from rhizome.management.auth import POLICYMAKER
from rhizome.management.errors import BadRequest, PageOutOfRange
from rhizome.management.pace import Pace
from rhizome.security.permissions import check_pattern

if TYPE_CHECKING:
    from rhizome.management.call import Call

JSON_TYPE: Final = "application/json"
PAGE_SIZE_DEFAULT: Final = 100
PAGE_SIZE_MAX: Final = 500
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


async def listed(call: Call, items: Iterable[T], row: Callable[[T], Row]) -> Response:
    """Rows of ``items`` as the query asks for them."""
    pace = Pace()
    rows: list[Row] = []
    for item in items:
        rows.append(row(item))
        if pace.is_due():
            await pace.rest()
    query = call.request.query_params
    wanted = _filtered(call, rows)
    _sort(wanted, query.get("sort", ""), query.get("sort_reverse") == "true")
    columns = [name for name in query.get("columns", "").split(",") if name]
    if "page" not in query:
        return await _list_answer(wanted, columns, pace)
    size = call.number("page_size", PAGE_SIZE_DEFAULT, 1, PAGE_SIZE_MAX)
    page = call.number("page", 1, 1, 1 << 31)
    pages = max(1, -(-len(wanted) // size))
    if page > pages:
        raise PageOutOfRange(
            f"Page out of range, page: {page} page size: {size}, len: {len(wanted)}"
        )
    shown = wanted[(page - 1) * size : page * size]
    return answer(
        {
            "items": [selected(each, columns) for each in shown],
            "page": page,
            "page_count": pages,
            "page_size": size,
            "item_count": len(shown),
            "filtered_count": len(wanted),
            "total_count": len(rows),
        }
    )


async def _list_answer(rows: list[Row], columns: list[str], pace: Pace) -> Response:
    """The whole list, encoded row by row: one long list must not hold the loop."""
    pieces: list[bytes] = []
    for row in rows:
        pieces.append(encoded(selected(row, columns)))
        if pace.is_due():
            await pace.rest()
    return Response(b"[" + b",".join(pieces) + b"]", 200, HEADERS, JSON_TYPE)


def _filtered(call: Call, rows: list[Row]) -> list[Row]:
    """The rows whose name has what the query's ``name`` says in it."""
    query = call.request.query_params
    part = query.get("name", "")
    if not part:
        return list(rows)
    if query.get("use_regex") != "true":
        return [row for row in rows if part.lower() in str(row.get("name", "")).lower()]
    # Somebody who may not set patterns anyway must not be able to run slow ones.
    call.caller.check(POLICYMAKER)
    check_pattern(part)
    expression = re.compile(part, re.IGNORECASE)
    return [row for row in rows if expression.search(str(row.get("name", "")))]


def _sort(rows: list[Row], column: str, reverse: bool) -> None:
    if column:
        path = column.split(".")
        rows.sort(key=lambda row: _order(_at(row, path)), reverse=reverse)
    else:
        rows.sort(key=lambda row: (str(row.get("vhost", "")), str(row.get("name", ""))))


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
        value = _at(row, path)
        if value is None and _at(row, path[:-1]) is None:
            continue
        place = found
        for name in path[:-1]:
            inner = place.setdefault(name, {})
            if not isinstance(inner, dict):
                raise BadRequest(f"columns: {name} is asked for as a whole and in parts")
            place = inner
        place[path[-1]] = value
    return found
