"""Timetravel: what was in a queue at a time, and what changed between two times.

All of it comes from the journal: a message was there if it had come by then and had not been
settled, purged or voided by then. How far back that goes depends on which segments are still there
(`history` keeps retired ones). A message that was there but whose content is no longer kept is
listed with its index only. Transient messages leave no trace.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from rhizome.spark import register, stores
from rhizome.spark.jobs import archive
from rhizome.spark.jobs.watching import JobError, Tell, silently, watch

_KEY: Final = ["group", "queue_id", "index"]
_EVENTS: Final = "enqueued,moved,dequeued,purged,queue-dropped,epoch"


@dataclass(frozen=True)
class TimetravelOptions:
    """Stores (of the queue's home, or of several copies), a queue, and one or two times.

    Times are milliseconds since 1970. `to` writes the messages as Parquet.
    """

    paths: str
    queue: str
    at_ms: int
    until_ms: int | None = None
    vhost: str = "/"
    to: str = ""
    listed_max: int = 100


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
    events = queue_events(spark, options.paths, options.queue, options.vhost).persist()
    try:
        return watch(spark, "reading the journal", tell, lambda: _travel(events, options))
    finally:
        events.unpersist()


def _travel(events: DataFrame, options: TimetravelOptions) -> Travelled:
    first = contents_at(events, options.at_ms)
    if options.to:
        first.write.mode("overwrite").parquet(archive.absolute(options.to))
    reach = _reach(events, options.paths)
    found = Travelled(options.queue, reach, _moment(first, options.at_ms, options.listed_max))
    if options.until_ms is None:
        return found
    second = contents_at(events, options.until_ms)
    found.second = _moment(second, options.until_ms, options.listed_max)
    found.came = second.join(first, _KEY, "left_anti").count()
    found.went = first.join(second, _KEY, "left_anti").count()
    found.stayed = first.join(second, _KEY, "left_semi").count()
    return found


def queue_events(spark: SparkSession, paths: str, queue: str, vhost: str) -> DataFrame:
    """Everything that happened to a queue, and the epochs of all groups."""
    known = [stores.state_of(each).names for each in stores.find(paths)]
    ids = {
        number
        for names in known
        for number, name in names.queues.items()
        if name == queue and names.vhosts[number] == vhost
    }
    if not ids:
        raise JobError(f"no store knows a queue '{queue}' in vhost '{vhost}'")
    events = (
        spark.read.format("rhizome.journal")
        .option("events", _EVENTS)
        .load(paths)
        .where(F.col("queue_id").isin(*ids) | (F.col("event") == "epoch"))
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


def _reach(events: DataFrame, paths: str) -> str | None:
    """From when on no segment is missing; None if none ever was."""
    latest = None
    for directory in stores.find(paths):
        numbers = sorted(
            number for each in stores.segments_of(directory) for number in each.files().segments()
        )
        begin = next(
            (n for n in reversed(numbers) if n - 1 not in numbers), numbers[0] if numbers else 1
        )
        if begin <= 1:
            continue
        row = (
            events.where((F.col("store") == str(directory)) & (F.col("segment") >= begin))
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
