"""Messages: publish, get and browse them.

A message in JSON has its payload as a string if that is UTF-8, else in base64.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable
from typing import Final, TypeVar

from starlette.responses import Response

from rhizome.amqp.frames import body_of, header_payload_of
from rhizome.amqp.properties import Properties, decode_properties
from rhizome.broker import browsing
from rhizome.broker.arguments import queue_locked
from rhizome.broker.basic import pull
from rhizome.broker.browsing import Browsed, browse
from rhizome.broker.commands import QUEUE
from rhizome.broker.lookup import check_read
from rhizome.broker.message import Message
from rhizome.broker.queue import Queue
from rhizome.broker.showing import with_delivery_count
from rhizome.broker.streams.peek import peek
from rhizome.broker.streams.rules import is_stream, unsupported
from rhizome.errors import AccessRefused, NotFound, SyntaxErrorFault
from rhizome.journal.streamformat import StreamEntry
from rhizome.management import bodies, declared, shapes
from rhizome.management.answers import Row, answer
from rhizome.management.auth import MANAGEMENT
from rhizome.management.call import BODY_BYTES_MAX as REQUEST_BYTES_MAX
from rhizome.management.call import Call
from rhizome.management.context import Context
from rhizome.management.direct import open_channel, publish
from rhizome.management.document import Document, parse_document
from rhizome.management.endpoint import Endpoint
from rhizome.management.errors import BadRequest, ObjectNotFound, Unavailable
from rhizome.management.everywhere import at_home, wherever
from rhizome.management.exchanges import exchange_name
from rhizome.management.queues import check_told, usable_queue

T = TypeVar("T")

GET_COUNT_MAX: Final = 10_000
GET_BYTES_MAX: Final = 64 << 20
GET_SECONDS_MAX: Final = 10.0
GET_POLL_SECONDS: Final = 0.002
BROWSE_COUNT_DEFAULT: Final = 10
TURNS_WAITED_MAX: Final = 100
BODY_BYTES_MAX: Final = 16 << 20
BROWSED: Final = declared.list_of(
    shapes.BROWSED,
    declared.Parameter("offset", declared.between(0, browsing.OFFSET_MAX), "Messages to skip"),
    declared.Parameter("count", declared.between(1, browsing.COUNT_MAX), "Messages to show"),
    declared.Parameter("truncate", declared.between(0, 1 << 31), "Bytes of each payload"),
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
        # Passed through as they came; who sent them garbled, gets them garbled.
        return {}
    names = (*_TEXTS, *_NUMBERS, "headers")
    found = {name: getattr(properties, name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def payload_fields(body: bytes, encoding: str, bytes_max: int) -> Row:
    shown = body if bytes_max < 0 else body[:bytes_max]
    if encoding != "base64":
        try:
            return {"payload": shown.decode(), "payload_encoding": "string"}
        except UnicodeDecodeError:
            pass
    return {"payload": base64.b64encode(shown).decode(), "payload_encoding": "base64"}


def browsed_row(at: int, browsed: Browsed, bytes_max: int) -> Row:
    message = browsed.message
    body = body_of(message.content)
    return {
        "index": at,
        "exchange": message.route.exchange,
        "routing_key": message.route.key,
        "properties": properties_row(message.content),
        "redelivered": browsed.delivery_count > 0,
        "delivery_count": int(browsed.delivery_count),
        "arrived_ms": int(message.arrived_ms),
        "size": len(body),
        **payload_fields(body, "auto", bytes_max),
    }


def peeked_row(context: Context, entry: StreamEntry, bytes_max: int) -> Row:
    """A message of a stream; its index is its offset."""
    route = context.broker.pager.route(entry.tail)
    body = body_of(entry.content)
    return {
        "index": int(entry.offset),
        "exchange": route.exchange,
        "routing_key": route.key,
        "properties": properties_row(entry.content),
        "redelivered": False,
        "delivery_count": 0,
        "arrived_ms": int(entry.time_ms),
        "size": len(body),
        **payload_fields(body, "auto", bytes_max),
    }


# ---- browse -------------------------------------------------------------------------------------


async def browse_queue(call: Call) -> Response:
    """Look at ready messages in order; nothing about the queue changes."""
    queue = _queue(call)
    if queue is None:
        return await wherever(call)
    identity = call.caller.identity
    if not identity.may_read(queue.vhost, queue.name):
        raise AccessRefused(
            f"access to queue '{queue.name}' in vhost '{queue.vhost}' refused for user"
            f" '{call.caller.user}'"
        )
    if queue.definition.is_private():
        # Whoever asks here is not the connection that has it, whatever the user may read.
        raise queue_locked(queue.vhost, queue.name, 0, 0)
    elsewhere = await at_home(call, queue)
    if elsewhere is not None:
        return elsewhere
    offset = call.number("offset", 0, 0, browsing.OFFSET_MAX)
    count = call.number("count", BROWSE_COUNT_DEFAULT, 1, browsing.COUNT_MAX)
    bytes_max = call.number("truncate", -1, 0, 1 << 31)
    if queue.stream is not None:
        first = int(queue.stream.log.first) + offset
        seen = peek(queue.stream.log, first, count, browsing.BYTES_MAX)
        return answer([peeked_row(call.context, entry, bytes_max) for entry in seen])
    found = await look_at(call.context, queue, offset, count)
    rows = [browsed_row(offset + at, each, bytes_max) for at, each in enumerate(found)]
    return answer(rows)


def _queue(call: Call) -> Queue | None:
    """The queue in the path; None if it may be a private one on another broker."""
    queue = call.vhost().destinations.get(call.name())
    if isinstance(queue, Queue):
        return queue
    if call.asked:
        raise ObjectNotFound
    return None


async def look_at(context: Context, queue: Queue, offset: int, count: int) -> list[Browsed]:
    """Browse, and again in the next turn if something could not be read in this one."""
    for _ in range(TURNS_WAITED_MAX):
        browser = browse(queue, context.broker.pager, offset, count)
        if not browser.late:
            break
        await turn(context)
    return browser.found


async def turn(context: Context) -> None:
    """Let the shell hand to the disk what this turn has appended."""
    context.shell.begin_turn()
    await asyncio.sleep(0)


# ---- get ----------------------------------------------------------------------------------------


async def get_messages(call: Call) -> Response:
    """Take messages as basic.get does, and settle them at once as ``ackmode`` says."""
    channel, queue = usable_queue(call)
    check_read(channel, QUEUE, queue.name)
    if is_stream(queue.options):
        raise unsupported("basic.get", queue.vhost, queue.name, 60, 70)
    body = await call.body(REQUEST_BYTES_MAX)
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
    rows = await until_taken(
        call.context, queue, lambda: take(queue, count, mode, encoding, bytes_max)
    )
    return answer(rows)


async def until_taken(context: Context, queue: Queue, take: Callable[[], T]) -> T:
    """Take something of a queue that is active here, as soon as it may be given out and can be
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


def take(queue: Queue, count: int, mode: str, encoding: str, bytes_max: int) -> list[Row]:
    """Take up to ``count`` messages and settle them.

    All of this happens within one turn: between turns the only holders of unacked messages are
    channels, and a checkpoint asks nobody else.
    """
    held: list[Message] = []
    rows: list[Row] = []
    size = 0
    while len(held) < count and size < GET_BYTES_MAX:
        message = pull(queue)
        if message is None:
            break
        held.append(message)
        size += len(message.content)
        queue.unacked += 1
        queue.delivered += 1
        rows.append(_got_row(queue, message, encoding, bytes_max))
    for message in held:
        if mode.endswith("requeue_true"):
            queue.requeue(message)
        elif mode == "reject_requeue_false":
            queue.reject(message)
        else:
            queue.ack(message)
    return rows


def _got_row(queue: Queue, message: Message, encoding: str, bytes_max: int) -> Row:
    redelivered = message.index in queue.counts
    if redelivered:
        queue.redelivered += 1
    shown = with_delivery_count(queue, message) if redelivered else message
    body = body_of(shown.content)
    return {
        "exchange": shown.route.exchange,
        "routing_key": shown.route.key,
        "redelivered": redelivered,
        "message_count": int(queue.ready),
        "properties": properties_row(shown.content),
        "payload_bytes": len(body),
        **payload_fields(body, encoding, bytes_max),
    }


# ---- publish ------------------------------------------------------------------------------------


async def publish_message(call: Call) -> Response:
    vhost = call.vhost()
    document = await call.document(BODY_BYTES_MAX)
    key = document.text("routing_key")
    body = _payload(document)
    properties = read_properties(document.table("properties"))
    channel = open_channel(call.context.broker, vhost, call.caller)
    try:
        routed = await publish(call.context, channel, exchange_name(call), key, properties, body)
    except NotFound as error:
        # What is missing is not the object of this path: RabbitMQ answers 400 with AMQP's code.
        raise BadRequest(f"{error.code} {error.reply_text()}") from None
    return answer({"routed": routed})


def _payload(document: Document) -> bytes:
    payload = document.text("payload")
    encoding = document.text("payload_encoding", "string")
    if encoding == "string":
        return payload.encode("utf-8", "surrogateescape")
    if encoding != "base64":
        raise BadRequest(f"payload_encoding is {encoding!r}; it must be string or base64")
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
    Endpoint(
        "POST",
        "/api/queues/{vhost}/{name}/get",
        MANAGEMENT,
        get_messages,
        declared.list_of(shapes.TAKEN),
        bodies.GET,
    ),
    Endpoint(
        "POST",
        "/api/exchanges/{vhost}/{name}/publish",
        MANAGEMENT,
        publish_message,
        declared.row_of(shapes.ROUTED),
        bodies.PUBLISH,
    ),
    Endpoint(
        "GET", "/api/rhizome/queues/{vhost}/{name}/messages", MANAGEMENT, browse_queue, BROWSED
    ),
)
