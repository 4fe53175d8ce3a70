"""Live messages: which persistent messages are alive, and where, for checkpoints and compaction.

Compiled: a broker may hold hundreds of thousands of messages in memory, and all of this happens
between two turns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from rhizome.broker.message import Message, is_journaled
from rhizome.journal.paged_index import PagedIndex

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.queue.priority_lane import Lane
    from rhizome.broker.queue.queue import Queue


def resident_index(lane: Lane) -> PagedIndex:
    """Index and position of the persistent messages that a lane has in memory."""
    found = PagedIndex()
    for message in lane.resident():
        add_live(found, message)
    return found


def unacked_messages(broker: Broker, queue: Queue) -> list[Message]:
    """What consumers and pulls of a queue hold."""
    found: list[Message] = []
    if queue.worker is not None:
        found.extend(queue.worker.held())
        return found
    for connection in broker.holders():
        for channel in connection.channels.values():
            channel.collect_unacked(queue, found)
    broker.delayed.collect(queue, found)
    broker.leases.collect(queue, found)
    for internal in broker.internal.values():
        if internal.worker is not None and internal.definition.group == queue.definition.group:
            found.extend([each for owner, each in internal.worker.reserved() if owner is queue])
    return found


def unacked_indexes(broker: Broker) -> dict[Queue, dict[int, PagedIndex]]:
    """The unacked persistent messages of all recorded queues, by priority."""
    found: dict[Queue, dict[int, PagedIndex]] = {}
    for connection in broker.holders():
        for channel in connection.channels.values():
            unacked = channel.unacked
            if unacked.count == 0:
                continue
            for tag in unacked.tags():
                consumer = unacked.consumer(tag)
                message = unacked.message(tag)
                if consumer is not None and message is not None and consumer.queue.recorded:
                    _add_unacked(found, consumer.queue, message)
    for queue, message in [*broker.delayed.holdings(), *broker.leases.holdings()]:
        if queue.recorded:
            _add_unacked(found, queue, message)
    for queue in broker.internal.values():
        if queue.worker is not None:
            for message in queue.worker.held():
                _add_unacked(found, queue, message)
            for owner, message in queue.worker.reserved():
                _add_unacked(found, owner, message)
    return found


def journaled_indexes(
    queue: Queue, unacked: dict[Queue, dict[int, PagedIndex]]
) -> list[tuple[int, PagedIndex]]:
    """Everything of a queue that is in the journal, by priority, in any number of parts.

    ``unacked`` is what `unacked_indexes` returned. Spilled messages are included.
    """
    found: list[tuple[int, PagedIndex]] = []
    for priority, lane in enumerate(queue.lanes):
        found.append((priority, lane.paged))
        found.append((priority, resident_index(lane)))
    levels = unacked.get(queue)
    if levels is not None:
        found.extend(levels.items())
    if len(queue.broker.damage.aside) > 0:
        found.extend(queue.broker.damage.indexes(queue))
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
    if is_journaled(message):
        index.append(message.index, message.position)


def resident_in(queue: Queue, segment: i64, unacked: bool) -> list[Message]:
    """The messages that a queue has in memory and whose records are in ``segment``."""
    found: list[Message] = []
    for lane in queue.lanes:
        for message in lane.resident():
            if message.position >> 32 == segment:
                found.append(message)
    if unacked:
        for message in queue.broker.unacked_messages(queue):
            if message.position >> 32 == segment:
                found.append(message)
    return found
