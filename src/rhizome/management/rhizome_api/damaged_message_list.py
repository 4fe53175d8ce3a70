"""/api/rhizome/damaged: messages that can't be read from disk and are set aside.

Each broker knows those of the queues that are active there; the list is put together from the
answers of all. A message is dropped at the home of its queue.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from rhizome.broker.channel.resource_lookup import check_read
from rhizome.broker.metadata.metadata_commands import QUEUE
from rhizome.broker.queue.damaged_messages import DamagedMessage
from rhizome.management.api_context import Context
from rhizome.management.errors import ObjectNotFound
from rhizome.management.http.api_call import Call
from rhizome.management.http.auth import MANAGEMENT, MONITORING
from rhizome.management.http.endpoint import DELETE, GET
from rhizome.management.http.json_responses import Row, answer, done, listed
from rhizome.management.openapi.endpoint_shapes import (
    DONE,
    NUMBER,
    TEXT,
    fields,
    list_of,
    record,
    rows_of,
)
from rhizome.management.peers.cluster_wide_queries import at_home, documents
from rhizome.management.rabbitmq_api.queues import usable_queue

PATH: Final = "/api/rhizome/damaged"
OWN_PATH: Final = PATH + "/own"
OF_QUEUE: Final = "/api/rhizome/queues/{vhost}/{name}/damaged"
INDEX_DIGITS_MAX: Final = 18

DAMAGED: Final = record(
    "DamagedMessage",
    {
        **fields(TEXT, "vhost queue node reason"),
        **fields(NUMBER, "index segment offset content_bytes found_ms"),
    },
)


def damaged_row(context: Context, damaged: DamagedMessage) -> Row:
    return {
        "vhost": damaged.queue.vhost,
        "queue": damaged.queue.name,
        "index": int(damaged.index),
        "node": context.name,
        "segment": int(damaged.position >> 32),
        "offset": int(damaged.position & 0xFFFFFFFF),
        "content_bytes": int(damaged.content_bytes),
        "reason": damaged.reason,
        "found_ms": int(damaged.found_ms),
    }


def own_rows(context: Context) -> list[Row]:
    """What is set aside at this broker."""
    return [damaged_row(context, each) for each in context.broker.damage.everything()]


async def list_damaged(call: Call) -> Response:
    rows: list[Any] = list(own_rows(call.context))
    found, _ = await documents(call, call.question(OWN_PATH))
    for more in found.values():
        rows += more
    rows.sort(key=lambda row: (row["vhost"], row["queue"], row["index"]))
    return await listed(call, rows, lambda row: row)


async def list_own(call: Call) -> Response:
    return answer(own_rows(call.context))


async def list_of_queue(call: Call) -> Response:
    queue = call.queue()
    elsewhere = await at_home(call, queue)
    if elsewhere is not None:
        return elsewhere
    found = call.context.broker.damage.of(queue)
    return answer([damaged_row(call.context, each) for each in found])


async def drop_damaged(call: Call) -> Response:
    """Give a message up that is set aside: it is gone from every copy, too."""
    channel, queue = usable_queue(call)
    check_read(channel, QUEUE, queue.name)
    elsewhere = await at_home(call, queue)
    if elsewhere is not None:
        return elsewhere
    index = call.name("index")
    if not (index.isascii() and index.isdecimal() and len(index) <= INDEX_DIGITS_MAX):
        raise ObjectNotFound
    call.context.shell.begin_turn()
    if not call.context.broker.damage.drop(queue, int(index)):
        raise ObjectNotFound
    return done()


ENDPOINTS: Final = (
    GET(PATH, MONITORING, list_damaged, rows_of(DAMAGED)),
    GET(OWN_PATH, MONITORING, list_own, list_of(DAMAGED)),
    GET(OF_QUEUE, MANAGEMENT, list_of_queue, list_of(DAMAGED)),
    DELETE(OF_QUEUE + "/{index}", MANAGEMENT, drop_damaged, DONE),
)
