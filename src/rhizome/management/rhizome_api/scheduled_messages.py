"""/api/rhizome/schedules/VHOST: delayed messages that wait, taking them back, and moving them.

What waits is looked at where it is held, at the home of `amq.delayed`. A change is recorded there
like a publish, and answered when it is safe. Everybody may take back and move what they have
scheduled, if they may write the exchange; others' schedules take the tag `administrator` or
`policymaker`.
"""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from rhizome.amqp.frames import content_frames
from rhizome.amqp.properties import Properties, encode_header
from rhizome.broker.channel.channel import Channel
from rhizome.broker.channel.resource_lookup import check_write
from rhizome.broker.message import Message, body_bytes, largest_frame
from rhizome.broker.metadata.metadata_commands import EXCHANGE
from rhizome.broker.publishing.delayed_messages import DELAYED_QUEUE, HeldMessages
from rhizome.broker.publishing.publisher_confirms import Confirms
from rhizome.broker.publishing.schedule_headers import (
    DELAY_MS_MAX,
    ID_BYTES_MAX,
    delay_in,
    schedule_key,
    schedule_name,
    signed,
    with_delay,
)
from rhizome.broker.queue.queue import Queue
from rhizome.management.direct_channel import check_open, open_channel, until_confirmed
from rhizome.management.errors import BadRequest, NotAuthorised, ObjectNotFound, Unavailable
from rhizome.management.http.api_call import Call
from rhizome.management.http.auth import ADMINISTRATOR, MANAGEMENT, MONITORING, POLICYMAKER
from rhizome.management.http.endpoint import DELETE, GET, PUT
from rhizome.management.http.json_body import parse_document
from rhizome.management.http.json_responses import Row, answer, done
from rhizome.management.openapi import request_schemas, rhizome_schemas
from rhizome.management.openapi.endpoint_shapes import DONE, TEXT, Parameter, between, row_of
from rhizome.management.peers.cluster_wide_queries import at_home
from rhizome.management.rabbitmq_api.queues import check_told

COUNT_MAX: Final = 1000
"""How many messages one request looks at."""
READ_BYTES_MAX: Final = 1 << 20
BODY_BYTES_MAX: Final = 4096


def _held_queue(call: Call) -> Queue:
    queue = call.vhost().destinations.get(DELAYED_QUEUE)
    if not isinstance(queue, Queue):
        raise ObjectNotFound
    return queue


def _sees_all(call: Call) -> bool:
    return any(call.caller.may(tag) for tag in (ADMINISTRATOR, POLICYMAKER, MONITORING))


async def list_schedules(call: Call) -> Response:
    """What waits, in the order in which it came; callers without a tag for it see their own."""
    count = call.number("count", 100, 1, COUNT_MAX)
    after = call.number("after", 0, 0, 1 << 62)
    query = call.request.query_params
    exchange, user = query.get("exchange", ""), query.get("user", "")
    if DELAYED_QUEUE not in call.vhost().destinations:  # the first exchange that delays makes it
        return answer({"waiting": 0, "schedules": [], "next": None})
    queue = _held_queue(call)
    elsewhere = await at_home(call, queue)
    if elsewhere is not None:
        return elsewhere
    check_told(queue)
    if not _sees_all(call):
        user = call.caller.user
    entries = queue.lane.paged.peek_from(after, COUNT_MAX)
    entries = [entry for entry in entries if entry[0] >= after]
    rows: list[Row] = []
    place = after
    for message in queue.broker.pager.read_several(entries[:COUNT_MAX], READ_BYTES_MAX):
        place = entries[len(rows)][0] if message is None else int(message.index)
        row = None if message is None else _row(message)
        if row is not None and _is_wanted(row, exchange, user):
            rows.append(row)
            if len(rows) >= count:
                break
    is_last = len(entries) == 0 or place >= entries[-1][0]
    return answer(
        {
            "waiting": int(queue.ready),
            "schedules": rows,
            "next": None if is_last and len(entries) < COUNT_MAX else place + 1,
        }
    )


def _is_wanted(row: Row, exchange: str, user: str) -> bool:
    return exchange in ("", row["exchange"]) and user in ("", row["user"])


def _row(message: Message) -> Row:
    name = schedule_name(message.route.exchange, message.content)
    return {
        "id": None if name is None else name.id.decode("utf-8", "replace"),
        "user": None if name is None else name.user.decode("utf-8", "surrogateescape"),
        "exchange": message.route.exchange,
        "routing_key": message.route.key,
        "due_ms": int(message.arrived_ms + delay_in(message.content)),
        "scheduled_ms": int(message.arrived_ms),
        "payload_bytes": int(body_bytes(message.content)),
    }


# ---- changing -----------------------------------------------------------------------------------


class _Named:
    """The schedule that a request names, of a user who may be somebody else."""

    def __init__(self, call: Call, user: str) -> None:
        self.exchange = call.name("exchange")
        self.id = call.name("id").encode("utf-8", "surrogateescape")
        self.user = user or call.caller.user
        if not 0 < len(self.id) <= ID_BYTES_MAX:
            raise BadRequest(f"an id has 1 to {ID_BYTES_MAX} bytes")
        self.channel = open_channel(call.context.broker, call.vhost(), call.caller)
        if self.user == call.caller.user:
            check_write(self.channel, EXCHANGE, self.exchange)
        elif not call.caller.may(ADMINISTRATOR) and not call.caller.may(POLICYMAKER):
            raise NotAuthorised("this is somebody else's schedule")

    def find(self, held: HeldMessages) -> Message:
        if held.scanning:
            raise Unavailable("the home is still reading what waits; try again")
        user = self.user.encode("utf-8", "surrogateescape")
        found = held.find(schedule_key(self.exchange, user, self.id))
        if found is None:
            raise ObjectNotFound
        return found


async def _hold(call: Call, channel: Channel, queue: Queue, message: Message) -> None:
    """Record a message about a schedule, and wait until that is safe."""
    broker = call.context.broker
    check_open(broker)
    call.context.shell.begin_turn()
    message.arrived_ms = broker.turn.now_ms
    confirms = Confirms()
    channel.confirms = confirms
    confirms.published += 1
    channel.touch()
    broker.delayed.hold(queue, message, confirms)
    await until_confirmed(channel)


async def take_back(call: Call) -> Response:
    named = _Named(call, call.request.query_params.get("user", ""))
    queue = _held_queue(call)
    elsewhere = await at_home(call, queue)
    if elsewhere is not None:
        return elsewhere
    check_told(queue)
    broker = call.context.broker
    found = named.find(broker.delayed.held_by(queue))
    headers: dict[str, object] = {"x-schedule-cancel": named.id.decode("utf-8", "surrogateescape")}
    header = encode_header(0, Properties(headers=headers, delivery_mode=2))
    content = signed(content_frames(1, header, b"", int(broker.limits.frame_max)), named.user)
    message = Message(found.route, content, 1, largest_frame(content))
    message.persistent = True
    await _hold(call, named.channel, queue, message)
    return done()


async def move(call: Call) -> Response:
    """Give a message another time: so many milliseconds from now."""
    body = await call.body(BODY_BYTES_MAX)
    document = parse_document(body)
    named = _Named(call, document.text("user", ""))
    delay_ms = document.number("delay_ms")
    if not 0 <= delay_ms <= DELAY_MS_MAX:
        raise BadRequest(f"delay_ms is {delay_ms}; it must be from 0 to {DELAY_MS_MAX}")
    queue = _held_queue(call)
    elsewhere = await at_home(call, queue, body)
    if elsewhere is not None:
        return elsewhere
    check_told(queue)
    found = named.find(call.context.broker.delayed.held_by(queue))
    content = with_delay(found.content, delay_ms)
    message = Message(found.route, content, found.channel, largest_frame(content))
    message.expiration_ms = found.expiration_ms
    message.priority = found.priority
    message.persistent = found.persistent
    await _hold(call, named.channel, queue, message)
    return done()


_ONE: Final = "/api/rhizome/schedules/{vhost}/{exchange}/{id}"
ENDPOINTS: Final = (
    GET(
        "/api/rhizome/schedules/{vhost}",
        MANAGEMENT,
        list_schedules,
        row_of(
            rhizome_schemas.SCHEDULES,
            Parameter("exchange", TEXT, "Only those of this exchange"),
            Parameter("user", TEXT, "Only those of this user"),
            Parameter("count", between(1, COUNT_MAX), "Schedules to show"),
            Parameter("after", between(0, 1 << 62), "The `next` of an answer, to go on there"),
        ),
    ),
    DELETE(_ONE, MANAGEMENT, take_back, DONE),
    PUT(_ONE, MANAGEMENT, move, DONE, request_schemas.MOVE_SCHEDULE),
)
