"""Which persistent messages are alive, and where: what checkpoints and compaction ask the queues.

Compiled: a broker may hold hundreds of thousands of messages in memory, and all of this happens
between two turns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from rhizome.broker.message import SPILL_POSITION_FIRST, Message
from rhizome.journal.index import PagedIndex

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.lane import Lane
    from rhizome.broker.queue import Queue


def resident_index(lane: Lane) -> PagedIndex:
    """Index and position of the persistent messages that a lane has in memory."""
    found = PagedIndex()
    for message in lane.resident():
        add_live(found, message)
    return found


def unacked_indexes(broker: Broker) -> dict[Queue, dict[int, PagedIndex]]:
    """The unacked persistent messages of all durable queues, by priority."""
    found: dict[Queue, dict[int, PagedIndex]] = {}
    for connection in broker.holders():
        for channel in connection.channels.values():
            unacked = channel.unacked
            if unacked.count == 0:
                continue
            for tag in unacked.tags():
                consumer = unacked.consumer(tag)
                message = unacked.message(tag)
                if consumer is not None and message is not None and consumer.queue.durable:
                    _add_unacked(found, consumer.queue, message)
    for queue, message in broker.delayed.holdings():
        if queue.durable:
            _add_unacked(found, queue, message)
    return found


def _add_unacked(found: dict[Queue, dict[int, PagedIndex]], queue: Queue, message: Message) -> None:
    levels = found.get(queue)
    if levels is None:
        levels = {}
        found[queue] = levels
    index = levels.get(message.priority)
    if index is None:
        index = PagedIndex()
        levels[message.priority] = index
    add_live(index, message)


def add_live(index: PagedIndex, message: Message) -> None:
    """Note a message if its record is in the journal."""
    position = message.position
    if message.persistent and 0 < position < SPILL_POSITION_FIRST:
        index.append(message.index, position)


def resident_in(queue: Queue, segment: i64, unacked: bool) -> list[Message]:
    """The messages that a queue has in memory and whose records are in ``segment``."""
    found: list[Message] = []
    for lane in queue.lanes:
        for message in lane.resident():
            if message.position >> 32 == segment:
                found.append(message)
    if unacked:
        for message in queue.unacked_messages():
            if message.position >> 32 == segment:
                found.append(message)
    return found
