"""Replay: messages of an archive, a stream or a journal, sent again.

What is sent is what was published: body, properties and headers as they were, from the same stream
or queue in the same order. A replay has a name; under it each message goes out once, however often
the replay is started, for which it gets the headers x-producer and x-sequence (in place of those
that it had). With `exact` these two are left as they were: the messages are the very bytes that
were published, and a second run sends them again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.utils import AnalysisException

from rhizome.spark import register
from rhizome.spark.jobs import archive
from rhizome.spark.jobs.job_progress import JobError, Tell, silently, watch

_SENT: Final = ("value", "key", "exchange", "raw_properties", "__queue", "__place")


@dataclass(frozen=True)
class ReplayOptions:
    """What to replay and where to.

    One of `archive` (a path), `stream` (names, with `uri_from`) and `journal` (paths of stores).
    `where` is a condition in SQL on the columns of the source. Without `exchange` each message goes
    to the exchange it was published to; without `key` with the key that it had.
    """

    uri: str = field(repr=False)
    name: str
    archive: str = ""
    stream: str = ""
    journal: str = ""
    uri_from: str = field(default="", repr=False)
    exchange: str | None = None
    queue: str = ""
    key: str | None = None
    where: str = ""
    rows_per_second: int = 0
    partitions: int = 2
    exact: bool = False
    catalog: str = field(default="", repr=False)
    table: str = ""


@dataclass(frozen=True)
class Replayed:
    """What was sent."""

    name: str
    messages: int

    def document(self) -> dict[str, Any]:
        return vars(self)


def run(spark: SparkSession, options: ReplayOptions, tell: Tell = silently) -> Replayed:
    """Send the messages; returns when all of them are confirmed."""
    register(spark)
    rows = in_order(chosen(spark, options), options).persist()
    try:
        count = watch(spark, "reading", tell, rows.count)
        if count:
            watch(spark, "sending", tell, lambda: _send(rows, options))
    finally:
        rows.unpersist()
    return Replayed(options.name, count)


def chosen(spark: SparkSession, options: ReplayOptions) -> DataFrame:
    """The messages to send: value, key, exchange, raw_properties, __queue, __place."""
    given = [each for each in (options.archive, options.stream, options.journal) if each]
    if len(given) != 1:
        raise JobError("a replay needs one of an archive, a stream and a journal")
    found = _journal(spark, options) if options.journal else _messages(spark, options)
    if options.exchange is not None:
        found = found.withColumn("exchange", F.lit(options.exchange))
    if options.key is not None:
        found = found.withColumn("key", F.lit(options.key))
    return found.select(*_SENT)


def _messages(spark: SparkSession, options: ReplayOptions) -> DataFrame:
    uri = options.uri_from or options.uri
    found = archive.read_messages(
        spark, options.archive, options.catalog, options.table, uri, options.stream
    )
    found = _where(found, options.where)
    return found.withColumn("__queue", F.col("queue")).withColumn("__place", F.col("offset"))


def _journal(spark: SparkSession, options: ReplayOptions) -> DataFrame:
    """Each message once, though it may be in several queues, segments and copies."""
    found = spark.read.format("rhizome.journal").option("events", "enqueued").load(options.journal)
    once = _where(found, options.where).dropDuplicates(["group", "epoch", "index"])
    return once.select(
        "message.value",
        "message.key",
        "message.exchange",
        "message.raw_properties",
        F.col("group").cast("string").alias("__queue"),
        F.col("index").alias("__place"),
    )


def _where(found: DataFrame, condition: str) -> DataFrame:
    if not condition:
        return found
    try:
        return found.where(condition)
    except AnalysisException as error:
        first = str(error).splitlines()[0]
        raise JobError(f"the condition '{condition}' can't be used: {first}") from None


def in_order(found: DataFrame, options: ReplayOptions) -> DataFrame:
    """All of one stream in one partition, in its order; the same plan in every run."""
    return (
        found.repartition(options.partitions, "__queue")
        .sortWithinPartitions("__queue", "__place")
        .drop("__queue", "__place")
    )


def _send(rows: DataFrame, options: ReplayOptions) -> None:
    writer = (
        rows.write.format("rhizome")
        .mode("append")
        .option("uri", options.uri)
        .option("writeId", f"replay:{options.name}")
        .option("deduplicate", "none" if options.exact else "sequence")
        .option("keepUserId", options.exact)
    )
    if options.queue:
        writer = writer.option("queue", options.queue)
    if options.key:
        writer = writer.option("routingKey", options.key)
    if options.rows_per_second:
        share = max(1, options.rows_per_second // options.partitions)
        writer = writer.option("maxRowsPerSecond", share)
    writer.save()
