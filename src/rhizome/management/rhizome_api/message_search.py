"""Message search: the ready messages of a queue, or those of a stream, that meet a condition.

It runs at the queue's home, one step of one request in each round of the event loop. An answer
that has looked at enough says where the next one is to go on.
"""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from rhizome.amqp.frames import body_of
from rhizome.broker.queue.message_browser import BYTES_MAX, COUNT_MAX
from rhizome.management.http.api_call import Call
from rhizome.management.http.auth import MANAGEMENT
from rhizome.management.http.endpoint import GET
from rhizome.management.http.json_responses import Row, encoded
from rhizome.management.openapi import rabbitmq_schemas
from rhizome.management.openapi.endpoint_shapes import TEXT, Parameter, between, row_of
from rhizome.management.peers.cluster_wide_queries import at_home, wherever
from rhizome.management.rabbitmq_api.queue_messages import (
    BROWSE_COUNT_DEFAULT,
    browsed_queue,
    check_browse,
    properties_row,
    shown_messages,
)
from rhizome.management.search.queue_search import Found, QueueSearch, read_condition

ANSWER: Final = row_of(
    rabbitmq_schemas.SEARCHED,
    Parameter("where", TEXT, "The condition that messages must meet"),
    Parameter("after", TEXT, "The `next` of an answer, to go on behind it"),
    Parameter("count", between(1, COUNT_MAX), "Messages to show"),
    Parameter("truncate", between(0, 1 << 31), "Bytes of each payload"),
)


async def search_queue(call: Call) -> Response:
    """Look for messages; nothing about the queue changes."""
    queue = browsed_queue(call)
    if queue is None:
        return await wherever(call)
    check_browse(call, queue)
    query = call.request.query_params
    condition = read_condition(query.get("where", ""))
    count = call.number("count", BROWSE_COUNT_DEFAULT, 1, COUNT_MAX)
    bytes_max = call.number("truncate", -1, 0, 1 << 31)
    elsewhere = await at_home(call, queue)
    if elsewhere is not None:
        return elsewhere
    search = QueueSearch(call.context, queue, condition, query.get("after", ""))
    found: list[Found] = []
    size = 0
    async for each in search.run():
        found.append(each)
        size += len(each.message.content)
        if len(found) >= count or size >= BYTES_MAX:
            break
    end = encoded({"scanned": search.scanned, "next": search.place or None})
    around = (b'{"messages":', b"," + end[1:])
    return await shown_messages(call, map(_row, found), "auto", bytes_max, around)


def _row(found: Found) -> tuple[Row, bytes]:
    content = found.message.content
    body = body_of(content)
    return {
        "id": found.id(),
        "exchange": found.exchange,
        "routing_key": found.routing_key,
        "properties": properties_row(content),
        "redelivered": found.delivery_count > 0,
        "delivery_count": found.delivery_count,
        "arrived_ms": found.arrived_ms,
        "size": len(body),
    }, body


ENDPOINTS: Final = (
    GET("/api/rhizome/queues/{vhost}/{name}/search", MANAGEMENT, search_queue, ANSWER),
)
