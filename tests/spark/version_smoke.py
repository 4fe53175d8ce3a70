"""What must work on every version of Spark, as a process of its own: a batch, a streaming query
with `availableNow`, both sinks and a journal.

    python -m tests.spark.version_smoke URI DATA DIRECTORY

Reads the stream `smoke.stream`, fills the queues `smoke.batch` and `smoke.streaming`, reads the
store at DATA, and prints what it found as JSON. The version is that of the `pyspark` on the path.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rhizome.spark.jobs.job_progress import WORKER_LATE

STARTS_MAX = 5
STREAM = "smoke.stream"
BATCH_QUEUE = "smoke.batch"
STREAMING_QUEUE = "smoke.streaming"


def main(uri: str, data: str, directory: Path) -> dict[str, Any]:
    import pyspark

    from rhizome.spark import register
    from rhizome.spark.session import local_session
    from rhizome.spark.source.read_limit_compat import HAS_LIMITS

    spark = local_session("smoke", "local[2]", directory / "spark", quick=True)
    try:
        register(spark)
        rows = _read(spark, uri)
        batches = _copy(spark, uri, directory)
        _publish(spark, uri, directory)
        events = spark.read.format("rhizome.journal").load(data).groupBy("event").count().collect()
        return {
            "version": pyspark.__version__,
            "limits": HAS_LIMITS,
            "read": sorted(int(row.value) for row in rows),
            "copied": sorted(
                int(row.value) for row in spark.read.parquet(str(directory / "out")).collect()
            ),
            "batches": batches,
            "events": {row["event"]: row["count"] for row in events},
        }
    finally:
        spark.stop()


def _read(spark: Any, uri: str) -> list[Any]:
    found = spark.read.format("rhizome").option("uri", uri).option("subscribe", STREAM).load()
    rows: list[Any] = found.select("value", "offset").collect()
    return rows


def _copy(spark: Any, uri: str, directory: Path) -> list[int]:
    """The stream to Parquet, in two runs; rows of each batch."""
    rows = []
    for _ in range(2):
        query = _ended(
            lambda: (
                spark.readStream.format("rhizome")
                .option("uri", uri)
                .option("subscribe", STREAM)
                .option("startingOffsets", "earliest")
                .option("maxOffsetsPerTrigger", 60)
                .load()
                .select("value")
                .writeStream.option("checkpointLocation", str(directory / "checkpoint"))
                .trigger(availableNow=True)
                .start(str(directory / "out"), format="parquet")
            )
        )
        rows += [each["numInputRows"] for each in query.recentProgress]
    return [each for each in rows if each]


def _ended(start: Callable[[], Any]) -> Any:
    """A query that has ended. Spark gives its worker ten seconds to start, which a busy machine
    does not keep; nothing has happened by then."""
    from pyspark.errors import PySparkException

    for left in reversed(range(STARTS_MAX)):
        query = start()
        try:
            query.awaitTermination()
        except PySparkException as error:
            if not left or WORKER_LATE not in str(error):
                raise
        else:
            break
    return query


def _publish(spark: Any, uri: str, directory: Path) -> None:
    rows = spark.range(20).selectExpr("cast(id AS STRING) AS value")
    writer = rows.write.format("rhizome").option("uri", uri).option("queue", BATCH_QUEUE)
    writer.option("declare", "true").mode("append").save()
    _ended(
        lambda: (
            spark.readStream.schema("value BINARY")
            .parquet(str(directory / "out"))
            .writeStream.format("rhizome")
            .option("uri", uri)
            .option("queue", STREAMING_QUEUE)
            .option("declare", "true")
            .option("checkpointLocation", str(directory / "published"))
            .trigger(availableNow=True)
            .start()
        )
    )


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))))
