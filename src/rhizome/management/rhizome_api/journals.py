"""/api/rhizome/journals: the journals, checkpoints and stream logs of brokers, read from elsewhere.

    GET    /api/rhizome/journals                             the brokers, and where each is reached
    GET    /api/rhizome/journals/BROKER/state                names of queues, groups and copies
    POST   /api/rhizome/journals/BROKER/pins                 keep what is committed now; its parts
    GET    /api/rhizome/journals/BROKER/pins/PIN/PART        a range of bytes, with its checksum
    DELETE /api/rhizome/journals/BROKER/pins/PIN             it is read

A reader of a journal reads the messages of all vhosts, so it needs the tag `auditor` or
`administrator`, whatever its permissions. Any broker passes a request on to the one that it
names; that costs both of them, so readers go to each broker itself where they can.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from starlette.responses import Response

from rhizome.journal.pinned_files import Pin
from rhizome.listen_sockets import is_wildcard
from rhizome.management.api_context import Context
from rhizome.management.errors import BadRequest, ObjectNotFound
from rhizome.management.http.api_call import Call
from rhizome.management.http.auth import AUDITOR
from rhizome.management.http.endpoint import DELETE, GET, POST
from rhizome.management.http.json_responses import LongResponse, Row, answer, done, long_answer
from rhizome.management.journal_readers import RANGE_BYTES_MAX
from rhizome.management.openapi.endpoint_shapes import (
    BYTES,
    DONE,
    FLAG,
    NUMBER,
    TEXT,
    Answer,
    Parameter,
    attributes,
    between,
    fields,
    list_of,
    many,
    one_of,
    record,
)
from rhizome.management.peers.cluster_wide_queries import documents, passed_on, peer_request_of
from rhizome.management.peers.peer_requests import CHECKSUM_HEADER, WORK_SECONDS_MAX
from rhizome.management.rhizome_api.cluster_status_and_changes import view_of

PATH: Final = "/api/rhizome/journals"
OF_BROKER: Final = PATH + "/{broker}"
PINS: Final = OF_BROKER + "/pins"
BYTES_TYPE: Final = "application/octet-stream"
OFFSET_MAX: Final = 1 << 40

PART: Final = record(
    "JournalPart",
    {
        "name": TEXT,
        "kind": one_of("segment", "checkpoint", "retired", "stream"),
        **fields(NUMBER, "number stream size committed"),
        "sealed": FLAG,
    },
)
PIN: Final = record("JournalPin", {"broker": TEXT, "pin": TEXT, "parts": many(PART)})
PIN_ROW: Final = record(
    "JournalPinRow",
    {
        **fields(TEXT, "pin user"),
        **fields(NUMBER, "parts bytes age_ms idle_ms"),
    },
)
BROKER: Final = record("JournalBroker", {"broker": TEXT, "reachable": FLAG, "http": many(TEXT)})
STATE: Final = record(
    "JournalState",
    {
        "broker": TEXT,
        "queues": many(
            record(
                "JournalQueue",
                {"id": NUMBER, "vhost": TEXT, "name": TEXT, "group": NUMBER, "stream": FLAG},
            )
        ),
        "groups": many(
            record(
                "JournalGroup",
                {
                    **fields(NUMBER, "id epoch version"),
                    "home": TEXT,
                    "in_sync": many(TEXT),
                    "stream": FLAG,
                },
            )
        ),
    },
)


# ---- brokers ------------------------------------------------------------------------------------


async def list_brokers(call: Call) -> Response:
    """The brokers that have a journal, and the addresses of their HTTP APIs; empty: another broker
    passes requests on."""
    view = view_of(call.context)
    document = await view.cluster_document()
    own = next(each for each in document.brokers if each.name == call.context.name)
    rows: list[Any] = [_broker_row(call.context, own.addresses)]
    if call.asked:
        return answer(rows)
    replies, _ = await documents(call, call.question(PATH))
    for reply in replies.values():
        rows += reply
    there = {row["broker"] for row in rows}
    for each in document.brokers:
        if each.name not in there:
            rows.append({"broker": each.name, "reachable": False, "http": []})
    return answer(sorted(rows, key=lambda row: str(row["broker"])))


def _broker_row(context: Context, advertised: tuple[str, ...]) -> Row:
    """The row of this broker. A listener on every interface is shown with the hosts that the broker
    advertises."""
    hosts = [host for host, colon, _ in (each.rpartition(":") for each in advertised) if colon]
    found: list[str] = []
    for listener in context.http_listeners:
        if not is_wildcard(listener.host):
            found.append(listener.url)
            continue
        scheme = listener.url.partition("://")[0]
        for host in hosts:
            found.append(f"{scheme}://{host.rpartition('//')[2]}:{listener.port}")
    return {"broker": context.name, "reachable": True, "http": list(dict.fromkeys(found))}


async def _elsewhere(call: Call) -> Response | None:
    """The answer of the broker that the path names; None if that is this one."""
    broker = call.name("broker")
    if broker == call.context.name:
        return None
    if call.asked:
        raise ObjectNotFound
    return passed_on(await call.context.others.ask(broker, peer_request_of(call), WORK_SECONDS_MAX))


# ---- state --------------------------------------------------------------------------------------


async def show_state(call: Call) -> Response:
    """What queues and streams are called, and which brokers must have copies of which group."""
    elsewhere = await _elsewhere(call)
    if elsewhere is not None:
        return elsewhere
    context = call.context
    groups = [each.row() for each in view_of(context).group_copies()]
    return await long_answer(
        call, {"broker": context.name, "queues": _queue_rows(context), "groups": groups}
    )


def _queue_rows(context: Context) -> Iterator[Row]:
    for vhost in list(context.broker.state.vhosts.values()):
        for definition in list(vhost.queues.values()):
            yield {
                "id": definition.id,
                "vhost": vhost.name,
                "name": definition.name,
                "group": definition.group,
                "stream": definition.options.queue_type == "stream",
            }


# ---- pins ---------------------------------------------------------------------------------------


def _pin_row(pin: Pin, now_ms: int) -> Row:
    return {
        "pin": pin.id,
        "user": pin.user,
        "parts": len(pin.parts),
        "bytes": sum(part.size for part in pin.parts.values()),
        "age_ms": now_ms - pin.made_ms,
        "idle_ms": now_ms - pin.used_ms,
    }


async def _parts(call: Call, pin: Pin) -> Response:
    rows = map(attributes(PART), pin.parts.values())
    return await long_answer(call, {"broker": call.context.name, "pin": pin.id, "parts": rows})


async def list_pins(call: Call) -> Response:
    """The pins at a broker: who reads of its journal, and since when."""
    elsewhere = await _elsewhere(call)
    if elsewhere is not None:
        return elsewhere
    readers = call.context.journal_readers
    return answer([_pin_row(pin, readers.now_ms()) for pin in readers.pins()])


async def make_pin(call: Call) -> Response:
    """Keep what is committed now of journal and streams readable until it is read."""
    elsewhere = await _elsewhere(call)
    if elsewhere is not None:
        return elsewhere
    context = call.context
    pin = await context.journal_readers.make(call.caller.user, context.config.journal)
    response = await _parts(call, pin)
    response.status_code = 201
    return response


async def show_pin(call: Call) -> Response:
    """The parts of a pin."""
    elsewhere = await _elsewhere(call)
    if elsewhere is not None:
        return elsewhere
    return await _parts(call, call.context.journal_readers.pin(call.name("pin")))


async def end_pin(call: Call) -> Response:
    """End a pin: what only it holds is removed."""
    elsewhere = await _elsewhere(call)
    if elsewhere is not None:
        return elsewhere
    readers = call.context.journal_readers
    readers.end(readers.pin(call.name("pin")))
    return done()


async def read_part(call: Call) -> Response:
    """A range of bytes of a part; its CRC-32C is in the header x-rhizome-crc32c."""
    elsewhere = await _elsewhere(call)
    if elsewhere is not None:
        return elsewhere
    context = call.context
    pin = context.journal_readers.pin(call.name("pin"))
    part = pin.parts.get(call.name("part"))
    if part is None:
        raise ObjectNotFound("the pin has no such part")
    start = call.number("from", 0, 0, OFFSET_MAX)
    length = call.number("bytes", RANGE_BYTES_MAX, 1, RANGE_BYTES_MAX)
    if start > part.size:
        raise BadRequest(f"from is {start}; {part.name} has {part.size} bytes")
    pieces, checksum = await context.journal_readers.read(
        pin, part, start, length, context.config.journal
    )
    response = LongResponse(call, pieces, BYTES_TYPE)
    response.headers[CHECKSUM_HEADER] = checksum
    return response


RANGE: Final = (
    Parameter("from", between(0, OFFSET_MAX), "Where the range begins; 0 unless told"),
    Parameter("bytes", between(1, RANGE_BYTES_MAX), "How much of it; the most unless told"),
)

ENDPOINTS: Final = (
    GET(PATH, AUDITOR, list_brokers, list_of(BROKER)),
    GET(OF_BROKER + "/state", AUDITOR, show_state, Answer({200: STATE}, is_long=True)),
    GET(PINS, AUDITOR, list_pins, list_of(PIN_ROW)),
    POST(PINS, AUDITOR, make_pin, Answer({201: PIN}, is_long=True)),
    GET(PINS + "/{pin}", AUDITOR, show_pin, Answer({200: PIN}, is_long=True)),
    DELETE(PINS + "/{pin}", AUDITOR, end_pin, DONE),
    GET(
        PINS + "/{pin}/{part}",
        AUDITOR,
        read_part,
        Answer({200: BYTES}, RANGE, media_type=BYTES_TYPE),
    ),
)
