"""QueueSearch: goes through a queue or stream at its home, a little at a time, by a condition.

A search that has looked at enough ends with a place, as text, from which another one goes on.
Nothing about the queue changes, and messages on disk are read into copies that are dropped.
"""

from __future__ import annotations

import re
from asyncio import get_running_loop
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from rhizome.broker.message import Message, body_bytes
from rhizome.broker.queue.message_cursor import (
    STEP_BYTES_MAX,
    STEP_MESSAGES_MAX,
    MessageCursor,
    first_place,
)
from rhizome.broker.queue.queue import Queue
from rhizome.broker.streams.stream import stream_of
from rhizome.broker.streams.stream_browser import peek
from rhizome.journal.streams.stream_format import StreamEntry
from rhizome.management.api_context import Context
from rhizome.management.errors import BadRequest
from rhizome.management.http.cooperative_yield import Pace
from rhizome.management.rabbitmq_api.queues import check_told
from rhizome.management.search.condition_parser import ConditionError, parse_condition
from rhizome.management.search.message_condition import Condition, SearchedMessage, Value

SCANNED_MAX: Final = 100_000
"""One request looks at so many messages at most, and for so long; the next one goes on."""
SCAN_SECONDS_MAX: Final = 5.0

_PLACE: Final = re.compile(r"([0-9]{1,3})-([0-9]{1,18})-([0-9]{1,18})")
_ID: Final = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")


@dataclass(frozen=True, slots=True)
class Found:
    """A message that meets the condition. ``index`` and ``arrived_ms`` are its identity in its
    queue: a home that never committed an index may have given it to another message."""

    index: int
    arrived_ms: int
    exchange: str
    routing_key: str
    delivery_count: int
    message: SearchedMessage

    def id(self) -> str:
        return f"{self.index}-{self.arrived_ms}"


def read_condition(text: str) -> Condition:
    try:
        return parse_condition(text)
    except ConditionError as error:
        raise BadRequest(f"where: {error}") from None


def read_id(text: str) -> tuple[int, int]:
    """Index and time of arrival of the message that an id names."""
    found = _ID.fullmatch(text)
    if found is None:
        raise BadRequest(f"id {text[:40]!r} is none that a search or browsing has shown")
    return int(found[1]), int(found[2])


class QueueSearch:
    """One search. ``scanned`` counts the messages looked at; ``place`` is where the next search is
    to go on, empty if there is nothing left."""

    def __init__(self, context: Context, queue: Queue, condition: Condition, after: str) -> None:
        self.scanned = 0
        self.place = ""
        self._context = context
        self._queue = queue
        self._condition = condition
        self._cursor = _cursor(queue, after)

    async def run(self) -> AsyncIterator[Found]:
        """The messages that meet the condition. Between two of them the queue may change."""
        pace = Pace()
        end = get_running_loop().time() + SCAN_SECONDS_MAX
        while True:
            check_told(self._queue)
            for found in self._step():
                self.scanned += 1
                self.place = self._place_behind(found)
                if self._condition.holds(found.message):
                    yield found
                if pace.is_due():
                    await pace.rest()
            cursor = self._cursor
            if cursor.is_ended() or self._queue.deleted:
                self.place = ""
                return
            self.place = f"{cursor.lane}-{cursor.index}-{cursor.until}"
            if self.scanned >= SCANNED_MAX or get_running_loop().time() > end:
                return

    def _step(self) -> list[Found]:
        stream = stream_of(self._queue)
        if stream is None:
            messages = self._cursor.step(self._queue, self._context.broker.pager)
            return [_found(self._queue, each) for each in messages]
        cursor, log = self._cursor, stream.log
        begin = max(cursor.index, int(log.first))
        count = min(STEP_MESSAGES_MAX, cursor.until + 1 - begin)
        entries = peek(log, begin, count, STEP_BYTES_MAX) if count > 0 else []
        if entries:
            cursor.index = int(entries[-1].offset) + 1
        else:
            cursor.lane = -1
        return [self._stream_found(each) for each in entries]

    def _stream_found(self, entry: StreamEntry) -> Found:
        route = self._context.broker.pager.route(entry.tail)
        index, arrived = int(entry.offset), int(entry.time_ms)
        seen = _searched(entry.content, route.exchange, route.key, arrived, 0)
        return Found(index, arrived, route.exchange, route.key, 0, seen)

    def _place_behind(self, found: Found) -> str:
        cursor = self._cursor
        return f"{cursor.seen_lane}-{found.index + 1}-{cursor.until}"


def _cursor(queue: Queue, after: str) -> MessageCursor:
    if after:
        found = _PLACE.fullmatch(after)
        if found is None:
            raise BadRequest(f"after is {after[:40]!r}; it must be the 'next' of an answer")
        lane = min(int(found[1]), max(len(queue.lanes) - 1, 0))
        return MessageCursor(lane, int(found[2]), int(found[3]))
    stream = stream_of(queue)
    if stream is not None:
        return MessageCursor(0, 0, int(stream.log.committed) - 1)
    return first_place(queue)


def _found(queue: Queue, message: Message) -> Found:
    route, arrived = message.route, int(message.arrived_ms)
    count = int(queue.counts.get(message.index, 0))
    seen = _searched(message.content, route.exchange, route.key, arrived, count)
    return Found(int(message.index), arrived, route.exchange, route.key, count, seen)


def _searched(
    content: bytes, exchange: str, key: str, arrived_ms: int, count: int
) -> SearchedMessage:
    facts: dict[str, Value] = {
        "exchange": exchange,
        "routing_key": key,
        "arrived": arrived_ms / 1000,
        "delivery_count": count,
        "redelivered": count > 0,
        "size": int(body_bytes(content)),
    }
    return SearchedMessage(content, facts)
