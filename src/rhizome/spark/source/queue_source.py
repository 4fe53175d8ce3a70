"""Reading work queues with Spark, as a streaming source.

Messages of a queue are leased to the query: set aside for it, read by its tasks in parallel without
being consumed, and settled when Spark's next start offset proves that their batch is complete. The
positions of a lease mean the same messages for ever, so a batch that Spark replays is the same.

An offset that Spark keeps in its checkpoint is that of streams (query_offsets.py), with positions,
and

    "lease": the name of the lease; empty before the first batch

A query that is gone for `leaseTimeout` loses its lease, and other consumers get the messages.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from rhizome.errors import NotFound, PreconditionFailed, RhizomeError
from rhizome.spark import schema as schemas
from rhizome.spark.amqp_socket import addresses_of
from rhizome.spark.data_source_options import OF_SOURCES, READ_SECONDS_DEFAULT, OptionError, Options
from rhizome.spark.source.lease_client import LeaseAnswer, LeaseClient, LeaseLostError, LeaseReader
from rhizome.spark.source.lease_rows import LeaseRows
from rhizome.spark.source.query_offsets import (
    EXCLUDED,
    Offsets,
    Plan,
    excluded_ranges,
    from_json,
    not_excluded,
    ranges,
)
from rhizome.spark.source.read_limit_compat import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from rhizome.spark.source.retry_client import DataLossError
from rhizome.spark.source.stream_rows import StreamPlace

OPTIONS: Final = (*OF_SOURCES, "leaseTimeout", "leaseId", EXCLUDED)
OF_STREAMS: Final = (
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "readerName",
    "groupId",
    "pushdown",
    "filterValues",
    "matchUnfiltered",
)
ROWS_DEFAULT: Final = 100_000
BYTES_DEFAULT: Final = 64 << 20
LEASE_SECONDS_DEFAULT: Final = 300
IDLE_SECONDS: Final = 0.1
"""An idle query asks for more a hundred times a second; the queues are asked ten."""
SIGNS_PER_TIMEOUT: Final = 4
_PROBE: Final = "rhizome.spark"


@dataclass(frozen=True)
class QueueSettings:
    """The source's options, checked."""

    uri: str = field(repr=False)
    queues: tuple[str, ...]
    rows_max: int
    bytes_max: int
    plan: Plan
    fail_on_loss: bool
    timeout_s: int
    keep_s: int
    lease: str
    excluded: dict[str, tuple[int, int]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"QueueSettings({', '.join(self.queues)})"


def is_subscribed(given: Mapping[str, str]) -> bool:
    """Whether what a query subscribes to are work queues rather than streams.

    Raises OptionError if it is both, or a queue that can't be read so.
    """
    options = Options(given, given, "rhizome")
    uri = options.address("url") or options.address("uri")
    names = options.names("subscribe")
    if not uri or not names:
        return False
    client = LeaseClient(addresses_of(uri), options.number("readTimeout", READ_SECONDS_DEFAULT))
    try:
        if not client.has_leases():
            return False
        queues = [name for name in names if _is_queue(client, name)]
    finally:
        client.close()
    if queues and len(queues) < len(names):
        raise OptionError(
            f"'subscribe' names work queues ({', '.join(queues)}) and others: use a source each"
        )
    return bool(queues)


def _is_queue(client: LeaseClient, name: str) -> bool:
    try:
        client.ask(name, _PROBE)
    except NotFound:
        # The one name of a partitioned stream, or nothing: whoever reads streams says so.
        return False
    except PreconditionFailed as error:
        if "is a stream" in error.text:
            return False
        raise OptionError(error.text) from None
    return True


def queue_settings(given: Mapping[str, str]) -> QueueSettings:
    """Check the options of a source on work queues."""
    known = Options(given, (*OPTIONS, *OF_STREAMS), "rhizome")
    for name in OF_STREAMS:
        if known.has(name):
            raise OptionError(
                f"option '{name}' is for streams: a work queue gives what is ready, in its order"
            )
    options = Options(given, OPTIONS, "rhizome")
    options.flag("includeHeaders", True)
    uri = options.uri()
    queues = tuple(options.names("subscribe"))
    if len(set(queues)) < len(queues):
        raise OptionError(f"'subscribe' names a queue twice: {', '.join(queues)}")
    return QueueSettings(
        uri,
        queues,
        options.number("maxOffsetsPerTrigger", ROWS_DEFAULT),
        options.size_bytes("maxBytesPerTrigger", BYTES_DEFAULT),
        Plan(options.partitions()),
        options.flag("failOnDataLoss", True),
        options.number("readTimeout", READ_SECONDS_DEFAULT),
        options.number("leaseTimeout", LEASE_SECONDS_DEFAULT, least=5),
        options.text("leaseId"),
        excluded_ranges(options),
    )


@dataclass
class QueuePart(InputPartition):
    """Positions of a lease to be read by one task."""

    queue: str
    partition: int
    lease: str
    start: int
    end: int

    def __post_init__(self) -> None:
        super().__init__(None)


class _Signs:
    """Shows signs of life while a batch is worked on, however long that takes."""

    def __init__(self, client: LeaseClient, queues: tuple[str, ...], lease: str, every_s: float):
        self.lease = lease
        self.shown = 0
        self._client = client
        self._queues = queues
        self._every_s = every_s
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="rhizome lease", daemon=True).start()

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            for queue in self._queues:
                try:
                    self._client.ask(queue, self.lease)
                    self.shown += 1
                except (RhizomeError, OSError):
                    # Whoever takes or reads next will say what is wrong.
                    continue
        self._client.close()

    def end(self) -> None:
        self._ended.set()


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads work queues as they fill."""

    def __init__(self, settings: QueueSettings, schema: StructType) -> None:
        self.settings = settings
        self.schema = schema
        self.client = LeaseClient(addresses_of(settings.uri), settings.timeout_s)
        self._minted = settings.lease or f"spark-{uuid.uuid4().hex}"
        self._ready: dict[str, int] | None = None
        self._until: dict[str, int] | None = None
        self._latest: dict[str, int] = {}
        self._idle: dict[str, Any] | None = None
        self._idle_s = 0.0
        self._signs: _Signs | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_signs": None}

    # --- offsets

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._offset("", dict.fromkeys(self.settings.queues, 0))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self.settings.rows_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Settle everything before `start`, which proves that it is done with, and take more."""
        now = time.monotonic()
        if start == self._idle and now - self._idle_s < IDLE_SECONDS:
            return start
        begin = from_json(start).next
        lease = str(start["lease"]) or self._minted
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else self.settings.rows_max
        each_max = max(1, rows_max // len(self.settings.queues))
        try:
            end = self._take(lease, begin, each_max)
        except LeaseLostError as error:
            lease = self._begin_anew(lease, str(error))
            end = self._take(lease, begin, each_max)
        self._show_signs(lease)
        if end == begin:
            self._idle, self._idle_s = start, now
            return start
        return self._offset(lease, end)

    def _take(self, lease: str, begin: dict[str, int], rows_max: int) -> dict[str, int]:
        end = {}
        for queue in self.settings.queues:
            at = begin.get(queue, 0)
            wanted = min(rows_max, self._left(lease, queue, at))
            told = self._ask(lease, queue, settle=at, take=wanted, **{"from": at})
            end[queue] = at + max(0, min(told.next - at, wanted))
            self._latest[queue] = max(told.next, at) + told.ready
        return end

    def _ask(self, lease: str, queue: str, **arguments: int) -> LeaseAnswer:
        return self.client.ask(
            queue,
            lease,
            keep_ms=self.settings.keep_s * 1000,
            bytes=self.settings.bytes_max // len(self.settings.queues),
            **arguments,
        )

    def _left(self, lease: str, queue: str, at: int) -> int:
        """How many messages from a position on belong to this run, if it has an end."""
        if self._ready is None:
            return self.settings.rows_max
        if self._until is None:
            self._until = {}
        if queue not in self._until:
            told = self._ask(lease, queue, take=0, **{"from": at})
            self._until[queue] = max(told.next, at) + self._ready[queue]
        return max(0, self._until[queue] - at)

    def _begin_anew(self, lease: str, why: str) -> str:
        """Go on under another lease, if messages may be lost or come again."""
        if self.settings.fail_on_loss:
            raise DataLossError(
                f"{why}. The query may have worked on them. Set the option failOnDataLoss to false "
                "to go on all the same, or begin with a new checkpoint. A longer leaseTimeout "
                "keeps them for the query"
            )
        for queue in self.settings.queues:
            self.client.ask(queue, lease, end=True)
        return f"spark-{uuid.uuid4().hex}"

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._offset("", dict(self._latest))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._ready = {queue: self.client.ready(queue) for queue in self.settings.queues}

    def _offset(self, lease: str, positions: dict[str, int]) -> dict[str, Any]:
        return {**Offsets(positions, self.settings.plan).to_json(), "lease": lease}

    # --- batches

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        lease = str(end["lease"])
        self._show_signs(lease)
        found = ranges(list(self.settings.queues), from_json(start), from_json(end))
        return [
            QueuePart(each.stream, each.partition, lease, each.start, each.end)
            for each in not_excluded(found, self.settings.excluded)
        ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, QueuePart)
        settings = self.settings
        place = StreamPlace(partition.queue, partition.partition)
        rows = LeaseRows(place, schemas.arrow_schema(self.schema))
        reader = LeaseReader(
            addresses_of(settings.uri),
            partition.queue,
            partition.lease,
            partition.start,
            partition.end,
            settings.timeout_s,
            settings.fail_on_loss,
        )
        for pieces in reader.pieces():
            yield rows.batch(pieces)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: the last commit of a run never comes. What is done with is what Spark starts
        the next batch after, and that it says in `latestOffset`."""

    def stop(self) -> None:
        """The lease stays: the query may be started again from its checkpoint."""
        if self._signs is not None:
            self._signs.end()
        self.client.close()

    def _show_signs(self, lease: str) -> None:
        if self._signs is not None and self._signs.lease == lease:
            return
        if self._signs is not None:
            self._signs.end()
        client = LeaseClient(self.client.addresses, self.settings.timeout_s)
        every_s = self.settings.keep_s / SIGNS_PER_TIMEOUT
        self._signs = _Signs(client, self.settings.queues, lease, every_s)
