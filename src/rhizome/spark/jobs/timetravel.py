"""Timetravel: what was in a queue at a time, and what changed between two times.

All of it comes from the journal: a message was there if it had come by then and had not been
settled, purged or voided by then. How far back that goes depends on which segments are still there
(`history` keeps retired ones). A message that was there but whose content is no longer kept is
listed with its index only. Transient messages leave no trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from rhizome.spark import register
from rhizome.spark.jobs import archive
from rhizome.spark.jobs.job_progress import JobError, Tell, silently, watch
from rhizome.spark.journal import broker_stores as stores
from rhizome.spark.journal.broker_stores import OpenStore, StorePlace

_KEY: Final = ["group", "queue_id", "index"]
_EVENTS: Final = "enqueued,moved,dequeued,purged,queue-dropped,epoch"


@dataclass(frozen=True)
class TimetravelOptions:
    """Stores (of the queue's home, or of several copies), a queue, and one or two times.

    Times are milliseconds since 1970. `to` writes the messages as Parquet. With `uri` the queue's
    home is asked, or the brokers that are named.
    """

    paths: str
    queue: str
    at_ms: int
    until_ms: int | None = None
    vhost: str = "/"
    to: str = ""
    listed_max: int = 100
    uri: str = field(default="", repr=False)
    brokers: str = ""

    def place(self) -> StorePlace:
        return StorePlace(self.paths, self.uri, self.brokers)


@dataclass
class Moment:
    """What was in the queue at a time. `unkept` of the messages are known by index only."""

    at: str
    messages: int
    bytes: int
    unkept: int
    listed: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Travelled:
    """The result. `reach` is the time from which on the journal is complete; None: all of it."""

    queue: str
    reach: str | None
    first: Moment
    second: Moment | None = None
    came: int | None = None
    went: int | None = None
    stayed: int | None = None

    def document(self) -> dict[str, Any]:
        from dataclasses import asdict

        return asdict(self)


def run(spark: SparkSession, options: TimetravelOptions, tell: Tell = silently) -> Travelled:
    """Look at the queue at one time, or at two and compare."""
    register(spark)
    with stores_of_queue(options.place(), options.queue, options.vhost) as found:
        events = queue_events(spark, found).persist()
        try:
            return watch(
                spark, "reading the journal", tell, lambda: _travel(events, found, options)
            )
        finally:
            events.unpersist()


def _travel(events: DataFrame, found: QueueStores, options: TimetravelOptions) -> Travelled:
    first = contents_at(events, options.at_ms)
    if options.to:
        first.write.mode("overwrite").parquet(archive.absolute(options.to))
    reach = _reach(events, found.stores)
    travelled = Travelled(options.queue, reach, _moment(first, options.at_ms, options.listed_max))
    if options.until_ms is None:
        return travelled
    second = contents_at(events, options.until_ms)
    travelled.second = _moment(second, options.until_ms, options.listed_max)
    travelled.came = second.join(first, _KEY, "left_anti").count()
    travelled.went = first.join(second, _KEY, "left_anti").count()
    travelled.stayed = first.join(second, _KEY, "left_semi").count()
    return travelled


@dataclass
class QueueStores:
    """The stores that have what happened to a queue, where the source finds them, and the numbers
    that the queue goes by."""

    stores: list[OpenStore]
    place: StorePlace
    ids: set[int]


@contextmanager
def stores_of_queue(place: StorePlace, queue: str, vhost: str) -> Iterator[QueueStores]:
    """The stores of a place that concern a queue: of brokers, its home's alone, unless some are
    named. Positions in one store say nothing of those in another."""
    with stores.opened(place) as found:
        states = {store.label: store.state() for store in found}
        ids = {
            number
            for state in states.values()
            for number, name in state.names.queues.items()
            if name == queue and state.names.vhosts[number] == vhost
        }
        if not ids:
            raise JobError(f"no store knows a queue '{queue}' in vhost '{vhost}'")
        if place.uri and not place.brokers:
            homes = {
                state.homes[each] for state in states.values() for each in ids & set(state.homes)
            }
            found = [store for store in found if store.label in homes] or found
        yield QueueStores(found, stores.as_now(found, place), ids)


def queue_events(spark: SparkSession, found: QueueStores) -> DataFrame:
    """Everything that happened to a queue, and the epochs of all groups."""
    events = (
        spark.read.format("rhizome.journal")
        .option("events", _EVENTS)
        .options(**found.place.options())
        .load()
        .where(F.col("queue_id").isin(*found.ids) | (F.col("event") == "epoch"))
    )
    place = F.col("segment") * (1 << 32) + F.col("offset")
    return events.withColumn("place", place)


def contents_at(events: DataFrame, at_ms: int) -> DataFrame:
    """The messages that were in the queue at a time: group, queue_id, index, arrived, message."""
    at = F.timestamp_millis(F.lit(at_ms))
    past = events.where(F.col("time") <= at)
    came = (
        past.where("event IN ('enqueued', 'moved')")
        .groupBy(*_KEY)
        .agg(
            F.min("time").alias("arrived"),
            F.max_by("message", "place").alias("message"),
            F.max("place").alias("place"),
        )
    )
    settled = past.where("event = 'dequeued'").select(*_KEY).distinct()
    stayed = came.join(settled, _KEY, "left_anti")
    stayed = _without_ended(stayed, past)
    later = events.where((F.col("event") == "dequeued") & (F.col("time") > at))
    known = events.where("event IN ('enqueued', 'moved')").select(*_KEY).distinct()
    newest = past.where("event = 'enqueued'").agg(F.max("index").alias("newest"))
    unkept = (
        later.select(*_KEY)
        .distinct()
        .join(known, _KEY, "left_anti")
        .join(F.broadcast(newest))
        .where("index <= newest")
        .drop("newest")
    )
    return stayed.drop("place").unionByName(unkept, allowMissingColumns=True)


def _without_ended(stayed: DataFrame, past: DataFrame) -> DataFrame:
    """Leave out what a purge, the end of the queue, or a new epoch has ended."""
    live = stayed.alias("live")
    purges = past.where("event = 'purged'").alias("ending")
    drops = past.where("event = 'queue-dropped'").alias("ending")
    epochs = past.where("event = 'epoch'").alias("ending")
    same_queue = "live.queue_id = ending.queue_id AND live.place < ending.place"
    for endings, condition in (
        (purges, f"{same_queue} AND live.index <= ending.index"),
        (drops, same_queue),
        (
            epochs,
            "live.group = ending.group AND live.place < ending.place "
            "AND live.index >= ending.record",
        ),
    ):
        live = live.join(F.broadcast(endings), F.expr(condition), "left_anti").alias("live")
    return live


def _moment(found: DataFrame, at_ms: int, listed_max: int) -> Moment:
    row = found.agg(
        F.count("*"),
        F.sum(F.length("message.value")),
        F.sum(F.when(F.col("message").isNull(), 1).otherwise(0)),
    ).first()
    assert row is not None
    listed = found.orderBy("index").limit(listed_max).collect()
    return Moment(
        _text(at_ms), int(row[0]), int(row[1] or 0), int(row[2] or 0), [_shown(r) for r in listed]
    )


def _shown(row: Any) -> dict[str, Any]:
    message = row["message"]
    shown = {"index": row["index"], "arrived": row["arrived"] and row["arrived"].isoformat()}
    if message is not None:
        body = bytes(message["value"])
        shown |= {
            "exchange": message["exchange"],
            "key": message["key"],
            "message_id": message["message_id"],
            "bytes": len(body),
            "body": body[:80].decode("utf-8", "backslashreplace"),
        }
    return shown


def _reach(events: DataFrame, found: list[OpenStore]) -> str | None:
    """From when on no segment is missing; None if none ever was."""
    latest = None
    for store in found:
        numbers = sorted(number for each in store.segments() for number in each.files().segments())
        begin = next(
            (n for n in reversed(numbers) if n - 1 not in numbers), numbers[0] if numbers else 1
        )
        if begin <= 1:
            continue
        row = (
            events.where((F.col("store") == store.label) & (F.col("segment") >= begin))
            .agg(F.min("time"))
            .first()
        )
        if row is not None and row[0] is not None:
            latest = max(row[0], latest) if latest is not None else row[0]
    return None if latest is None else latest.isoformat()


def _text(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()


def time_ms(text: str) -> int:
    """Milliseconds since 1970 of a time like 2026-11-16T08:00:00Z; UTC if it doesn't say."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise JobError(f"'{text}' is no time; write it like 2026-11-16T08:00:00Z") from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return int(found.timestamp() * 1000)
