"""Source `rhizome.journal`: the journals of brokers as a table of what happened to messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rhizome.errors import RhizomeError
from rhizome.journal.checkpoint import decode
from rhizome.journal.errors import CorruptRecord, ForeignStore
from rhizome.journal.files import Files
from rhizome.journal.record_replay import GroupReplay
from rhizome.journal.records import (
    CHECK_INCOMPLETE,
    CHECK_UNWRITTEN,
    KIND_END,
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    check_record,
    segment_header_fault,
)
from rhizome.journal.recovery import following_record, is_torn_tail
from rhizome.spark import schema as schemas
from rhizome.spark.data_source_options import READ_SECONDS_DEFAULT, Options
from rhizome.spark.journal import broker_stores
from rhizome.spark.journal.broker_stores import GONE, Directory, StorePlace
from rhizome.spark.journal.journal_record_decoder import record_offsets, up_to_a_mark
from rhizome.spark.journal.journal_rows import (
    CHECKPOINT,
    CHECKPOINTED,
    DAMAGED,
    EVENTS,
    ROWS_PER_BATCH_MAX,
    Names,
    Rows,
    Wanted,
)
from rhizome.spark.version_stamp import stamped
from rhizome.spark.worker_heap import freeze_imports

NAME: Final = "rhizome.journal"
OPTIONS: Final = (
    "path",
    "paths",
    "uri",
    "url",
    "brokers",
    "pins",
    "readTimeout",
    "queue",
    "events",
    "damage",
    "history",
    "checkpoints",
    "minPartitions",
)
WINDOW_BYTES: Final = 8 * 1024 * 1024
PARTITION_BYTES_MAX: Final = 256 * 1024 * 1024
FAIL: Final = "fail"
AS_ROWS: Final = "rows"


class JournalDamagedError(RhizomeError):
    """A record in the middle of a journal can't be read; the text says where and why."""


@dataclass
class SegmentRange(InputPartition):
    """Segments to be read one after the other. ``last`` is the last of its directory, or -1."""

    store: str
    directory: Directory
    segments: list[int]
    last: int

    def __post_init__(self) -> None:
        super().__init__(None)


@dataclass
class CheckpointPart(InputPartition):
    """The newest checkpoint of a journal that can be read, among those that the plan found."""

    store: str
    directory: Directory
    names: list[str]

    def __post_init__(self) -> None:
        super().__init__(None)


class JournalSource(DataSource):
    """The journals of brokers, one row per event.

    Path: data directories of brokers (or directories of segments), several separated by commas,
    patterns allowed. Brokers may be running: then what is read is some moment between the planning
    and the reading of each segment. With `uri` in place of a path the brokers themselves are asked,
    from any machine; what is read then is the moment of the planning.

    Options:
        uri            management addresses of brokers, http://user:password@host:15672,host2 (or
                       https), or an amqp URI of them; the user has the tag auditor or administrator
        brokers        only the stores of these brokers (names, comma-separated)
        pins           read these pins instead of new ones: NAME=PIN of each broker, comma-separated
        readTimeout    seconds for which a broker that doesn't answer is asked again (120)
        queue          only events of these queues (names, comma-separated)
        events         only these events, comma-separated: enqueued, moved, delivered, dequeued,
                       requeued, purged, queue-dropped, transaction, state, epoch, watermark,
                       number, installing, leased, damaged
        damage         fail (default): an unreadable record that no crash explains fails the query;
                       rows: it becomes a row of the event `damaged`, and reading goes on behind it
        history        true (default): segments that the broker has retired are read too, if kept
        checkpoints    true: the newest checkpoint is read too; the event `checkpointed` names each
                       message that is live in it and the place of its record, and `checkpoint`
                       how far it has each group and, as segment and offset, where it ends
        minPartitions  at least so many partitions, if there are as many segments

    The columns checksum (of the record) and digest (of route and content of a message) are there
    for those who ask for them with a schema.

    Guarantee: every valid record is read exactly once, its checksum verified. A torn tail, which a
    crash or a running writer leaves, ends the last segment; anything else that is no record is
    damage.

    Example:
        spark.read.format("rhizome.journal").load("/var/lib/rhizome").groupBy("event").count()
    """

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return schemas.journal()

    def reader(self, schema: StructType) -> DataSourceReader:
        schemas.check_columns(schema, schemas.journal(with_sums=True), NAME)
        return stamped(JournalReader(schema, Options(self.options, OPTIONS, NAME)))


class JournalReader(DataSourceReader):
    """Everything is decided on the driver; partitions only read."""

    def __init__(self, schema: StructType, options: Options) -> None:
        found = broker_stores.stores_at(*_place(options))
        self._stores = {each.label: each for each in found}
        self._fail = options.choice("damage", (FAIL, AS_ROWS), FAIL) == FAIL
        self._history = options.flag("history", True)
        self._checkpoints = options.flag("checkpoints", False)
        self._partitions_min = options.partitions(per_task=2)
        self._states = {each.label: each.state() for each in found}
        self._schema = schema
        self._events = frozenset(options.names("events"))
        for event in self._events:
            if event not in (*EVENTS.values(), DAMAGED):
                raise options.wrong("events", f"of {', '.join(EVENTS.values())}, {DAMAGED}")
        self._queues = options.names("queue")
        for queue in self._queues:
            if not any(queue in state.names.queues.values() for state in self._states.values()):
                raise options.wrong("queue", "the name of a queue that one of the stores knows")

    def partitions(self) -> list[InputPartition]:
        listed = [
            (each, each.listed())
            for store in self._stores.values()
            for each in store.segments(self._history)
        ]
        total = sum(size for _, there in listed for _, size in there.segments)
        share = min(PARTITION_BYTES_MAX, total // self._partitions_min + 1)
        found: list[InputPartition] = [
            part for each, there in listed for part in _ranges(each, there.segments, share)
        ]
        if self._checkpoints:
            found += [
                CheckpointPart(each.store, each.directory.narrowed([]), there.checkpoints)
                for each, there in listed
                if each.live
            ]
        return found

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, (SegmentRange, CheckpointPart)):
            return  # Spark's stand-in for no partitions at all
        freeze_imports()
        names = self._states[partition.store].names
        wanted = Wanted(schemas.arrow_schema(self._schema), self._events, self._queue_ids(names))
        rows = Rows(partition.store, names, wanted)
        files = partition.directory.files()
        if isinstance(partition, CheckpointPart):
            yield from checkpoint_rows(files, rows, partition.names)
            return
        for segment in partition.segments:
            yield from SegmentReader(
                files, segment, segment == partition.last, rows, self._fail
            ).batches()

    def _queue_ids(self, names: Names) -> frozenset[int] | None:
        if not self._queues:
            return None
        return frozenset(number for number, name in names.queues.items() if name in self._queues)


def _place(options: Options) -> tuple[StorePlace, float]:
    """Where the stores are, and how long a broker may be silent."""
    patience_s = float(options.number("readTimeout", READ_SECONDS_DEFAULT))
    uri = options.address("uri") or options.address("url")
    if not uri:
        paths = options.text("path") or options.required("paths", "/var/rhizome")
        return StorePlace(paths), patience_s
    if options.has("path") or options.has("paths"):
        raise options.wrong("uri", "left out where a path is given: stores are read in one way")
    return StorePlace("", uri, options.text("brokers"), options.text("pins")), patience_s


def _ranges(
    source: broker_stores.Segments, segments: list[tuple[int, int]], share: int
) -> Iterator[SegmentRange]:
    """Neighbouring segments together, about `share` bytes each."""
    last = segments[-1][0] if segments and source.live else -1
    if source.directory.tail_missing(last):
        last = -1
    chosen: list[int] = []
    taken = 0
    for number, size in segments:
        if chosen and taken + size > share:
            yield SegmentRange(source.store, source.directory.narrowed(chosen), chosen, last)
            chosen, taken = [], 0
        chosen.append(number)
        taken += size
    if chosen:
        yield SegmentRange(source.store, source.directory.narrowed(chosen), chosen, last)


def checkpoint_rows(files: Files, rows: Rows, names: list[str]) -> Iterator[Any]:
    """What the first readable checkpoint of those named holds."""
    for name in names:
        try:
            found = decode(name, files.load(name), b"")
        except FileNotFoundError:
            raise _gone(f"{name} of {rows.store}") from None
        except (CorruptRecord, ForeignStore):
            continue
        place = {"segment": found.position >> 32, "offset": found.position & 0xFFFFFFFF}
        groups = found.replay.groups or {0: GroupReplay()}
        ends: dict[str, Any] = {key: [value] * len(groups) for key, value in place.items()}
        ends["group"] = list(groups)
        ends["epoch"] = [int(each.epoch) for each in groups.values()]
        ends["record"] = [int(each.index) for each in groups.values()]
        yield rows.made(CHECKPOINT, len(groups), ends)
        for number, queue in found.replay.queues.items():
            for level in queue.levels.values():
                yield from _live_rows(rows, number, int(queue.group), level.positions())
        return


def _live_rows(
    rows: Rows, queue_id: int, group: int, entries: list[tuple[int, int]]
) -> Iterator[Any]:
    names = rows.names
    for first in range(0, len(entries), ROWS_PER_BATCH_MAX):
        part = entries[first : first + ROWS_PER_BATCH_MAX]
        values: dict[str, Any] = {
            "segment": [position >> 32 for _, position in part],
            "offset": [position & 0xFFFFFFFF for _, position in part],
            "index": [index for index, _ in part],
            "group": [group] * len(part),
            "queue_id": [queue_id] * len(part),
            "queue": [names.queues.get(queue_id)] * len(part),
            "vhost": [names.vhosts.get(queue_id)] * len(part),
        }
        yield rows.made(CHECKPOINTED, len(part), values)


def _gone(what: str) -> JournalDamagedError:
    return JournalDamagedError(f"{what} {GONE}; read again, keep `history`, or read a copy")


class SegmentReader:
    """Reads one segment in windows."""

    def __init__(self, files: Files, segment: int, last: bool, rows: Rows, fail: bool) -> None:
        self.files = files
        self.segment = segment
        self.last = last
        self.rows = rows
        self.fail = fail

    def batches(self) -> Iterator[Any]:
        try:
            size = self.files.size(self.segment)
        except FileNotFoundError:
            raise _gone(f"segment {self.segment} of {self.rows.store}") from None
        header = self.files.read(self.segment, 0, SEGMENT_HEADER_BYTES)
        fault = segment_header_fault(header, self.segment, b"")
        if fault:
            if self.last and is_torn_tail(self.files, self.segment, 0):
                return
            yield from self._damage(0, fault)
        yield from self._records(SEGMENT_HEADER_BYTES, size)

    def _records(self, offset: int, size: int) -> Iterator[Any]:
        window = WINDOW_BYTES
        while True:
            data = self.files.read(self.segment, offset, window)
            found, stop = record_offsets(data, 0)
            if offset + len(data) < size:
                found, stop = up_to_a_mark(data, found, stop)
            if len(found):
                yield from self.rows.batches(data, found, self.segment, offset)
                if data[int(found[-1]) + 8] == KIND_END:
                    return
            offset += stop
            verdict = int(check_record(data, stop))
            more = offset - stop + len(data) < size
            if more and (verdict == CHECK_INCOMPLETE or verdict > 0):
                window = WINDOW_BYTES if stop else window * 2
                continue
            if self.last and is_torn_tail(self.files, self.segment, offset):
                return
            if self.last and self._is_written(offset):
                window = WINDOW_BYTES
                continue
            yield from self._damage(offset, _REASONS.get(verdict, "a record fails its checksum"))
            following = following_record(self.files, self.segment, offset)
            if following < 0:
                return
            offset = following
            window = WINDOW_BYTES

    def _is_written(self, offset: int) -> bool:
        """Whether there is a record now: a running broker writes on, and what was found behind an
        unwritten place may have come together with what belongs there.
        """
        data = self.files.read(self.segment, offset, RECORD_HEADER_BYTES)
        length = int.from_bytes(data[:4], "big")
        if length > self.files.size(self.segment):
            return False
        data = self.files.read(self.segment, offset, RECORD_HEADER_BYTES + length)
        return int(check_record(data, 0)) > 0

    def _damage(self, offset: int, reason: str) -> Iterator[Any]:
        if self.fail:
            raise JournalDamagedError(
                f"the journal of {self.rows.store} is damaged: segment {self.segment} at {offset}: "
                f"{reason}. Read it with option damage=rows to see everything else"
            )
        if not self.rows.wanted.events or DAMAGED in self.rows.wanted.events:
            yield self.rows.damage(self.segment, offset, reason)


_REASONS: Final = {
    CHECK_UNWRITTEN: "an unwritten place with records after it, or a segment without its end",
    CHECK_INCOMPLETE: "a record that its segment is too short for",
}
