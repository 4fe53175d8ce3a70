"""Records of the journal as rows of a table. No Python object per row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa

from rhizome.errors import SyntaxErrorFault
from rhizome.journal.dedup_state import USER_MARK
from rhizome.journal.records import (
    FLAG_DURABLE,
    FLAG_IDENTITY,
    FLAG_ORIGIN,
    KIND_DEQUEUE,
    KIND_DROP_QUEUE,
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
    KIND_TX,
    KIND_WATERMARK,
    ORIGIN_BYTES,
    crc32c,
)
from rhizome.spark.arrow_compute import compute as pc
from rhizome.spark.columns.content_decoder import COLUMNS, Contents
from rhizome.spark.columns.vectorized_bytes import (
    INSTANT,
    MalformedError,
    Numbers,
    Window,
    constant,
    interned,
    known,
    nulls,
    of_type,
    scattered,
    texts,
)
from rhizome.spark.journal.journal_record_decoder import (
    MESSAGE_FORM,
    NO_TIME,
    PAYLOAD_AT,
    QUEUES_AT,
    Records,
    RowIndex,
    with_inner,
)
from rhizome.spark.source.stream_rows import route_columns

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

# A batch has forty columns to be made here and loaded by the JVM: with few rows that is most of the
# work.
ROWS_PER_BATCH_MAX: Final = 32768
LOCAL_GROUP: Final = 0

_NONE: Final = np.empty(0, np.int64)
_NO_EXPIRATION: Final = -1


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


class Rows:
    """Turns the records of one segment after the other into batches.

    ``clock_ms`` is the time of the latest message so far.
    """

    def __init__(self, store: str, names: Names, wanted: Wanted) -> None:
        self.store = store
        self.names = names
        self.wanted = wanted
        self.clock_ms = NO_TIME

    def batches(self, data: bytes, offsets: Numbers, segment: int, base: int) -> Iterator[Any]:
        """The rows of the records at `offsets` in `data`, which is at `base` in its segment."""
        window = Window(data)
        records = Records(window, with_inner(window, offsets))
        times, self.clock_ms = records.times(self.clock_ms)
        rows = _only(records.rows(), self.wanted, records)
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
            pa.array(given[each.name], each.type) if each.name in given else nulls(count, each.type)
            for each in schema
        ]
        return pa.record_batch(columns, schema=schema)


def _only(index: RowIndex, wanted: Wanted, records: Records) -> RowIndex:
    if wanted.events:
        kinds = [kind for kind, event in EVENTS.items() if event in wanted.events]
        index = index.chosen(np.isin(records.kinds[index.record], kinds))
    if wanted.queue_ids is not None:
        index = index.chosen(np.isin(index.queue, list(wanted.queue_ids)))
    return index


class _Batch:
    """One batch of rows."""

    def __init__(
        self,
        rows: Rows,
        records: Records,
        index: RowIndex,
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
        self.heads = records.heads[self.distinct]
        self.kinds = records.kinds[self.distinct]
        self.messages = np.flatnonzero(records.is_message[self.distinct])
        self.times = times[self.distinct]

    def build(self) -> Any:
        schema = self.rows.wanted.schema
        columns = [self._column(each) for each in schema]
        return pa.record_batch(columns, schema=schema)

    def _column(self, asked: Any) -> Any:
        return of_type(_MAKERS[asked.name](self), asked.type)

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
        return self._instants(self.times, NO_TIME)

    def group(self) -> Any:
        return self.numbers(self.heads["group"].astype(np.int32))

    def epoch(self) -> Any:
        return self.numbers(self.heads["epoch"].astype(np.int64))

    def record(self) -> Any:
        return self.numbers(self.heads["index"].astype(np.int64))

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
        heads = self.heads
        reliable = (heads["flags"] & FLAG_DURABLE != 0) & (heads["group"] != LOCAL_GROUP)
        return self.of_records(interned(reliable.astype(np.int64), _LEVELS))

    def delivery_count(self) -> Any:
        return self._of(KIND_REQUEUE, lambda at: pa.array(self.window.u32(at + 12)), pa.int64())

    def expires(self) -> Any:
        found = np.full(len(self.distinct), _NO_EXPIRATION, np.int64)
        found[self.messages] = self._payloads["expiration"]
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
        """Whose it is and the name that they gave it, with a slash between them; of a release
        before 0.2 the name alone."""
        rows, at = self._identities()
        lengths = self.window.u16(at)
        of_user = lengths >= len(USER_MARK) + 2
        for place in range(len(USER_MARK)):
            of_user &= self.window.u8(at + 2 + place) == USER_MARK[place]
        user_at = at + np.where(of_user, len(USER_MARK) + 4, 2)
        name_at = user_at + np.where(of_user, self.window.u16(at + len(USER_MARK) + 2), 0)
        users = self.window.slices(user_at, name_at)
        names = self.window.slices(name_at, at + 2 + lengths)
        owned = pc.binary_join_element_wise(users, names, b"/")
        names = pc.if_else(pa.array(of_user), owned, names)
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
        return self.numbers(self.heads["checksum"].astype(np.int64))

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
        fields = [of_type(found[each.name], each.type) for each in kind]
        values = pa.StructArray.from_arrays(fields, fields=list(kind))
        return self.of_records(scattered(values, self.messages, len(self.distinct)))

    # --- helpers

    def _instants(self, times_ms: Numbers, missing: int) -> Any:
        column = known(times_ms * 1000, times_ms == missing)
        return self.of_records(column.view(INSTANT))

    def _of(self, kind: int, read: Any, arrow: Any) -> Any:
        """What `read` makes of the payloads of one kind of record; null in the other rows."""
        rows = np.flatnonzero(self.kinds == kind)
        if len(rows) == 0:
            return nulls(self.count, arrow)
        values = read(self.offsets[rows] + PAYLOAD_AT)
        return self.of_records(scattered(values, rows, len(self.distinct)))

    @cached_property
    def _payloads(self) -> Any:
        """Of the messages: what their payloads begin with."""
        return self.window.fields(self.offsets[self.messages] + PAYLOAD_AT, MESSAGE_FORM)

    @cached_property
    def _contents(self) -> tuple[Numbers, Numbers, Numbers]:
        """Of the messages: where their routes begin, and their contents begin and end."""
        offsets = self.offsets[self.messages]
        tails = offsets + QUEUES_AT + 4 * self._payloads["queues"].astype(np.int64)
        starts = tails + 2 + self.window.u16(tails) + 4
        return tails, starts, starts + self.window.u32(starts - 4)

    @cached_property
    def _flags(self) -> Numbers:
        """Of the messages."""
        return self.heads["flags"][self.messages]

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
            np.concatenate((at, self.offsets[numbers] + PAYLOAD_AT)),
        )

    def _identities(self) -> tuple[Numbers, Numbers]:
        """The messages with an identity (L5), and where it is."""
        messages, at = self._behind_contents(FLAG_IDENTITY)
        flags = self.heads["flags"][messages]
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
