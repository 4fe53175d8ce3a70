"""Queue messages: publish, get and browse them.

A message in JSON has its payload as a string if that is UTF-8, else in base64.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import codecs
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from starlette.responses import Response

from rhizome.amqp.frames import body_of, header_payload_of
from rhizome.amqp.properties import Properties, decode_properties
from rhizome.broker.channel.consume_methods import pull
from rhizome.broker.channel.resource_lookup import check_read
from rhizome.broker.message import Message, Route
from rhizome.broker.metadata.declare_and_consume_arguments import queue_locked
from rhizome.broker.metadata.metadata_commands import QUEUE
from rhizome.broker.metadata.vhost import VHost
from rhizome.broker.queue import message_browser
from rhizome.broker.queue.message_browser import Browsed, browse
from rhizome.broker.queue.queue import Queue
from rhizome.broker.queue.redelivered_flag import with_delivery_count
from rhizome.broker.streams.stream import stream_of
from rhizome.broker.streams.stream_browser import peek
from rhizome.broker.streams.stream_restrictions import is_stream, unsupported
from rhizome.errors import AccessRefused, NotFound, SyntaxErrorFault
from rhizome.journal.streams.stream_format import StreamEntry
from rhizome.management.api_context import Context
from rhizome.management.direct_channel import open_channel, publish
from rhizome.management.errors import BadRequest, ObjectNotFound, Unavailable
from rhizome.management.http.api_call import Call
from rhizome.management.http.auth import MANAGEMENT
from rhizome.management.http.cooperative_yield import Pace, own_turn
from rhizome.management.http.endpoint import GET, POST
from rhizome.management.http.json_body import SHORT_BYTES_MAX, Document, parse_document
from rhizome.management.http.json_responses import LongResponse, Pieces, Row, answer, encoded
from rhizome.management.openapi import rabbitmq_schemas, request_schemas
from rhizome.management.openapi.endpoint_shapes import Parameter, between, list_of, row_of
from rhizome.management.peers.cluster_wide_queries import at_home, wherever
from rhizome.management.rabbitmq_api.exchanges import exchange_name
from rhizome.management.rabbitmq_api.json_rows import DEFAULT_EXCHANGE
from rhizome.management.rabbitmq_api.queues import check_told, usable_queue

T = TypeVar("T")

utf_8_decoder: Final = codecs.getincrementaldecoder("utf-8")

GET_COUNT_MAX: Final = 10_000
GET_BYTES_MAX: Final = 16 << 20
"""Messages are taken until they reach this size together."""
GET_SECONDS_MAX: Final = 10.0
GET_POLL_SECONDS: Final = 0.002
BROWSE_COUNT_DEFAULT: Final = 10
TURNS_WAITED_MAX: Final = 100
PAYLOAD_STEP_BYTES: Final = 3 << 16
"""How much of a payload is encoded at once; base64 makes four characters of three bytes."""

BODY_BYTES_MAX: Final = 8 << 20
"""The largest body of a request that publishes: a message of 6 MiB in base64. Larger ones go by
AMQP."""
BROWSED: Final = list_of(
    rabbitmq_schemas.BROWSED,
    Parameter("offset", between(0, message_browser.OFFSET_MAX), "Messages to skip"),
    Parameter("count", between(1, message_browser.COUNT_MAX), "Messages to show"),
    Parameter("truncate", between(0, 1 << 31), "Bytes of each payload"),
)

ACK_MODES: Final = (
    "ack_requeue_true",
    "reject_requeue_true",
    "ack_requeue_false",
    "reject_requeue_false",
)
_TEXTS: Final = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)
_NUMBERS: Final = {"delivery_mode": 0xFF, "priority": 0xFF, "timestamp": (1 << 64) - 1}


# ---- messages as JSON ---------------------------------------------------------------------------


def properties_row(content: bytes) -> Row:
    """The properties that a content has."""
    try:
        properties = decode_properties(header_payload_of(content))
    except SyntaxErrorFault:
        # Passed through as they came: garbled properties come back garbled.
        return {}
    names = (*_TEXTS, *_NUMBERS, "headers")
    found = {name: getattr(properties, name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


async def shown_messages(
    call: Call,
    messages: Iterable[tuple[Row, bytes]],
    encoding: str,
    bytes_max: int,
    around: tuple[bytes, bytes] = (b"", b""),
) -> Response:
    """A list of messages, each a row and its payload, encoded a little at a time; ``around`` is
    what stands before and behind the list."""
    pace = Pace()
    pieces = Pieces()
    pieces.add(around[0])
    before = b"["
    for row, body in messages:
        pieces.add(before + encoded(row)[:-1])
        await _add_payload(pieces, body if bytes_max < 0 else body[:bytes_max], encoding)
        before = b","
        if pace.is_due():
            await pace.rest()
    pieces.add((b"]" if before == b"," else b"[]") + around[1])
    return LongResponse(call, pieces.end(), due=True)


async def _add_payload(pieces: Pieces, body: bytes, encoding: str) -> None:
    """The last fields of a message, and its end."""
    is_text = encoding != "base64" and await _is_text(body)
    pieces.add(b',"payload":"')
    pace = Pace()
    decode = utf_8_decoder().decode
    for start in range(0, len(body), PAYLOAD_STEP_BYTES):
        step = body[start : start + PAYLOAD_STEP_BYTES]
        # A character that is cut by the step comes with the next one.
        pieces.add(encoded(decode(step))[1:-1] if is_text else base64.b64encode(step))
        if pace.is_due():
            await pace.rest()
    pieces.add(b'","payload_encoding":"%s"}' % (b"string" if is_text else b"base64"))


async def _is_text(body: bytes) -> bool:
    pace = Pace()
    decoder = utf_8_decoder()
    try:
        for start in range(0, len(body), PAYLOAD_STEP_BYTES):
            decoder.decode(body[start : start + PAYLOAD_STEP_BYTES])
            if pace.is_due():
                await pace.rest()
        decoder.decode(b"", True)
    except UnicodeDecodeError:
        return False
    return True


def browsed_row(at: int, browsed: Browsed, content: bytes) -> tuple[Row, bytes]:
    """``content`` is the message's, which may have gone to disk since it was looked at."""
    message = browsed.message
    body = body_of(content)
    return {
        "index": at,
        "id": f"{int(message.index)}-{int(message.arrived_ms)}",
        "exchange": message.route.exchange,
        "routing_key": message.route.key,
        "properties": properties_row(content),
        "redelivered": browsed.delivery_count > 0,
        "delivery_count": int(browsed.delivery_count),
        "arrived_ms": int(message.arrived_ms),
        "size": len(body),
    }, body


def peeked_row(context: Context, entry: StreamEntry) -> tuple[Row, bytes]:
    """A message of a stream; its index is its offset."""
    route = context.broker.pager.route(entry.tail)
    body = body_of(entry.content)
    return {
        "index": int(entry.offset),
        "id": f"{int(entry.offset)}-{int(entry.time_ms)}",
        "exchange": route.exchange,
        "routing_key": route.key,
        "properties": properties_row(entry.content),
        "redelivered": False,
        "delivery_count": 0,
        "arrived_ms": int(entry.time_ms),
        "size": len(body),
    }, body


# ---- browse -------------------------------------------------------------------------------------


async def browse_queue(call: Call) -> Response:
    """Look at ready messages in order; nothing about the queue changes."""
    queue = browsed_queue(call)
    if queue is None:
        return await wherever(call)
    check_browse(call, queue)
    elsewhere = await at_home(call, queue)
    if elsewhere is not None:
        return elsewhere
    offset = call.number("offset", 0, 0, message_browser.OFFSET_MAX)
    count = call.number("count", BROWSE_COUNT_DEFAULT, 1, message_browser.COUNT_MAX)
    bytes_max = call.number("truncate", -1, 0, 1 << 31)
    stream = stream_of(queue)
    if stream is not None:
        first = int(stream.log.first) + offset
        seen = peek(stream.log, first, count, message_browser.BYTES_MAX)
        peeked = (peeked_row(call.context, entry) for entry in seen)
        return await shown_messages(call, peeked, "auto", bytes_max)
    found = await look_at(call.context, queue, offset, count)
    contents = [each.message.content for each in found]
    rows = (
        browsed_row(offset + at, each, content)
        for at, (each, content) in enumerate(zip(found, contents, strict=True))
    )
    return await shown_messages(call, rows, "auto", bytes_max)


def check_browse(call: Call, queue: Queue) -> None:
    """Refuse callers that may not look into a queue."""
    if not call.caller.identity.may_read(queue.vhost, queue.name):
        raise AccessRefused(
            f"access to queue '{queue.name}' in vhost '{queue.vhost}' refused for user"
            f" '{call.caller.user}'"
        )
    if queue.definition.is_private():
        # The caller is not the connection that owns it, whatever the user may read.
        raise queue_locked(queue.vhost, queue.name, 0, 0)


def browsed_queue(call: Call) -> Queue | None:
    """The queue in the path; None if it may be a private one on another broker."""
    queue = call.vhost().destinations.get(call.name())
    if isinstance(queue, Queue):
        return queue
    if call.asked:
        raise ObjectNotFound
    return None


async def look_at(context: Context, queue: Queue, offset: int, count: int) -> list[Browsed]:
    """Browse, and again in the next turn if a message could not be read in this one."""
    for _ in range(TURNS_WAITED_MAX):
        browser = browse(queue, context.broker.pager, offset, count)
        if not browser.late:
            break
        await turn(context)
    return browser.found


async def turn(context: Context) -> None:
    """Let the shell hand what this turn has appended to the disk."""
    context.shell.begin_turn()
    await asyncio.sleep(0)


# ---- get ----------------------------------------------------------------------------------------


async def get_messages(call: Call) -> Response:
    """Take messages as basic.get does, and settle them at once as ``ackmode`` says."""
    channel, queue = usable_queue(call)
    check_read(channel, QUEUE, queue.name)
    if is_stream(queue.options):
        raise unsupported("basic.get", queue.vhost, queue.name, 60, 70)
    body = await call.body(SHORT_BYTES_MAX)
    elsewhere = await at_home(call, queue, body)
    if elsewhere is not None:
        return elsewhere
    document = parse_document(body)
    count = document.number("count", 1)
    if not 0 <= count <= GET_COUNT_MAX:
        raise BadRequest(f"count is {count}; it must be from 0 to {GET_COUNT_MAX}")
    mode = _ack_mode(document)
    encoding = document.text("encoding", "auto")
    if encoding not in ("auto", "base64"):
        raise BadRequest(f"encoding is {encoding!r}; it must be auto or base64")
    bytes_max = document.number("truncate", -1)
    if count == 0:
        return answer([])
    # Refuse now: once messages are taken they may be gone from the queue.
    call.context.waiting_answers.check(call.caller.user, GET_BYTES_MAX)
    taken = await until_taken(call.context, queue, lambda: take(queue, count, mode))
    return await shown_messages(call, map(_taken_row, taken), encoding, bytes_max)


async def until_taken(context: Context, queue: Queue, take: Callable[[], T]) -> T:
    """Take from a queue that is active here, as soon as its messages may be delivered and can be
    read; nothing if the queue is empty."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + GET_SECONDS_MAX
    while True:
        check_told(queue)
        context.shell.begin_turn()
        taken = take()
        if taken or queue.deleted or queue.ready == 0:
            return taken
        if loop.time() > deadline:
            raise Unavailable(
                f"the first message of queue '{queue.name}' is not on all of its copies, or can't"
                f" be read, after {GET_SECONDS_MAX:g} s; is a disk full, or a broker away?"
            )
        await asyncio.sleep(GET_POLL_SECONDS)


def _ack_mode(document: Document) -> str:
    """``ackmode``, or what old tools send in its place."""
    if "ackmode" not in document and "requeue" in document:
        return "ack_requeue_true" if document.flag("requeue") else "ack_requeue_false"
    mode = document.text("ackmode")
    if mode not in ACK_MODES:
        raise BadRequest(f"ackmode is {mode!r}; it must be one of {', '.join(ACK_MODES)}")
    return mode


@dataclass(frozen=True, slots=True)
class Taken:
    """A message that was taken, and how many were left then. It may have gone to disk since."""

    route: Route
    content: bytes
    redelivered: bool
    left: int


def take(queue: Queue, count: int, mode: str) -> list[Taken]:
    """Take up to ``count`` messages and settle them.

    All of this happens within one turn: between turns only channels hold unacked messages, and a
    checkpoint asks nobody else.
    """
    held: list[Message] = []
    found: list[Taken] = []
    size = 0
    while len(held) < count and size < GET_BYTES_MAX:
        message = pull(queue)
        if message is None:
            break
        held.append(message)
        size += len(message.content)
        queue.unacked += 1
        queue.delivered += 1
        found.append(_taken(queue, message))
    for message in held:
        if mode.endswith("requeue_true"):
            queue.requeue(message)
        elif mode == "reject_requeue_false":
            queue.reject(message)
        else:
            queue.ack(message)
    return found


def _taken(queue: Queue, message: Message) -> Taken:
    redelivered = message.index in queue.counts
    if redelivered:
        queue.redelivered += 1
    shown = with_delivery_count(queue, message) if redelivered else message
    return Taken(shown.route, shown.content, redelivered, int(queue.ready))


def _taken_row(taken: Taken) -> tuple[Row, bytes]:
    body = body_of(taken.content)
    return {
        "exchange": taken.route.exchange,
        "routing_key": taken.route.key,
        "redelivered": taken.redelivered,
        "message_count": taken.left,
        "properties": properties_row(taken.content),
        "payload_bytes": len(body),
    }, body


# ---- publish ------------------------------------------------------------------------------------


async def publish_message(call: Call) -> Response:
    vhost = call.vhost()
    channel = open_channel(call.context.broker, vhost, call.caller)
    _check_publish(call, vhost)
    document = await call.document(BODY_BYTES_MAX)
    key = document.text("routing_key")
    await own_turn()
    body = _payload(document)
    properties = read_properties(document.table("properties"))
    try:
        routed = await publish(call.context, channel, exchange_name(call), key, properties, body)
    except NotFound as error:
        # What is missing is not the object of this path: RabbitMQ answers 400 with AMQP's code.
        raise BadRequest(f"{error.code} {error.reply_text()}") from None
    return answer({"routed": routed})


def _check_publish(call: Call, vhost: VHost) -> None:
    """What can be refused before the message is read, in the words of a publish."""
    name, identity = exchange_name(call), call.caller.identity
    if name not in vhost.router.exchanges:
        missing = NotFound(f"no exchange '{name}' in vhost '{vhost.name}'", 60, 40)
        raise BadRequest(f"{missing.code} {missing.reply_text()}")
    if not identity.may_write(vhost.name, name):
        raise AccessRefused(
            f"access to exchange '{name or DEFAULT_EXCHANGE}' in vhost '{vhost.name}' refused for"
            f" user '{identity.user}'"
        )


def _payload(document: Document) -> bytes:
    payload = document.text("payload")
    encoding = document.text("payload_encoding", "string")
    if encoding == "string":
        return payload.encode("utf-8", "surrogateescape")
    if encoding != "base64":
        raise BadRequest(f"payload_encoding is {encoding[:40]!r}; it must be string or base64")
    try:
        return base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest("the payload is no base64") from None


def read_properties(given: dict[str, object]) -> Properties:
    """The properties of a message from their JSON; raises BadRequest."""
    properties = Properties()
    document = Document(given)
    for name in document.keys():  # noqa: SIM118 - no mapping
        if name not in document:
            continue
        if name in _TEXTS:
            setattr(properties, name, document.text(name))
        elif name in _NUMBERS:
            number = document.number(name)
            if not 0 <= number <= _NUMBERS[name]:
                raise BadRequest(f"{name} is {number}; it must be from 0 to {_NUMBERS[name]}")
            setattr(properties, name, number)
        elif name == "headers":
            properties.headers = document.table(name)
        else:
            raise BadRequest(f"unknown property {name!r}")
    return properties


ENDPOINTS: Final = (
    POST(
        "/api/queues/{vhost}/{name}/get",
        MANAGEMENT,
        get_messages,
        list_of(rabbitmq_schemas.TAKEN),
        request_schemas.GET,
    ),
    POST(
        "/api/exchanges/{vhost}/{name}/publish",
        MANAGEMENT,
        publish_message,
        row_of(rabbitmq_schemas.ROUTED),
        request_schemas.PUBLISH,
    ),
    GET("/api/rhizome/queues/{vhost}/{name}/messages", MANAGEMENT, browse_queue, BROWSED),
)
