"""Totals of a queue's messages, ready and unacked, on disk and in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from rhizome.broker.message import SPILL_POSITION_FIRST, body_bytes, is_journaled
from rhizome.journal.errors import CorruptRecord

if TYPE_CHECKING:
    from rhizome.broker.queue.queue import Queue


def ready_indexes(queue: Queue) -> list[int]:
    """The ready messages of a queue that its log knows of, and those that are set aside."""
    found: list[int] = []
    replicated = queue.log.replicated
    for lane in queue.lanes:
        for message in lane.resident():
            if replicated or message.position != 0:
                found.append(message.index)
        for index, position in lane.paged.positions():
            if replicated or position < SPILL_POSITION_FIRST:
                found.append(index)
    for damaged in queue.broker.damage.of(queue):
        if replicated or damaged.position < SPILL_POSITION_FIRST:
            found.append(damaged.index)
    return found


def ready_body_bytes(queue: Queue) -> i64:
    """The bytes of the bodies of ready messages, on disk and in memory, if those bound the
    queue."""
    total: i64 = 0
    if queue.options.bytes_max >= 0:
        for lane in queue.lanes:
            for message in lane.resident():
                total += body_bytes(message.content)
            for _, position in lane.paged.positions():
                try:
                    total += body_bytes(queue.broker.pager.read_one(position).content)
                except (CorruptRecord, OSError):
                    # It is set aside when it becomes the first.
                    continue
    return total


def unacked_durable_bytes(queue: Queue) -> i64:
    total: i64 = 0
    if queue.unacked > 0:
        for message in queue.broker.unacked_messages(queue):
            if is_journaled(message):
                total += len(message.content)
    return total
