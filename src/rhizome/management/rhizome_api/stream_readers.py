"""/api/rhizome/stream-readers: the named readers of streams, and how far behind they are."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from rhizome.broker.queue.queue import Queue
from rhizome.broker.streams.reader_positions import ReaderPosition
from rhizome.broker.streams.stream import Stream
from rhizome.management.api_context import Context
from rhizome.management.http.api_call import Call
from rhizome.management.http.auth import MANAGEMENT
from rhizome.management.http.cooperative_yield import Pace
from rhizome.management.http.endpoint import GET
from rhizome.management.http.json_responses import Row
from rhizome.management.openapi import rhizome_schemas
from rhizome.management.openapi.endpoint_shapes import rows_of
from rhizome.management.peers.cluster_wide_queries import listed_everywhere

PATH: Final = "/api/rhizome/stream-readers"
AT_RISK_TOLD_MAX: Final = 100
"""The most readers at risk that `rhizome doctor` is told of."""

Item = tuple[Stream, ReaderPosition]


def reader_row(item: Item) -> Row:
    """A reader. ``next`` is what it has not read yet, ``at_risk`` how many of the messages that it
    lags behind are about to be dropped."""
    stream, position = item
    log = stream.log
    return {
        "name": position.name.decode("utf-8", "surrogateescape"),
        "stream": stream.queue.name,
        "vhost": stream.queue.vhost,
        "next": int(position.next),
        "lag": int(log.committed - max(position.next, log.first)),
        "behind_retention": int(max(0, log.first - position.next)),
        "kept": position.kept,
        "connected": position.connected,
        "used_ms": int(position.used_ms) or None,
        "at_risk": int(stream.positions.at_risk.get(position.name, 0)),
    }


def reader_rows(stream: Stream) -> list[Row]:
    return [reader_row((stream, each)) for each in stream.positions.all()]


async def list_readers(call: Call) -> Response:
    """The readers of all streams, asked of the brokers where these are active."""
    names = {vhost.name for vhost in call.vhosts()}
    items: list[Item] = []
    pace = Pace()
    for stream in list(call.context.broker.streams.active.values()):
        if stream.queue.vhost in names:
            items += [(stream, position) for position in stream.positions.all()]
        if pace.is_due():
            await pace.rest()
    return await listed_everywhere(call, items, reader_row)


def at_risk(context: Context) -> list[Row]:
    """Readers with unread messages that retention is about to drop, those with most first."""
    found = [
        _risk_row(stream.queue, name, unread)
        for stream in context.broker.streams.active.values()
        for name, unread in stream.positions.at_risk.items()
    ]
    found.sort(key=lambda row: -int(str(row["unread"])))
    return found[:AT_RISK_TOLD_MAX]


def _risk_row(queue: Queue, name: bytes, unread: int) -> Row:
    return {
        "vhost": queue.vhost,
        "stream": queue.name,
        "reader": name.decode("utf-8", "replace"),
        "unread": unread,
    }


ENDPOINTS: Final = (
    GET(PATH, MANAGEMENT, list_readers, rows_of(rhizome_schemas.STREAM_READER)),
    GET(PATH + "/{vhost}", MANAGEMENT, list_readers, rows_of(rhizome_schemas.STREAM_READER)),
)
