"""/api/rhizome/damaged: messages that can't be read from disk and are set aside.

Each broker knows those of the queues that are active there; the list is put together from the
answers of all. A message is dropped at the home of its queue.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from rhizome.broker.commands import QUEUE
from rhizome.broker.damage import DamagedMessage
from rhizome.broker.lookup import check_read
from rhizome.management import declared
from rhizome.management.answers import Row, answer, done, listed
from rhizome.management.auth import MANAGEMENT, MONITORING
from rhizome.management.call import Call
from rhizome.management.context import Context
from rhizome.management.declared import NUMBER, TEXT, record
from rhizome.management.endpoint import Endpoint
from rhizome.management.errors import ObjectNotFound
from rhizome.management.everywhere import at_home, documents
from rhizome.management.queues import usable_queue

PATH: Final = "/api/rhizome/damaged"
OWN_PATH: Final = PATH + "/own"
OF_QUEUE: Final = "/api/rhizome/queues/{vhost}/{name}/damaged"
INDEX_DIGITS_MAX: Final = 18

DAMAGED: Final = record(
    "DamagedMessage",
    {
        "vhost": TEXT,
        "queue": TEXT,
        "index": NUMBER,
        "node": TEXT,
        "segment": NUMBER,
        "offset": NUMBER,
        "content_bytes": NUMBER,
        "reason": TEXT,
        "found_ms": NUMBER,
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
    Endpoint("GET", PATH, MONITORING, list_damaged, declared.rows_of(DAMAGED)),
    Endpoint("GET", OWN_PATH, MONITORING, list_own, declared.list_of(DAMAGED)),
    Endpoint("GET", OF_QUEUE, MANAGEMENT, list_of_queue, declared.list_of(DAMAGED)),
    Endpoint("DELETE", OF_QUEUE + "/{index}", MANAGEMENT, drop_damaged, declared.DONE),
)
