"""Reading streams with Spark, in batches and as a streaming source."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.types import StructType

from rhizome.errors import NotFound
from rhizome.spark import schema as schemas
from rhizome.spark.amqp_socket import addresses_of
from rhizome.spark.arrow_compute import compute as pc
from rhizome.spark.data_source_options import OF_SOURCES, READ_SECONDS_DEFAULT, OptionError, Options
from rhizome.spark.source.filter_pushdown import PushedFilters
from rhizome.spark.source.query_offsets import (
    EXCLUDED,
    Offsets,
    Plan,
    Range,
    excluded_ranges,
    from_json,
    limited,
    not_excluded,
    ranges,
)
from rhizome.spark.source.read_boundaries import EARLIEST, LATEST, Boundary, Resolver, boundary
from rhizome.spark.source.read_limit_compat import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from rhizome.spark.source.retry_client import DataLossError
from rhizome.spark.source.stream_client import Bounds, Position, RangeReader, StreamClient, Wanted
from rhizome.spark.source.stream_discovery import Subscription, check_subscription, whole_pattern
from rhizome.spark.source.stream_rows import StreamPlace, StreamRows
from rhizome.spark.worker_heap import freeze_imports

OF_ENDS: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
OF_STREAMING: Final = (
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "readerName",
    "groupId",
    EXCLUDED,
)
OPTIONS: Final = (
    *OF_SOURCES,
    "subscribePattern",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    *OF_ENDS,
    *OF_STREAMING,
    "pushdown",
    "filterValues",
    "matchUnfiltered",
)
BOUNDS_SECONDS: Final = 0.1
"""An idle query asks for the end of its streams a hundred times a second; they are asked ten."""
TELL_SECONDS: Final = 60.0
"""An idle query tells its positions again so often: the broker takes silence for its end."""
TRIGGER_DELAY: Final = "15m"
READER_NAME_CHARS_MAX: Final = 255
FILTER_VALUES_MAX: Final = 256
FILTER_HEADER: Final = "x-stream-filter-value"


@dataclass(frozen=True)
class SourceSettings:
    """The source's options, checked."""

    uri: str = field(repr=False)
    subscribe: tuple[str, ...]
    pattern: str
    starting: Boundary
    ending: Boundary
    rows_max: int
    bytes_max: int
    rows_min: int
    delay_s: float
    plan: Plan
    fail_on_loss: bool
    timeout_s: int
    reader: str
    pushdown: bool
    wanted: Wanted | None
    excluded: dict[str, tuple[int, int]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"SourceSettings({', '.join(self.subscribe) or self.pattern})"


def source_settings(options: Options, streaming: bool) -> SourceSettings:
    """Check the options of a source."""
    uri = options.uri()
    addresses_of(uri)
    check_subscription(options)
    starting = boundary(options, "starting", LATEST if streaming else EARLIEST)
    ending = boundary(options, "ending", LATEST)
    _check_kind(options, streaming)
    return SourceSettings(
        uri,
        tuple(options.names("subscribe")),
        options.text("subscribePattern"),
        starting,
        ending,
        options.number("maxOffsetsPerTrigger", 0, least=0),
        options.size_bytes("maxBytesPerTrigger", 0) if options.has("maxBytesPerTrigger") else 0,
        options.number("minOffsetsPerTrigger", 0, least=0),
        options.seconds("maxTriggerDelay", TRIGGER_DELAY),
        Plan(options.partitions()),
        options.flag("failOnDataLoss", True),
        options.number("readTimeout", READ_SECONDS_DEFAULT),
        _reader_name(options),
        options.flag("pushdown", False),
        _wanted(options),
        excluded_ranges(options),
    )


def _check_kind(options: Options, streaming: bool) -> None:
    """Refuse what is for streaming queries only, or for batches only."""
    if streaming and any(options.has(name) for name in OF_ENDS):
        raise OptionError(
            "a streaming query has no end: 'endingOffsets' and 'endingTimestamp' are for batches"
        )
    for name in OF_STREAMING:
        if not streaming and options.has(name):
            raise OptionError(f"option '{name}' is for streaming queries")
    least = options.number("minOffsetsPerTrigger", 0, least=0)
    most = options.number("maxOffsetsPerTrigger", 0, least=0)
    if 0 < most < least:
        raise OptionError(
            f"'minOffsetsPerTrigger' is {least} and 'maxOffsetsPerTrigger' {most}: no batch can "
            "have both"
        )


def _wanted(options: Options) -> Wanted | None:
    """The filter values to be read; None: everything."""
    unfiltered = options.flag("matchUnfiltered", False)
    values = tuple(options.names("filterValues"))
    if not values and options.has("matchUnfiltered"):
        raise OptionError("option 'matchUnfiltered' goes with 'filterValues'")
    if len(values) > FILTER_VALUES_MAX:
        raise options.wrong("filterValues", f"at most {FILTER_VALUES_MAX} values")
    return Wanted(values, unfiltered) if values else None


def _reader_name(options: Options) -> str:
    if options.has("readerName") and options.has("groupId"):
        raise OptionError("give the source either 'readerName' or 'groupId': they mean the same")
    name = options.text("readerName") or options.text("groupId")
    if len(name) > READER_NAME_CHARS_MAX:
        given = "readerName" if options.has("readerName") else "groupId"
        raise options.wrong(given, f"a name of at most {READER_NAME_CHARS_MAX} characters")
    return name


@dataclass
class StreamPart(InputPartition):
    """A range of one stream to be read by one task."""

    stream: str
    partition: int
    start: int
    end: int

    def __post_init__(self) -> None:
        super().__init__(None)


class _Streams:
    """The streams that are read; what readers of both kinds share."""

    def __init__(self, settings: SourceSettings, schema: StructType) -> None:
        self.settings = settings
        self.schema = schema
        self.client = StreamClient(addresses_of(settings.uri), settings.timeout_s)
        self.subscription = Subscription(self.client, settings.subscribe, settings.pattern)

    def bounds(self, positions: dict[str, Position] | None = None) -> dict[str, Bounds]:
        """Where each stream begins and ends. Tells the broker these positions."""
        found = {}
        told = positions or {}
        for name in self.subscription.all():
            try:
                found[name] = self.client.bounds(name, position=told.get(name))
            except NotFound:
                self.gone(name)
        return found

    def gone(self, name: str) -> None:
        """A stream that was read, or was to be, is not there any more."""
        if self.settings.fail_on_loss:
            raise DataLossError(
                f"stream '{name}' was deleted. Set the option failOnDataLoss to false to go on "
                "without it, or begin with a new checkpoint"
            )
        self.subscription.forget(name)

    def at(self, asked: Boundary, bounds: dict[str, Bounds]) -> dict[str, int]:
        """An offset per stream for what an option says."""
        settings = self.settings
        resolver = Resolver(self.subscription.streams, self.offset_at, settings.fail_on_loss)
        return resolver.offsets(asked, bounds)

    def offset_at(self, stream: str, time_ms: int) -> int:
        return self.client.bounds_at(stream, time_ms).start

    def parts(self, found: list[Range]) -> list[InputPartition]:
        return [StreamPart(each.stream, each.partition, each.start, each.end) for each in found]

    def read(self, part: StreamPart) -> Iterator[Any]:
        freeze_imports()
        arrow = schemas.arrow_schema(self.schema)
        wanted = self.settings.wanted
        if wanted is not None and "headers" not in arrow.names:
            headers = schemas.arrow_schema(schemas.stream()).field("headers")
            arrow = arrow.append(headers)
        rows = StreamRows(StreamPlace(part.stream, part.partition), arrow)
        reader = RangeReader(
            addresses_of(self.settings.uri),
            part.stream,
            part.start,
            part.end,
            self.settings.timeout_s,
            self.settings.fail_on_loss,
            part.start,
            wanted,
        )
        for chunks in reader.chunks():
            batch = rows.batch(chunks, part.start, part.end)
            yield batch if wanted is None else _matching(batch, wanted, len(self.schema))


def _matching(batch: Any, wanted: Wanted, columns: int) -> Any:
    """The rows with a filter value that is wanted, and of their columns the first ones: a chunk
    that the broker sends may have others."""
    found = pc.map_lookup(batch.column("headers"), pa.scalar(FILTER_HEADER), "first")
    keep = pc.is_in(found, value_set=pa.array(wanted.values, pa.string()))
    if wanted.unfiltered:
        keep = pc.or_(keep, pc.is_null(found))
    return batch.filter(keep).select(list(range(columns)))


class StreamBatchReader(DataSourceReader):
    """Reads streams once, from a place to a place."""

    def __init__(self, settings: SourceSettings, schema: StructType) -> None:
        self._streams = _Streams(settings, schema)

    def partitions(self) -> list[InputPartition]:
        streams, settings = self._streams, self._streams.settings
        bounds = streams.bounds()
        start = streams.at(settings.starting, bounds)
        end = streams.at(settings.ending, bounds)
        end = {name: max(start[name], after) for name, after in end.items()}
        self._narrow(start, end)
        streams.client.close()
        return streams.parts(ranges(list(end), Offsets(start), Offsets(end, settings.plan)))

    def _narrow(self, start: dict[str, int], end: dict[str, int]) -> None:
        """Leave out what need not be read."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, StreamPart):
            return iter(())  # Spark's stand-in for no partitions at all
        return self._streams.read(partition)


class FilteringBatchReader(StreamBatchReader):
    """The same, for those who ask for it with the option `pushdown`: Spark refuses a reader that
    takes filters unless its configuration allows it."""

    def __init__(self, settings: SourceSettings, schema: StructType) -> None:
        super().__init__(settings, schema)
        self._narrowing = PushedFilters()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take from filters what can be known before reading; Spark applies all of them again."""
        self._narrowing.take(filters)
        return filters

    def _narrow(self, start: dict[str, int], end: dict[str, int]) -> None:
        narrowing = self._narrowing
        for name, first in start.items():
            after = end[name]
            if narrowing.queues is not None and name not in narrowing.queues:
                after = first
            begin = max(first, narrowing.first)
            if narrowing.end is not None:
                after = min(after, narrowing.end)
            if begin < after and narrowing.first_ms is not None:
                begin = max(begin, self._streams.offset_at(name, narrowing.first_ms))
            if begin < after and narrowing.end_ms is not None:
                after = min(after, self._streams.offset_at(name, narrowing.end_ms))
            start[name], end[name] = begin, max(begin, after)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        keys = self._narrowing.keys
        for batch in super().read(partition):
            if keys is not None and "key" in batch.schema.names:
                wanted = pa.array(sorted(keys), pa.string())
                batch = batch.filter(pc.is_in(batch.column("key"), value_set=wanted))
            yield batch


class StreamStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads streams as they grow.

    Spark's checkpoint has the offsets, and alone decides where a query goes on, so any number of
    queries read the same streams, and a batch can be read again as long as retention has its
    messages. The broker is told how far the query is, for people: everything before the start
    offset that Spark hands back is committed.
    """

    def __init__(self, settings: SourceSettings, schema: StructType) -> None:
        self._streams = _Streams(settings, schema)
        self._until: dict[str, int] | None = None
        self._known: dict[str, Bounds] = {}
        self._known_s = 0.0
        self._batch_s: float | None = None
        self._reader = settings.reader or f"spark-{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
        self._told: dict[str, int] = {}
        self._told_s = 0.0

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        settings = self._streams.settings
        start = self._streams.at(settings.starting, self._bounds())
        return Offsets(start, settings.plan).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        rows = self._streams.settings.rows_max
        return ReadMaxRows(rows) if rows else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        settings = self._streams.settings
        committed = from_json(start).next
        bounds = self._bounds(committed)
        begin = self._begin(committed, bounds)
        available = self._available(begin, bounds)
        if available == committed or self._waits(begin, available):
            return start
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        if settings.bytes_max and bounds:
            size = max(each.message_bytes() for each in bounds.values())
            by_bytes = max(1, settings.bytes_max // size)
            rows_max = min(rows_max, by_bytes) if rows_max else by_bytes
        if rows_max:
            available = limited(begin, available, rows_max)
        new = {name: begin[name] for name in begin if name not in committed and begin[name]}
        return Offsets(available, settings.plan, new).to_json()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        latest = {name: each.next for name, each in self._bounds().items()}
        return Offsets(latest, self._streams.settings.plan).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._until = {name: each.next for name, each in self._streams.bounds().items()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        after = from_json(end)
        found = ranges(list(after.next), from_json(start), after)
        return self._streams.parts(not_excluded(found, self._streams.settings.excluded))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, StreamPart)
        return self._streams.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is to be settled: a stream keeps its messages whoever has read them. How far the
        query is `latestOffset` tells: the last commit of a run never comes."""

    def stop(self) -> None:
        self._streams.client.close()

    # --- what there is

    def _bounds(self, committed: dict[str, int] | None = None) -> dict[str, Bounds]:
        """Where the streams begin and end, asked again if that was a while ago, or if the query has
        come further than the broker knows."""
        now = time.monotonic()
        told = self._positions(committed, now)
        if told or not self._known_s or now - self._known_s > BOUNDS_SECONDS:
            self._streams.subscription.discover()
            self._known = self._streams.bounds(told)
            self._known_s = now
        return self._known

    def _positions(self, committed: dict[str, int] | None, now: float) -> dict[str, Position]:
        """What the broker has not been told yet, or a while ago."""
        if committed is None:
            return {}
        if now - self._told_s > TELL_SECONDS:
            self._told = {}
            self._told_s = now
        keep = self._streams.settings.reader != ""
        found = {
            name: Position(self._reader, offset, keep)
            for name, offset in committed.items()
            if self._told.get(name) != offset
        }
        self._told.update(committed)
        return found

    def _begin(self, committed: dict[str, int], bounds: dict[str, Bounds]) -> dict[str, int]:
        """Where each stream is to be read next, in the order of their numbers: those that the query
        knows, and behind them those that have appeared, from their first message."""
        found = {}
        for name, offset in committed.items():
            if name in bounds:
                found[name] = offset
            elif self._is_wanted(name):
                self._streams.gone(name)
        for name, each in bounds.items():
            if name not in found and (self._until is None or name in self._until):
                found[name] = each.first
        return found

    def _is_wanted(self, name: str) -> bool:
        """Whether a stream that is not there would be read if it were."""
        pattern = self._streams.settings.pattern
        return bool(pattern) and whole_pattern(pattern).search(name)

    def _available(self, begin: dict[str, int], bounds: dict[str, Bounds]) -> dict[str, int]:
        """How far each stream can be read; never back."""
        found = {}
        for name, start in begin.items():
            after = bounds[name].next
            end = after if self._until is None else min(after, self._until.get(name, start))
            if after < start and self._streams.settings.fail_on_loss:
                raise DataLossError(
                    f"stream '{name}' ends at {after}, and the query has read up to {start}: "
                    "it was declared anew. Begin with a new checkpoint, or set failOnDataLoss to "
                    "false to go on from its first message"
                )
            found[name] = end if after < start else max(end, start)
        return found

    def _waits(self, begin: dict[str, int], available: dict[str, int]) -> bool:
        """Whether there is too little for a batch, and the last one was not long ago."""
        settings = self._streams.settings
        now = time.monotonic()
        rows = sum(max(0, available[name] - begin[name]) for name in available)
        if rows == 0:
            return False
        late = self._batch_s is None or now - self._batch_s >= settings.delay_s
        if rows < settings.rows_min and not late and self._until is None:
            return True
        self._batch_s = now
        return False


class UnlimitedStreamReader(StreamStreamReader):
    """The same on Spark 4.1, which does not say where a batch starts when it asks for its end.

    A batch takes all that there is: `maxOffsetsPerTrigger`, `maxBytesPerTrigger` and
    `minOffsetsPerTrigger` have no effect. How far the query is becomes known when it plans a batch.
    """

    def __init__(self, settings: SourceSettings, schema: StructType) -> None:
        super().__init__(settings, schema)
        self._committed: dict[str, int] = {}
        self._since: dict[str, int] = {}

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        bounds = self._bounds(self._committed)
        begin = self._begin(self._committed, bounds)
        for name, first in begin.items():
            # Counts for streams that the checkpoint does not know; an offset that changes without
            # a message would make Spark run empty batches.
            if first and name not in self._committed:
                self._since.setdefault(name, first)
        available = self._available(begin, bounds)
        return Offsets(available, self._streams.settings.plan, dict(self._since)).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        self._committed = from_json(start).next
        return super().partitions(start, end)
