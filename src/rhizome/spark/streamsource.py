"""Reading streams with Spark, in batches and as a streaming source."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from rhizome.errors import NotFound
from rhizome.spark import schema as schemas
from rhizome.spark.asking import DataLossError
from rhizome.spark.offsets import Offsets, Plan, Range, from_json, limited, ranges
from rhizome.spark.options import OF_SOURCES, READ_SECONDS_DEFAULT, OptionError, Options
from rhizome.spark.streamclient import Bounds, RangeReader, StreamClient
from rhizome.spark.streamrows import StreamPlace, StreamRows
from rhizome.spark.wire import addresses_of

OPTIONS: Final = (
    *OF_SOURCES,
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
)
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
BOUNDS_SECONDS: Final = 0.1
"""An idle query asks for the end of its streams a hundred times a second; they are asked ten."""


@dataclass(frozen=True)
class SourceSettings:
    """The source's options, checked."""

    uri: str = field(repr=False)
    subscribe: tuple[str, ...]
    starting: str
    starting_ms: int | None
    ending: str
    ending_ms: int | None
    rows_max: int
    bytes_max: int
    plan: Plan
    fail_on_loss: bool
    timeout_s: int

    def __repr__(self) -> str:
        return f"SourceSettings({', '.join(self.subscribe)})"


def source_settings(options: Options, streaming: bool) -> SourceSettings:
    """Check the options of a source."""
    uri = options.uri()
    addresses_of(uri)
    options.required("subscribe", "events or orders,payments")
    if options.has("startingOffsets") and options.has("startingTimestamp"):
        raise OptionError("give the source either 'startingOffsets' or 'startingTimestamp'")
    if options.has("endingOffsets") and options.has("endingTimestamp"):
        raise OptionError("give the source either 'endingOffsets' or 'endingTimestamp'")
    if streaming and (options.has("endingOffsets") or options.has("endingTimestamp")):
        raise OptionError(
            "a streaming query has no end: 'endingOffsets' and 'endingTimestamp' are for batches"
        )
    settings = SourceSettings(
        uri,
        tuple(options.names("subscribe")),
        options.text("startingOffsets", LATEST if streaming else EARLIEST),
        _time_ms(options, "startingTimestamp"),
        options.text("endingOffsets", LATEST),
        _time_ms(options, "endingTimestamp"),
        options.number("maxOffsetsPerTrigger", 0, least=0),
        options.size_bytes("maxBytesPerTrigger", 0) if options.has("maxBytesPerTrigger") else 0,
        Plan(options.number("minPartitions", os.cpu_count() or 1)),
        options.flag("failOnDataLoss", True),
        options.number("readTimeout", READ_SECONDS_DEFAULT),
    )
    _offsets_given(settings.starting, options, "startingOffsets")
    _offsets_given(settings.ending, options, "endingOffsets")
    return settings


def _time_ms(options: Options, name: str) -> int | None:
    """A time as milliseconds since 1970, or as a text like 2026-11-16T08:00:00Z."""
    if not options.has(name):
        return None
    text = options.text(name)
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise options.wrong(
            name, "milliseconds since 1970, or a time like 2026-11-16T08:00:00Z"
        ) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return int(found.timestamp() * 1000)


def _offsets_given(text: str, options: Options, name: str) -> dict[str, int]:
    """Offsets by stream, from JSON; none for `earliest` and `latest`."""
    if text in (EARLIEST, LATEST):
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if isinstance(found, dict) and all(
        isinstance(offset, int) and offset >= 0 for offset in found.values()
    ):
        return found
    raise options.wrong(name, 'earliest, latest, or JSON like {"events-0": 120, "events-1": 80}')


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
        try:
            self.names = [
                stream for name in settings.subscribe for stream in self.client.streams_of(name)
            ]
        except NotFound as error:
            raise OptionError(error.text) from None
        if len(set(self.names)) < len(self.names):
            raise OptionError(f"'subscribe' names a stream twice: {', '.join(self.names)}")

    def bounds(self) -> dict[str, Bounds]:
        return {name: self.client.bounds(name) for name in self.names}

    def at(self, text: str, time_ms: int | None, bounds: dict[str, Bounds]) -> dict[str, int]:
        """An offset per stream for what an option says."""
        if time_ms is not None:
            return {name: self.client.bounds_at(name, time_ms).start for name in self.names}
        if text == EARLIEST:
            return {name: each.first for name, each in bounds.items()}
        latest = {name: each.next for name, each in bounds.items()}
        if text == LATEST:
            return latest
        given = json.loads(text)
        for name, offset in given.items():
            if name not in bounds:
                raise OptionError(f"offsets are given for '{name}', which is not subscribed to")
            if not bounds[name].first <= offset <= bounds[name].next:
                self._out_of_bounds(name, offset, bounds[name])
        return {
            name: min(max(given[name], each.first), each.next) if name in given else each.next
            for name, each in bounds.items()
        }

    def _out_of_bounds(self, name: str, offset: int, bounds: Bounds) -> None:
        if self.settings.fail_on_loss:
            raise DataLossError(
                f"offset {offset} of stream '{name}' is not there: it has {bounds.first} to "
                f"{bounds.next - 1}. Set the option failOnDataLoss to false to take the nearest"
            )

    def parts(self, found: list[Range]) -> list[InputPartition]:
        return [StreamPart(each.stream, each.partition, each.start, each.end) for each in found]

    def read(self, part: StreamPart) -> Iterator[Any]:
        arrow = schemas.arrow_schema(self.schema)
        rows = StreamRows(StreamPlace(part.stream, part.partition), arrow)
        reader = RangeReader(
            addresses_of(self.settings.uri),
            part.stream,
            part.start,
            part.end,
            self.settings.timeout_s,
            self.settings.fail_on_loss,
            part.start,
        )
        for chunks in reader.chunks():
            yield rows.batch(chunks, part.start, part.end)


class StreamBatchReader(DataSourceReader):
    """Reads streams once, from a place to a place."""

    def __init__(self, settings: SourceSettings, schema: StructType) -> None:
        self._streams = _Streams(settings, schema)

    def partitions(self) -> list[InputPartition]:
        streams, settings = self._streams, self._streams.settings
        bounds = streams.bounds()
        start = streams.at(settings.starting, settings.starting_ms, bounds)
        end = streams.at(settings.ending, settings.ending_ms, bounds)
        streams.client.close()
        return streams.parts(ranges(streams.names, Offsets(start), Offsets(end, settings.plan)))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, StreamPart):
            return iter(())  # Spark's stand-in for no partitions at all
        return self._streams.read(partition)


class StreamStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads streams as they grow.

    Spark's checkpoint has the offsets; nothing is kept in the broker, so any number of queries read
    the same streams, and a batch can be read again as long as retention has its messages.
    """

    def __init__(self, settings: SourceSettings, schema: StructType) -> None:
        self._streams = _Streams(settings, schema)
        self._until: dict[str, int] | None = None
        self._known: dict[str, Bounds] = {}
        self._known_s = 0.0

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        settings = self._streams.settings
        start = self._streams.at(settings.starting, settings.starting_ms, self._bounds())
        return Offsets(start, settings.plan).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        rows = self._streams.settings.rows_max
        return ReadMaxRows(rows) if rows else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        settings = self._streams.settings
        begin = from_json(start).next
        bounds = self._bounds()
        available = self._available(begin, bounds)
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        if settings.bytes_max:
            size = max(each.message_bytes() for each in bounds.values())
            by_bytes = max(1, settings.bytes_max // size)
            rows_max = min(rows_max, by_bytes) if rows_max else by_bytes
        if rows_max:
            available = limited(begin, available, rows_max)
        return Offsets(available, settings.plan).to_json()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        latest = {name: each.next for name, each in self._bounds().items()}
        return Offsets(latest, self._streams.settings.plan).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._until = {name: each.next for name, each in self._streams.bounds().items()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        found = ranges(self._streams.names, from_json(start), from_json(end))
        return self._streams.parts(found)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, StreamPart)
        return self._streams.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is to be settled: a stream keeps its messages whoever has read them."""

    def stop(self) -> None:
        self._streams.client.close()

    def _bounds(self) -> dict[str, Bounds]:
        now = time.monotonic()
        if not self._known or now - self._known_s > BOUNDS_SECONDS:
            self._known = self._streams.bounds()
            self._known_s = now
        return self._known

    def _available(self, begin: dict[str, int], bounds: dict[str, Bounds]) -> dict[str, int]:
        """How far each stream can be read; never back."""
        found = {}
        for name, each in bounds.items():
            start = begin.get(name, each.first)
            end = each.next
            if self._until is not None:
                end = min(end, self._until[name])
            if each.next < start and self._streams.settings.fail_on_loss:
                raise DataLossError(
                    f"stream '{name}' ends at {each.next}, and the query has read up to {start}: "
                    "it was declared anew. Begin with a new checkpoint, or set failOnDataLoss to "
                    "false to go on from its first message"
                )
            found[name] = end if each.next < start else max(end, start)
        return found
