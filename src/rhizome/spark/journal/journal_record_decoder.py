"""Records of the journal, many at once: their fields, and the rows that they make.

A row is an event: something that happened to a message in a queue. A record that names several
queues, or settles several messages, makes several rows with the same segment and offset. Records
that concern no message make one row each; marks of the journal itself (SYNCED, END) make none.

Messages carry their time. Other records have that of the mark (SYNCED) at the end of the batch that
they were written in; where there is none, that of the message before them, or else after them.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

import numpy as np

from rhizome.journal.record_walk import walk
from rhizome.journal.records import (
    KIND_DEQUEUE,
    KIND_DROP_QUEUE,
    KIND_END,
    KIND_ENQUEUE,
    KIND_LEASES,
    KIND_MOVED,
    KIND_PURGE,
    KIND_REQUEUE,
    KIND_SHOWN,
    KIND_SYNCED,
    KIND_TX,
    KIND_WATERMARK,
    RECORD_HEADER_BYTES,
)
from rhizome.spark.columns.vectorized_bytes import Numbers, Window

NO_TIME: Final = -1
_HEAD: Final = Struct(">IIB")
# What every record begins with, and after that the payload of a message.
HEAD_FORM: Final = np.dtype(
    [
        ("length", ">u4"),
        ("checksum", ">u4"),
        ("kind", "u1"),
        ("flags", "u1"),
        ("group", ">u2"),
        ("epoch", ">u4"),
        ("index", ">i8"),
    ]
)
MESSAGE_FORM: Final = np.dtype(
    [
        ("arrived", ">i8"),
        ("expiration", ">i8"),
        ("priority", "u1"),
        ("none", "u1"),
        ("queues", ">u2"),
    ]
)
_KIND_AT: Final = HEAD_FORM.fields["kind"][1]
PAYLOAD_AT: Final = RECORD_HEADER_BYTES
QUEUES_AT: Final = PAYLOAD_AT + MESSAGE_FORM.itemsize
# Kinds whose payload begins with a queue id, and where it names a message, if it does.
_OF_ONE_QUEUE: Final = {
    KIND_REQUEUE: 4,
    KIND_PURGE: 4,
    KIND_SHOWN: 5,
    KIND_DROP_QUEUE: 0,
    KIND_WATERMARK: 0,
    KIND_LEASES: 0,
}


def up_to_a_mark(data: bytes, offsets: Numbers, stop: int) -> tuple[Numbers, int]:
    """The records up to the last mark of a time, and where the next one begins: those behind it
    wait for theirs. All of them if there is no mark.
    """
    kinds = np.frombuffer(data, np.uint8)[offsets + _KIND_AT]
    marks = np.flatnonzero(kinds == KIND_SYNCED)
    if len(marks) == 0 or marks[-1] == len(offsets) - 1:
        return offsets, stop
    end = int(marks[-1]) + 1
    return offsets[:end], int(offsets[end])


def record_offsets(data: bytes, start: int) -> tuple[Numbers, int]:
    """Offsets of the valid records from `start` on, and where the first other thing is."""
    packed, stop = walk(data, start)
    return np.frombuffer(packed, ">i8").astype(np.int64), int(stop)


def with_inner(window: Window, offsets: Numbers) -> Numbers:
    """The offsets, with those of the records inside transactions after each."""
    transactions = offsets[window.octets[offsets + _KIND_AT] == KIND_TX]
    if len(transactions) == 0:
        return offsets
    found: list[int] = []
    for offset in transactions.tolist():
        length = _HEAD.unpack_from(window.data, offset)[0]
        at, end = offset + RECORD_HEADER_BYTES, offset + RECORD_HEADER_BYTES + length
        while at < end:
            found.append(at)
            at += RECORD_HEADER_BYTES + _HEAD.unpack_from(window.data, at)[0]
    # They lie between their transaction and the next record.
    return np.sort(np.concatenate((offsets, np.array(found, np.int64))))


@dataclass
class RowIndex:
    """For each row its record, and the queue and message that it is about (-1: none)."""

    record: Numbers
    queue: Numbers
    message: Numbers

    def part(self, first: int, end: int) -> RowIndex:
        return RowIndex(self.record[first:end], self.queue[first:end], self.message[first:end])

    def chosen(self, keep: Numbers) -> RowIndex:
        return RowIndex(self.record[keep], self.queue[keep], self.message[keep])


class Records:
    """Records in a window, and the rows that they make."""

    def __init__(self, window: Window, offsets: Numbers) -> None:
        self.window = window
        self.offsets = offsets
        self.heads = window.fields(offsets, HEAD_FORM)
        self.kinds = self.heads["kind"].astype(np.int64)
        self.is_message = (self.kinds == KIND_ENQUEUE) | (self.kinds == KIND_MOVED)
        self.messages = np.flatnonzero(self.is_message)
        self.payloads = window.fields(offsets[self.messages] + PAYLOAD_AT, MESSAGE_FORM)

    def times(self, clock_ms: int) -> tuple[Numbers, int]:
        """The time of each record, and the clock after them."""
        marks = np.flatnonzero(self.kinds == KIND_SYNCED)
        heads = self.heads[marks]
        marked = heads["epoch"].astype(np.int64) << 16 | heads["group"]
        marks, marked = marks[marked > 0], marked[marked > 0]
        arrived_all = self.payloads["arrived"].astype(np.int64)
        is_arrival = self.kinds[self.messages] == KIND_ENQUEUE
        arrivals, arrived = self.messages[is_arrival], arrived_all[is_arrival]
        found = self._since(arrivals, arrived, clock_ms)
        if len(marks):
            following = np.searchsorted(marks, np.arange(len(self.offsets)))
            known = following < len(marks)
            found[known] = marked[following[known]]
            found[~known] = np.maximum(found[~known], marked[-1])
        found[self.messages] = arrived_all
        clocks = [clock_ms, *arrived[-1:].tolist(), *marked[-1:].tolist()]
        return found, max(clocks)

    def _since(self, arrivals: Numbers, arrived: Numbers, clock_ms: int) -> Numbers:
        """The time of the message before each record; of the first one if there is none."""
        count = len(self.offsets)
        found = np.full(count, clock_ms, np.int64)
        if len(arrivals) == 0:
            return found
        latest = np.zeros(count, np.int64)
        latest[arrivals] = np.arange(1, len(arrivals) + 1)
        np.maximum.accumulate(latest, out=latest)
        before = latest > 0
        found[before] = arrived[latest[before] - 1]
        if clock_ms == NO_TIME:
            found[~before] = arrived[0]
        return found

    def rows(self) -> RowIndex:
        counts = np.ones(len(self.offsets), np.int64)
        counts[(self.kinds == KIND_SYNCED) | (self.kinds == KIND_END)] = 0
        queue_counts = self.payloads["queues"].astype(np.int64)
        counts[self.messages] = queue_counts
        dequeues = np.flatnonzero(self.kinds == KIND_DEQUEUE)
        settled = _Settled(self.window, self.offsets[dequeues])
        counts[dequeues] = settled.totals()
        record = np.repeat(np.arange(len(self.offsets)), counts)
        firsts = np.cumsum(counts) - counts
        queue = np.full(len(record), -1, np.int64)
        message = np.full(len(record), -1, np.int64)
        self._fill_messages(queue_counts, firsts, queue, message)
        self._fill_others(firsts, queue, message)
        places = _runs(firsts[dequeues], counts[dequeues])
        message[places] = settled.indexes()
        queue[places] = np.repeat(
            self.window.u32(self.offsets[dequeues] + PAYLOAD_AT), counts[dequeues]
        )
        return RowIndex(record, queue, message)

    def _fill_messages(
        self, counts: Numbers, firsts: Numbers, queue: Numbers, message: Numbers
    ) -> None:
        places = _runs(firsts[self.messages], counts)
        at = self.offsets[self.messages] + QUEUES_AT
        queue[places] = self.window.u32(_runs(at, counts, 4))
        message[places] = np.repeat(self.heads["index"][self.messages], counts)

    def _fill_others(self, firsts: Numbers, queue: Numbers, message: Numbers) -> None:
        for kind, message_at in _OF_ONE_QUEUE.items():
            records = np.flatnonzero(self.kinds == kind)
            if len(records) == 0:
                continue
            payloads = self.offsets[records] + PAYLOAD_AT
            queue[firsts[records]] = self.window.u32(payloads)
            if message_at:
                message[firsts[records]] = self.window.i64(payloads + message_at)


class _Settled:
    """The ranges of messages in DEQUEUE records."""

    def __init__(self, window: Window, offsets: Numbers) -> None:
        self.ranges = window.u32(offsets + PAYLOAD_AT + 4)
        at = _runs(offsets + PAYLOAD_AT + 8, self.ranges, 12)
        self.firsts = window.i64(at)
        self.counts = window.u32(at + 8)

    def totals(self) -> Numbers:
        """How many messages each record settles."""
        ends = np.concatenate(([0], np.cumsum(self.counts)))
        bounds = np.concatenate(([0], np.cumsum(self.ranges)))
        return ends[bounds[1:]] - ends[bounds[:-1]]

    def indexes(self) -> Numbers:
        return _runs(self.firsts, self.counts)


def _runs(starts: Numbers, counts: Numbers, step: int = 1) -> Numbers:
    """start, start + step, ... for each start, `count` of them, one run after the other."""
    if len(counts) and (counts == 1).all():
        return starts
    total = int(counts.sum())
    within = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(starts, counts) + within * step
