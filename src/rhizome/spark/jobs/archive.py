"""Archive: streams to Parquet, each message once.

    TO/queue=NAME/date=YYYY-MM-DD/part-*.parquet    the messages, all columns of the source
    TO/_spark_metadata/                             which files count: orphans of crashes don't
    TO/_checkpoint/                                 how far each stream is archived

A killed run is continued by the next one; nothing is lost and nothing is twice, as long as the
archive is read as Spark reads it (`read`), through its metadata, and not file by file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, to_date
from pyspark.sql.types import DateType, StructField, StructType

from rhizome.spark import register
from rhizome.spark import schema as schemas
from rhizome.spark.jobs.watching import (
    WORKER_LATE,
    JobError,
    Tell,
    never,
    silently,
    watch_query,
)

STARTS_MAX: Final = 5
CHECKPOINT: Final = "_checkpoint"
METADATA: Final = "_spark_metadata"


@dataclass(frozen=True)
class ArchiveOptions:
    """What to archive, and where to. `follow` goes on as messages come, until it is stopped."""

    uri: str = field(repr=False)
    streams: tuple[str, ...]
    to: str
    checkpoint: str = ""
    starting: str = "earliest"
    follow: bool = False
    interval_s: float = 10
    rows_per_batch: int = 1_000_000
    fail_on_loss: bool = True


@dataclass(frozen=True)
class Archived:
    """What a run has added."""

    to: str
    messages: int
    batches: int
    next: dict[str, int]

    def document(self) -> dict[str, Any]:
        return vars(self)


def absolute(path: str) -> str:
    """A local path as it is meant here: the JVM may have been started in another directory."""
    return path if not path or "://" in path else str(Path(path).absolute())


def schema() -> StructType:
    """Of an archive: the source's columns, and the date that it is partitioned by."""
    return StructType([*schemas.stream().fields, StructField("date", DateType())])


def run(
    spark: SparkSession,
    options: ArchiveOptions,
    tell: Tell = silently,
    stopping: Callable[[], bool] = never,
) -> Archived:
    """Archive what the streams have, or with `follow` all that they get until `stopping`."""
    register(spark)
    options = replace(options, to=absolute(options.to), checkpoint=absolute(options.checkpoint))
    for left in reversed(range(STARTS_MAX)):
        query = start(spark, options)
        try:
            totals = watch_query(query, "archiving", tell, stopping)
        except PySparkException as error:
            if not left or WORKER_LATE not in str(error):
                raise
        else:
            break
    last = query.lastProgress
    end = {} if last is None else _next_offsets(last)
    return Archived(options.to, totals.rows, totals.batches, end)


def start(spark: SparkSession, options: ArchiveOptions) -> Any:
    """The streaming query that archives."""
    source = (
        spark.readStream.format("rhizome")
        .option("uri", options.uri)
        .option("subscribe", ",".join(options.streams))
        .option("startingOffsets", options.starting)
        .option("maxOffsetsPerTrigger", options.rows_per_batch)
        .option("failOnDataLoss", options.fail_on_loss)
        .load()
    )
    writer = (
        source.withColumn("date", to_date(col("timestamp")))
        .writeStream.format("parquet")
        .partitionBy("queue", "date")
        .option("path", options.to)
        .option("checkpointLocation", options.checkpoint or str(Path(options.to) / CHECKPOINT))
    )
    if options.follow:
        return writer.trigger(processingTime=f"{options.interval_s} seconds").start()
    return writer.trigger(availableNow=True).start()


def read(spark: SparkSession, path: str) -> DataFrame:
    """The messages of an archive."""
    path = absolute(path)
    # Without a schema Spark guesses types of queue names: 007 would be a number.
    if "://" not in path and not (Path(path) / METADATA).is_dir():
        raise JobError(f"'{path}' is no archive: it has no {METADATA}; make one with archive")
    return spark.read.schema(schema()).parquet(path)


def _next_offsets(progress: Any) -> dict[str, int]:
    sources = json.loads(progress.json)["sources"]
    end = sources[0]["endOffset"] if sources else None
    return dict(end["next"]) if isinstance(end, dict) else {}
