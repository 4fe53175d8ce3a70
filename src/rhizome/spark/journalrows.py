"""Records of the journal as rows of a table. No Python object per row.

A row is an event: something that happened to a message in a queue. A record that names several
queues, or settles several messages, makes several rows with the same segment and offset. Records
that concern no message make one row each; marks of the journal itself (SYNCED, END) make none.

Messages carry their time. Other records have that of the mark (SYNCED) at the end of the batch that
they were written in; where there is none, that of the message before them, or else after them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from struct import Struct
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rhizome.errors import SyntaxErrorFault
from rhizome.journal.records import (
    FLAG_DURABLE,
    FLAG_IDENTITY,
    FLAG_ORIGIN,
    KIND_DEQUEUE,
    KIND_DROP_QUEUE,
    KIND_END,
    KIND_ENQUEUE,
    KIND_EPOCH,
    KIND_INSTALL,
    KIND_LEASES,
    KIND_MOVED,
    KIND_NUMBER,
    KIND_PURGE,
    KIND_REQUEUE,
    KIND_SHOWN,
    KIND_STATE,
    KIND_SYNCED,
    KIND_TX,
    KIND_WATERMARK,
    ORIGIN_BYTES,
    RECORD_HEADER_BYTES,
    crc32c,
)
from rhizome.journal.walk import walk
from rhizome.spark.contents import COLUMNS, Contents
from rhizome.spark.streamrows import route_columns
from rhizome.spark.window import (
    MalformedError,
    Numbers,
    Window,
    constant,
    interned,
    known,
    scattered,
    texts,
)

EVENTS: Final = {
    KIND_ENQUEUE: "enqueued",
    KIND_MOVED: "moved",
    KIND_DEQUEUE: "dequeued",
    KIND_REQUEUE: "requeued",
    KIND_PURGE: "purged",
    KIND_DROP_QUEUE: "queue-dropped",
    KIND_TX: "transaction",
    KIND_STATE: "state",
    KIND_EPOCH: "epoch",
    KIND_WATERMARK: "watermark",
    KIND_NUMBER: "number",
    KIND_INSTALL: "installing",
    KIND_SHOWN: "delivered",
    KIND_LEASES: "leased",
}
DAMAGED: Final = "damaged"
CHECKPOINTED: Final = "checkpointed"
"""A message that is live in the newest checkpoint, with the place of its record."""
CHECKPOINT: Final = "checkpoint"
"""How far the newest checkpoint has a group; its own place is where the journal goes on."""
LEVEL_PERSISTENT: Final = "persistent"
LEVEL_RELIABLE: Final = "reliable persistent"
_LEVELS: Final = {0: LEVEL_PERSISTENT, 1: LEVEL_RELIABLE}

ROWS_PER_BATCH_MAX: Final = 8192
LOCAL_GROUP: Final = 0

_HEAD: Final = Struct(">IIB")
_NO_TIME: Final = -1
_NONE: Final = np.empty(0, np.int64)
_NO_EXPIRATION: Final = -1
# Offsets in a record.
_KIND_AT: Final = 8
_FLAGS_AT: Final = 9
_GROUP_AT: Final = 10
_EPOCH_AT: Final = 12
_INDEX_AT: Final = 16
_PAYLOAD_AT: Final = RECORD_HEADER_BYTES
_ARRIVED_AT: Final = _PAYLOAD_AT
_EXPIRATION_AT: Final = _PAYLOAD_AT + 8
_QUEUE_COUNT_AT: Final = _PAYLOAD_AT + 18
_QUEUES_AT: Final = _PAYLOAD_AT + 20
# Kinds whose payload begins with a queue id, and where it names a message, if it does.
_OF_ONE_QUEUE: Final = {
    KIND_REQUEUE: 4,
    KIND_PURGE: 4,
    KIND_SHOWN: 5,
    KIND_DROP_QUEUE: 0,
    KIND_WATERMARK: 0,
    KIND_LEASES: 0,
}


@dataclass(frozen=True)
class Names:
    """Vhost and name of the queues, by the number that records use."""

    queues: dict[int, str] = field(default_factory=dict)
    vhosts: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Wanted:
    """Which events and queues, and which columns of them. No events, no queues: all of them."""

    schema: Any  # pyarrow.Schema
    events: frozenset[str] = frozenset()
    queue_ids: frozenset[int] | None = None

    def columns(self) -> set[str]:
        return set(self.schema.names)

    def message_columns(self) -> list[str]:
        if "message" not in self.schema.names:
            return []
        return [each.name for each in self.schema.field("message").type]


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


class Rows:
    """Turns the records of one segment after the other into batches.

    ``clock_ms`` is the time of the latest message so far.
    """

    def __init__(self, store: str, names: Names, wanted: Wanted) -> None:
        self.store = store
        self.names = names
        self.wanted = wanted
        self.clock_ms = _NO_TIME

    def batches(self, data: bytes, offsets: Numbers, segment: int, base: int) -> Iterator[Any]:
        """The rows of the records at `offsets` in `data`, which is at `base` in its segment."""
        window = Window(data)
        records = _Records(window, _with_inner(window, offsets))
        times, self.clock_ms = records.times(self.clock_ms)
        rows = records.rows().only(self.wanted, records)
        for first in range(0, len(rows.record), ROWS_PER_BATCH_MAX):
            part = rows.part(first, first + ROWS_PER_BATCH_MAX)
            try:
                yield _Batch(self, records, part, times, segment, base).build()
            except (MalformedError, IndexError, SyntaxErrorFault) as error:
                raise MalformedError(
                    f"a message in segment {segment} of {self.store}, in the records from "
                    f"{base + int(offsets[0])} on, has a valid checksum and is none: {error}"
                ) from error

    def damage(self, segment: int, offset: int, reason: str) -> Any:
        """A batch of one row that says where the journal is damaged."""
        place: dict[str, Any] = {"segment": [segment], "offset": [offset], "detail": [reason]}
        return self.made(DAMAGED, 1, place)

    def made(self, event: str, count: int, values: dict[str, Any]) -> Any:
        """A batch of rows that no record made; columns that aren't given are null."""
        given = {"store": [self.store] * count, "event": [event] * count, **values}
        schema = self.wanted.schema
        columns = [
            pa.array(given[each.name], each.type)
            if each.name in given
            else pa.nulls(count, each.type)
            for each in schema
        ]
        return pa.record_batch(columns, schema=schema)


def _with_inner(window: Window, offsets: Numbers) -> Numbers:
    """The offsets, with those of the records inside transactions after each."""
    kinds = window.octets[offsets + 8]
    if not (kinds == KIND_TX).any():
        return offsets
    found: list[int] = []
    for offset, kind in zip(offsets.tolist(), kinds.tolist(), strict=True):
        found.append(offset)
        if kind == KIND_TX:
            length = _HEAD.unpack_from(window.data, offset)[0]
            at, end = offset + RECORD_HEADER_BYTES, offset + RECORD_HEADER_BYTES + length
            while at < end:
                found.append(at)
                at += RECORD_HEADER_BYTES + _HEAD.unpack_from(window.data, at)[0]
    return np.array(found, np.int64)


@dataclass
class _RowIndex:
    """For each row its record, and the queue and message that it is about (-1: none)."""

    record: Numbers
    queue: Numbers
    message: Numbers

    def part(self, first: int, end: int) -> _RowIndex:
        return _RowIndex(self.record[first:end], self.queue[first:end], self.message[first:end])

    def chosen(self, keep: Numbers) -> _RowIndex:
        return _RowIndex(self.record[keep], self.queue[keep], self.message[keep])

    def only(self, wanted: Wanted, records: _Records) -> _RowIndex:
        found = self
        if wanted.events:
            kinds = [kind for kind, event in EVENTS.items() if event in wanted.events]
            found = found.chosen(np.isin(records.kinds[found.record], kinds))
        if wanted.queue_ids is not None:
            found = found.chosen(np.isin(found.queue, list(wanted.queue_ids)))
        return found


class _Records:
    """Records in a window, and the rows that they make."""

    def __init__(self, window: Window, offsets: Numbers) -> None:
        self.window = window
        self.offsets = offsets
        self.kinds = window.octets[offsets + 8].astype(np.int64)
        self.is_message = (self.kinds == KIND_ENQUEUE) | (self.kinds == KIND_MOVED)

    def times(self, clock_ms: int) -> tuple[Numbers, int]:
        """The time of each record, and the clock after them."""
        marks = np.flatnonzero(self.kinds == KIND_SYNCED)
        words = self.window.u32(self.offsets[marks] + _EPOCH_AT) << 16
        marked = words | self.window.u16(self.offsets[marks] + _GROUP_AT)
        marks, marked = marks[marked > 0], marked[marked > 0]
        arrivals = np.flatnonzero(self.kinds == KIND_ENQUEUE)
        arrived = self.window.i64(self.offsets[arrivals] + _ARRIVED_AT)
        found = self._since(arrivals, arrived, clock_ms)
        if len(marks):
            following = np.searchsorted(marks, np.arange(len(self.offsets)))
            known = following < len(marks)
            found[known] = marked[following[known]]
            found[~known] = np.maximum(found[~known], marked[-1])
        found[arrivals] = arrived
        moved = np.flatnonzero(self.kinds == KIND_MOVED)
        found[moved] = self.window.i64(self.offsets[moved] + _ARRIVED_AT)
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
        if clock_ms == _NO_TIME:
            found[~before] = arrived[0]
        return found

    def rows(self) -> _RowIndex:
        counts = np.ones(len(self.offsets), np.int64)
        counts[(self.kinds == KIND_SYNCED) | (self.kinds == KIND_END)] = 0
        messages = np.flatnonzero(self.is_message)
        queue_counts = self.window.u16(self.offsets[messages] + _QUEUE_COUNT_AT)
        counts[messages] = queue_counts
        dequeues = np.flatnonzero(self.kinds == KIND_DEQUEUE)
        settled = _Settled(self.window, self.offsets[dequeues])
        counts[dequeues] = settled.totals()
        record = np.repeat(np.arange(len(self.offsets)), counts)
        firsts = np.cumsum(counts) - counts
        queue = np.full(len(record), -1, np.int64)
        message = np.full(len(record), -1, np.int64)
        self._fill_messages(messages, queue_counts, firsts, queue, message)
        self._fill_others(firsts, queue, message)
        places = _runs(firsts[dequeues], counts[dequeues])
        message[places] = settled.indexes()
        queue[places] = np.repeat(
            self.window.u32(self.offsets[dequeues] + _PAYLOAD_AT), counts[dequeues]
        )
        return _RowIndex(record, queue, message)

    def _fill_messages(
        self, messages: Numbers, counts: Numbers, firsts: Numbers, queue: Numbers, message: Numbers
    ) -> None:
        places = _runs(firsts[messages], counts)
        at = self.offsets[messages] + _QUEUES_AT
        queue[places] = self.window.u32(_runs(at, counts, 4))
        message[places] = np.repeat(self.window.i64(self.offsets[messages] + _INDEX_AT), counts)

    def _fill_others(self, firsts: Numbers, queue: Numbers, message: Numbers) -> None:
        for kind, message_at in _OF_ONE_QUEUE.items():
            records = np.flatnonzero(self.kinds == kind)
            if len(records) == 0:
                continue
            payloads = self.offsets[records] + _PAYLOAD_AT
            queue[firsts[records]] = self.window.u32(payloads)
            if message_at:
                message[firsts[records]] = self.window.i64(payloads + message_at)


class _Settled:
    """The ranges of messages in DEQUEUE records."""

    def __init__(self, window: Window, offsets: Numbers) -> None:
        self.ranges = window.u32(offsets + _PAYLOAD_AT + 4)
        at = _runs(offsets + _PAYLOAD_AT + 8, self.ranges, 12)
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


class _Batch:
    """One batch of rows."""

    def __init__(
        self,
        rows: Rows,
        records: _Records,
        index: _RowIndex,
        times: Numbers,
        segment: int,
        base: int,
    ) -> None:
        self.rows = rows
        self.window = records.window
        self.index = index
        self.segment = segment
        self.base = base
        self.count = len(index.record)
        # Only the records of this batch, and each once: a row knows its place among them.
        new = np.concatenate(([True], index.record[1:] != index.record[:-1]))
        self.distinct = index.record[new]
        self.place = np.cumsum(new) - 1
        self.offsets = records.offsets[self.distinct]
        self.kinds = records.kinds[self.distinct]
        self.messages = np.flatnonzero(records.is_message[self.distinct])
        self.times = times[self.distinct]

    def build(self) -> Any:
        schema = self.rows.wanted.schema
        columns = [self._column(each) for each in schema]
        return pa.record_batch(columns, schema=schema)

    def _column(self, asked: Any) -> Any:
        return _MAKERS[asked.name](self).cast(asked.type)

    def of_records(self, values: Any) -> Any:
        """A column of one value per record, for the rows."""
        if self.count == len(self.distinct):
            return values
        return values.take(pa.array(self.place))

    def numbers(self, values: Numbers, missing: int | None = None) -> Any:
        column = pa.array(values) if missing is None else known(values, values == missing)
        return self.of_records(column)

    # --- columns

    def store(self) -> Any:
        return constant(self.rows.store, self.count, pa.string())

    def segments(self) -> Any:
        return constant(self.segment, self.count, pa.int64())

    def places(self) -> Any:
        return self.numbers(self.offsets + self.base)

    def time(self) -> Any:
        return self._instants(self.times, _NO_TIME)

    def group(self) -> Any:
        return self.numbers(self.window.u16(self.offsets + _GROUP_AT))

    def epoch(self) -> Any:
        return self.numbers(self.window.u32(self.offsets + _EPOCH_AT))

    def record(self) -> Any:
        return self.numbers(self.window.i64(self.offsets + _INDEX_AT))

    def event(self) -> Any:
        return self.of_records(interned(self.kinds, EVENTS))

    def vhost(self) -> Any:
        return interned(self.index.queue, self.rows.names.vhosts)

    def queue(self) -> Any:
        return interned(self.index.queue, self.rows.names.queues)

    def queue_id(self) -> Any:
        return known(self.index.queue, self.index.queue < 0)

    def message_index(self) -> Any:
        return known(self.index.message, self.index.message < 0)

    def level(self) -> Any:
        words = self.window.u32(self.offsets + 8)
        reliable = (words >> 16 & FLAG_DURABLE != 0) & (words & 0xFFFF != LOCAL_GROUP)
        return self.of_records(interned(reliable.astype(np.int64), _LEVELS))

    def delivery_count(self) -> Any:
        return self._of(KIND_REQUEUE, lambda at: pa.array(self.window.u32(at + 12)), pa.int64())

    def expires(self) -> Any:
        found = np.full(len(self.distinct), _NO_EXPIRATION, np.int64)
        found[self.messages] = self.window.i64(self.offsets[self.messages] + _EXPIRATION_AT)
        return self._instants(found, _NO_EXPIRATION)

    def origin(self) -> Any:
        rows, at = self._origins()
        numbers = self.window.i64(at)
        names = {number: f"{number:012x}" for number in np.unique(numbers).tolist()}
        return self.of_records(scattered(interned(numbers, names), rows, len(self.distinct)))

    def number(self) -> Any:
        """The number that an origin gave to a message."""
        rows, at = self._origins()
        values = pa.array(self.window.i64(at + 8))
        return self.of_records(scattered(values, rows, len(self.distinct)))

    def producer(self) -> Any:
        rows, at = self._identities()
        names = self.window.slices(at + 2, at + 2 + self.window.u16(at))
        # Who has no name was told apart by the message id only.
        values = texts(pc.if_else(pc.equal(pc.binary_length(names), 0), None, names))
        return self.of_records(scattered(values, rows, len(self.distinct)))

    def sequence(self) -> Any:
        rows, at = self._identities()
        lengths = self.window.u16(at)
        values = pa.array(self.window.i64(at + 2 + lengths), mask=lengths == 0)
        return self.of_records(scattered(values, rows, len(self.distinct)))

    def detail(self) -> Any:
        def read(at: Numbers) -> Any:
            installing = self.window.u8(at) != 0
            return pc.if_else(pa.array(installing), "copy is being made", "copy is whole")

        return self._of(KIND_INSTALL, read, pa.string())

    def checksum(self) -> Any:
        return self.numbers(self.window.u32(self.offsets + 4))

    def digest(self) -> Any:
        """A checksum over route and content of messages, the same wherever their records are."""
        tails, _, ends = self._contents
        view = memoryview(self.window.data)
        sums = [crc32c(view[s:e]) for s, e in zip(tails.tolist(), ends.tolist(), strict=True)]
        values = pa.array(sums, pa.int64())
        return self.of_records(scattered(values, self.messages, len(self.distinct)))

    def message(self) -> Any:
        """The contents of messages; null in rows of other events."""
        wanted = self.rows.wanted.message_columns()
        tails, starts, ends = self._contents
        found: dict[str, Any] = {}
        if "exchange" in wanted or "key" in wanted:
            found.update(route_columns(self.window, tails + 2))
        if any(name in COLUMNS for name in wanted):
            found.update(Contents(self.window, starts, ends).columns(set(wanted)))
        kind = self.rows.wanted.schema.field("message").type
        fields = [found[each.name].cast(each.type) for each in kind]
        values = pa.StructArray.from_arrays(fields, fields=list(kind))
        return self.of_records(scattered(values, self.messages, len(self.distinct)))

    # --- helpers

    def _instants(self, times_ms: Numbers, missing: int) -> Any:
        column = known(times_ms * 1000, times_ms == missing)
        return self.of_records(column.cast(pa.timestamp("us", "UTC")))

    def _of(self, kind: int, read: Any, arrow: Any) -> Any:
        """What `read` makes of the payloads of one kind of record; null in the other rows."""
        rows = np.flatnonzero(self.kinds == kind)
        if len(rows) == 0:
            return pa.nulls(self.count, arrow)
        values = read(self.offsets[rows] + _PAYLOAD_AT)
        return self.of_records(scattered(values, rows, len(self.distinct)))

    @cached_property
    def _contents(self) -> tuple[Numbers, Numbers, Numbers]:
        """Of the messages: where their routes begin, and their contents begin and end."""
        offsets = self.offsets[self.messages]
        tails = offsets + _QUEUES_AT + 4 * self.window.u16(offsets + _QUEUE_COUNT_AT)
        starts = tails + 2 + self.window.u16(tails) + 4
        return tails, starts, starts + self.window.u32(starts - 4)

    @cached_property
    def _flags(self) -> Numbers:
        """Of the messages."""
        return self.window.u8(self.offsets[self.messages] + _FLAGS_AT)

    def _behind_contents(self, flag: int) -> tuple[Numbers, Numbers]:
        """The messages with a flag, and where their contents end."""
        having = self._flags & flag != 0
        if not having.any():
            return _NONE, _NONE
        return self.messages[having], self._contents[2][having]

    def _origins(self) -> tuple[Numbers, Numbers]:
        """The records with an origin, and where it is."""
        messages, at = self._behind_contents(FLAG_ORIGIN)
        numbers = np.flatnonzero(self.kinds == KIND_NUMBER)
        return (
            np.concatenate((messages, numbers)),
            np.concatenate((at, self.offsets[numbers] + _PAYLOAD_AT)),
        )

    def _identities(self) -> tuple[Numbers, Numbers]:
        """The messages with an identity (L5), and where it is."""
        messages, at = self._behind_contents(FLAG_IDENTITY)
        flags = self.window.u8(self.offsets[messages] + _FLAGS_AT)
        return messages, at + ORIGIN_BYTES * (flags & FLAG_ORIGIN != 0)


_MAKERS: Final = {
    "store": _Batch.store,
    "segment": _Batch.segments,
    "offset": _Batch.places,
    "time": _Batch.time,
    "group": _Batch.group,
    "epoch": _Batch.epoch,
    "record": _Batch.record,
    "event": _Batch.event,
    "vhost": _Batch.vhost,
    "queue": _Batch.queue,
    "queue_id": _Batch.queue_id,
    "index": _Batch.message_index,
    "level": _Batch.level,
    "delivery_count": _Batch.delivery_count,
    "expires": _Batch.expires,
    "origin": _Batch.origin,
    "number": _Batch.number,
    "producer": _Batch.producer,
    "sequence": _Batch.sequence,
    "detail": _Batch.detail,
    "message": _Batch.message,
    "checksum": _Batch.checksum,
    "digest": _Batch.digest,
}
