"""/api/rhizome/streams: streams and what they hold; partitioned ones under their one name.

A partitioned stream is an exchange of type x-super-stream and the streams NAME-0, NAME-1, ... that
are bound to it by their number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.responses import Response

from rhizome.broker.channel.resource_lookup import check_configure, check_read, check_write
from rhizome.broker.metadata.metadata_commands import (
    EXCHANGE,
    QUEUE,
    Bind,
    Command,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
)
from rhizome.broker.metadata.resource_names import check_declarable_name
from rhizome.broker.metadata.vhost import VHost
from rhizome.broker.queue.queue import Queue
from rhizome.broker.routing.exchange import Exchange
from rhizome.broker.routing.super_stream_exchange import SUPER_STREAM_KIND, partitions_of
from rhizome.broker.streams.stream import Stream, stream_of
from rhizome.broker.streams.stream_reader import StreamReader
from rhizome.broker.streams.stream_restrictions import NAME_CHARS_MAX, is_stream
from rhizome.journal.streams.stream_lookup import NO_OFFSET
from rhizome.management.direct_channel import open_channel
from rhizome.management.errors import BadRequest, Conflict, ObjectNotFound, Unavailable
from rhizome.management.http.api_call import Call
from rhizome.management.http.auth import MANAGEMENT
from rhizome.management.http.cooperative_yield import Pace
from rhizome.management.http.endpoint import DELETE, GET, PUT
from rhizome.management.http.json_body import SHORT_BYTES_MAX, parse_document
from rhizome.management.http.json_responses import Row, answer, created, done, listed
from rhizome.management.openapi import request_schemas, rhizome_schemas
from rhizome.management.openapi.endpoint_shapes import (
    DONE,
    MADE,
    Parameter,
    between,
    row_of,
    rows_of,
)
from rhizome.management.peers.cluster_wide_queries import SILENT, at_home, documents
from rhizome.management.rhizome_api.stream_readers import reader_rows
from rhizome.management.state_proposals import propose

PARTITIONS_MAX: Final = 1000
OFFSET_MAX: Final = (1 << 62) - 1
TIMESTAMP_MAX: Final = (1 << 53) - 1
AT_TIME: Final = Parameter(
    "timestamp",
    between(0, TIMESTAMP_MAX),
    "Milliseconds since 1970; `offset_at` is the offset at that time",
)


# ---- rows ---------------------------------------------------------------------------------------


def stream_row(queue: Queue) -> Row:
    """What is known of a stream; more of it where it is active."""
    row: Row = {
        "name": queue.name,
        "vhost": queue.vhost,
        "kind": "stream",
        "arguments": queue.definition.arguments,
        "active": queue.stream is not None,
    }
    stream = stream_of(queue)
    if stream is not None:
        log = stream.log
        row |= {
            "first": int(log.first),
            "next": int(log.committed),
            "messages": int(log.committed - log.first),
            "bytes": int(log.size),
            "epoch": int(log.epoch),
            "segments": len(log.segments),
            "first_timestamp": int(log.segments[0].first_ms) if log.segments else None,
            "last_timestamp": int(log.time_ms) if log.segments else None,
            "consumers": int(queue.consumer_count),
            "readers": int(stream.positions.count()),
        }
    return row


def stream_details(queue: Queue) -> Row:
    """A stream alone shows its segments, consumers and remembered offsets, too."""
    row = stream_row(queue)
    stream = stream_of(queue)
    if stream is not None:
        log = stream.log
        row["segment_details"] = [
            {
                "segment": int(segment.number),
                "first": int(segment.first),
                "next": int(segment.next),
                "bytes": int(segment.size),
                "first_timestamp": int(segment.first_ms),
                "last_timestamp": int(segment.last_ms),
            }
            for segment in log.segments
        ]
        row["consumer_details"] = [_reader_row(stream, each) for each in stream.readers.values()]
        row["offsets"] = offsets_of(stream)
        row["reader_details"] = reader_rows(stream)
    return row


def _reader_row(stream: Stream, reader: StreamReader) -> Row:
    return {
        "consumer_tag": reader.consumer.tag,
        "name": reader.name.decode("utf-8", "surrogateescape"),
        "next": int(reader.next),
        "lag": int(stream.log.committed - reader.next),
        "unacknowledged": int(reader.consumer.unacked),
        "prefetch_count": int(reader.consumer.prefetch),
    }


def offsets_of(stream: Stream) -> dict[str, int]:
    """The offset recorded for each name, including what its consumer has acknowledged since."""
    return {
        each.name.decode("utf-8", "surrogateescape"): int(each.next) - 1
        for each in stream.positions.all()
        if each.kept and each.next > 0
    }


def partitioned_row(exchange: Exchange, rows: list[Row]) -> Row:
    return {
        "name": exchange.name,
        "vhost": exchange.vhost,
        "kind": "partitioned",
        "partitions": len(rows),
        "messages": _sum(rows, "messages"),
        "bytes": _sum(rows, "bytes"),
        "streams": rows,
    }


def _sum(rows: list[Row], key: str) -> int | None:
    """The sum of a column; None if one is not known here."""
    found = [row.get(key) for row in rows]
    numbers = [value for value in found if isinstance(value, int)]
    return sum(numbers) if len(numbers) == len(found) else None


# ---- finding ------------------------------------------------------------------------------------


async def streams_of(vhost: VHost) -> list[Queue]:
    pace = Pace()
    found: list[Queue] = []
    for queue in list(vhost.destinations.values()):
        if isinstance(queue, Queue) and is_stream(queue.options):
            found.append(queue)
        if pace.is_due():
            await pace.rest()
    return found


def partitioned(vhost: VHost, name: str) -> Exchange | None:
    exchange = vhost.router.exchanges.get(name)
    return exchange if exchange is not None and exchange.kind == SUPER_STREAM_KIND else None


def members_of(exchange: Exchange) -> list[Queue]:
    return [
        each
        for each in partitions_of(exchange)
        if isinstance(each, Queue) and is_stream(each.options)
    ]


def _stream(call: Call) -> Queue:
    queue = call.vhost().destinations.get(call.name())
    if not isinstance(queue, Queue) or not is_stream(queue.options):
        raise ObjectNotFound
    return queue


# ---- looking ------------------------------------------------------------------------------------


class Found:
    """The rows of streams, made where each is active: here, or by the brokers that were asked."""

    def __init__(self, make: Callable[[Queue], Row]) -> None:
        self._make = make
        self._rows: dict[tuple[object, object], Row] = {}
        self.silent: list[str] = []

    async def gather(self, call: Call, queues: list[Queue]) -> None:
        if any(queue.stream is None for queue in queues):
            replies, gathered = await documents(call)
            self.silent = gathered.silent
            for rows in replies.values():
                for row in rows:
                    self._rows[(row["vhost"], row["name"])] = row

    def listed_row(self, item: Queue | Exchange) -> Row:
        """A stream, or a partitioned one with all its parts."""
        if isinstance(item, Queue):
            return self.row(item)
        return partitioned_row(item, [self.row(queue) for queue in members_of(item)])

    def row(self, queue: Queue) -> Row:
        known = None if queue.stream is not None else self._rows.get((queue.vhost, queue.name))
        return self._make(queue) if known is None else known

    async def told(self, queues: list[Queue]) -> Response:
        """The rows for the broker that asks: what is active here."""
        pace = Pace()
        rows: list[Row] = []
        for queue in queues:
            if queue.stream is not None:
                rows.append(self._make(queue))
            if pace.is_due():
                await pace.rest()
        return answer(rows)

    def shown(self, response: Response) -> Response:
        if self.silent:
            response.headers[SILENT] = ",".join(self.silent)
        return response


async def list_streams(call: Call) -> Response:
    """Each name once: partitions are shown with what they belong to."""
    found = Found(stream_row)
    vhosts = call.vhosts()
    streams = {vhost.name: await streams_of(vhost) for vhost in vhosts}
    queues = [queue for each in streams.values() for queue in each]
    if call.asked:
        return await found.told(queues)
    await found.gather(call, queues)
    items: list[Queue | Exchange] = []
    for vhost in vhosts:
        grouped: set[str] = set()
        for exchange in vhost.router.exchanges.values():
            if exchange.kind == SUPER_STREAM_KIND:
                grouped.update(queue.name for queue in members_of(exchange))
                items.append(exchange)
        items += [queue for queue in streams[vhost.name] if queue.name not in grouped]
    return found.shown(await listed(call, items, found.listed_row))


async def show_stream(call: Call) -> Response:
    """A stream, or all parts of one; with ``timestamp`` (ms) also the offset at that time."""
    at_ms = call.number("timestamp", -1, 0, TIMESTAMP_MAX)
    found = Found(lambda queue: _details_at(queue, at_ms))
    exchange = partitioned(call.vhost(), call.name())
    queues = [_stream(call)] if exchange is None else members_of(exchange)
    if call.asked:
        return await found.told(queues)
    await found.gather(call, queues)
    rows = [found.row(queue) for queue in queues]
    return found.shown(answer(rows[0] if exchange is None else partitioned_row(exchange, rows)))


def _details_at(queue: Queue, at_ms: int) -> Row:
    row = stream_details(queue)
    stream = stream_of(queue)
    if at_ms >= 0 and stream is not None:
        row["offset_at"] = int(stream.log.offset_at(at_ms))
    return row


# ---- declaring ----------------------------------------------------------------------------------


async def declare_stream(call: Call) -> Response:
    """Declare a stream, or with ``partitions`` as many streams and the exchange before them."""
    vhost = call.vhost()
    name = call.name()
    _check_any_part(call, vhost)
    document = await call.document()
    count = document.number("partitions", 0)
    if not 0 <= count <= PARTITIONS_MAX:
        raise BadRequest(f"partitions is {count}; it must be from 1 to {PARTITIONS_MAX}")
    arguments = {**document.table("arguments"), "x-queue-type": "stream"}
    user = call.caller.user
    if count == 0:
        is_new = name not in vhost.destinations
        commands = [_declare(vhost, name, arguments, user)]
    else:
        existing = partitioned(vhost, name)
        if existing is not None and len(partitions_of(existing)) > count:
            raise Conflict(
                f"stream '{name}' has {len(partitions_of(existing))} partitions already, and "
                "none can be taken away"
            )
        is_new = existing is None
        commands = _declare_partitions(vhost, name, count, arguments, user)
    pace = Pace()
    for command in commands:
        _check_allowed(call, vhost, command)
        if pace.is_due():
            await pace.rest()
    for command in commands:
        await propose(call.context, command)
    return created(is_new)


def _declare(vhost: VHost, name: str, arguments: dict[str, object], user: str) -> Command:
    return DeclareQueue(vhost.name, name, True, False, "", arguments, user=user)


def _declare_partitions(
    vhost: VHost, name: str, count: int, arguments: dict[str, object], user: str
) -> list[Command]:
    """Declare the streams first: a message must find its partition from the beginning."""
    names = [f"{name}-{number}" for number in range(count)]
    commands = [_declare(vhost, each, arguments, user) for each in names]
    commands.append(DeclareExchange(vhost.name, name, SUPER_STREAM_KIND, True))
    for number, each in enumerate(names):
        order: dict[str, object] = {"x-stream-partition-order": number}
        commands.append(Bind(vhost.name, name, each, QUEUE, str(number), order))
    return commands


def _check_any_part(call: Call, vhost: VHost) -> None:
    """Refuse somebody who may declare neither a stream of the name nor its first partition."""
    identity, name = call.caller.identity, call.name()
    if not identity.may_configure(vhost.name, f"{name}-0"):
        check_configure(open_channel(call.context.broker, vhost, call.caller), QUEUE, name)


def _check_allowed(call: Call, vhost: VHost, command: Command) -> None:
    """The checks that a session makes before it declares."""
    channel = open_channel(call.context.broker, vhost, call.caller)
    if isinstance(command, DeclareQueue):
        if command.name not in vhost.destinations:
            check_declarable_name(QUEUE, command.name)
        check_configure(channel, QUEUE, command.name)
    elif isinstance(command, DeclareExchange):
        if command.name not in vhost.router.exchanges:
            check_declarable_name(EXCHANGE, command.name)
        check_configure(channel, EXCHANGE, command.name)
    elif isinstance(command, Bind):
        check_write(channel, QUEUE, command.destination)
        check_read(channel, EXCHANGE, command.source)


async def delete_stream(call: Call) -> Response:
    """Delete a stream, or a partitioned one with all its parts."""
    vhost = call.vhost()
    channel = open_channel(call.context.broker, vhost, call.caller)
    exchange = partitioned(vhost, call.name())
    queues = [_stream(call)] if exchange is None else members_of(exchange)
    for queue in queues:
        check_configure(channel, QUEUE, queue.name)
    if exchange is not None:
        check_configure(channel, EXCHANGE, exchange.name)
        await propose(call.context, DeleteExchange(vhost.name, exchange.name))
    for queue in queues:
        await propose(call.context, DeleteQueue(vhost.name, queue.name, queue.definition.id))
    return done()


# ---- remembered offsets -------------------------------------------------------------------------


async def list_offsets(call: Call) -> Response:
    queue = _stream(call)
    elsewhere = await at_home(call, queue)
    return elsewhere or answer(offsets_of(_active(queue)))


async def show_offset(call: Call) -> Response:
    queue = _stream(call)
    elsewhere = await at_home(call, queue)
    if elsewhere is not None:
        return elsewhere
    found = offsets_of(_active(queue)).get(call.name("consumer"))
    if found is None:
        raise ObjectNotFound
    return answer({"offset": found})


async def set_offset(call: Call) -> Response:
    """Have a name go on after an offset; its consumers of now are not moved."""
    queue = _readable(call)
    body = await call.body(SHORT_BYTES_MAX)
    elsewhere = await at_home(call, queue, body)
    if elsewhere is not None:
        return elsewhere
    offset = parse_document(body).number("offset")
    if not 0 <= offset <= OFFSET_MAX:
        raise BadRequest(f"offset is {offset}; it must be a number of at least 0")
    name = call.name("consumer")
    if not 0 < len(name) <= NAME_CHARS_MAX:
        raise BadRequest(f"the name of a consumer has 1 to {NAME_CHARS_MAX} characters")
    call.context.shell.begin_turn()
    stream = _active(queue)
    key = name.encode("utf-8", "surrogateescape")
    stream.positions.forget(key)
    if not stream.note_offset(key, offset):
        most = call.context.broker.limits.stream_readers_max
        raise Conflict(
            f"vhost '{queue.vhost}' has {most} named readers of streams at this broker, which is"
            " the limit (limits.stream_readers_max); forget some, or raise it"
        )
    return done()


async def forget_offset(call: Call) -> Response:
    queue = _readable(call)
    elsewhere = await at_home(call, queue)
    if elsewhere is not None:
        return elsewhere
    stream = _active(queue)
    name = call.name("consumer").encode("utf-8", "surrogateescape")
    told = stream.positions.forget(name)
    if name not in stream.log.offsets:
        if told:
            return done()
        raise ObjectNotFound
    call.context.shell.begin_turn()
    stream.note_offset(name, NO_OFFSET)
    return done()


def _readable(call: Call) -> Queue:
    """The stream in the path, for somebody who may read it."""
    queue = _stream(call)
    channel = open_channel(call.context.broker, call.vhost(), call.caller)
    check_read(channel, QUEUE, queue.name)
    return queue


def _active(queue: Queue) -> Stream:
    stream = stream_of(queue)
    if stream is None:
        raise Unavailable(f"stream '{queue.name}' is not active yet; try again")
    return stream


ENDPOINTS: Final = (
    GET("/api/rhizome/streams", MANAGEMENT, list_streams, rows_of(rhizome_schemas.STREAM)),
    GET("/api/rhizome/streams/{vhost}", MANAGEMENT, list_streams, rows_of(rhizome_schemas.STREAM)),
    GET(
        "/api/rhizome/streams/{vhost}/{name}",
        MANAGEMENT,
        show_stream,
        row_of(rhizome_schemas.STREAM, AT_TIME),
    ),
    PUT(
        "/api/rhizome/streams/{vhost}/{name}",
        MANAGEMENT,
        declare_stream,
        MADE,
        request_schemas.STREAM,
    ),
    DELETE("/api/rhizome/streams/{vhost}/{name}", MANAGEMENT, delete_stream, DONE),
    GET(
        "/api/rhizome/streams/{vhost}/{name}/offsets",
        MANAGEMENT,
        list_offsets,
        row_of(rhizome_schemas.OFFSETS),
    ),
    GET(
        "/api/rhizome/streams/{vhost}/{name}/offsets/{consumer}",
        MANAGEMENT,
        show_offset,
        row_of(rhizome_schemas.OFFSET),
    ),
    PUT(
        "/api/rhizome/streams/{vhost}/{name}/offsets/{consumer}",
        MANAGEMENT,
        set_offset,
        DONE,
        request_schemas.OFFSET,
    ),
    DELETE(
        "/api/rhizome/streams/{vhost}/{name}/offsets/{consumer}", MANAGEMENT, forget_offset, DONE
    ),
)
