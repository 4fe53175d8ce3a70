"""Archive: streams to Parquet, or to a Delta or Iceberg table, each message once.

    TO/queue=NAME/date=YYYY-MM-DD/part-*.parquet    the messages, all columns of the source
    TO/_spark_metadata/                             which files count: orphans of crashes don't
    TO/_checkpoint/                                 how far each stream is archived

    TO/data/*.parquet                               the same in a Delta or Iceberg table
    TO/_delta_log/ or TO/metadata/, TO/catalog.db   which files count

A killed run is continued by the next one; nothing is lost and nothing is twice, as long as the
archive is read through its metadata (`read`), and not file by file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, to_date
from pyspark.sql.types import DateType, StructField, StructType

from rhizome.errors import RhizomeError
from rhizome.printable_text import without_passwords
from rhizome.spark import register, spark_master
from rhizome.spark import schema as schemas
from rhizome.spark.amqp_socket import addresses_of
from rhizome.spark.data_source_options import resolved
from rhizome.spark.jobs.job_progress import (
    WORKER_LATE,
    JobError,
    Tell,
    never,
    progress_document,
    silently,
    watch_query,
)
from rhizome.spark.lakehouse.table_location import is_remote, normal_location
from rhizome.spark.lakehouse.table_options import DELTA, ICEBERG, PARQUET, found_format
from rhizome.spark.lakehouse.table_options import NAME as TABLE
from rhizome.spark.source.stream_client import Position, StreamClient
from rhizome.spark.source.stream_source import READER_NAME_CHARS_MAX

STARTS_MAX: Final = 5
CHECKPOINT: Final = "_checkpoint"
METADATA: Final = "_spark_metadata"
FORMATS: Final = (PARQUET, DELTA, ICEBERG)
PARTITION_BY: Final = ("queue", "date")
READER_PREFIX: Final = "archive:"
TELL_SECONDS_MAX: Final = 5.0
"""So long a run that is done tries to tell the brokers how far it came."""
_PACKAGES: Final = {DELTA: "deltalake", ICEBERG: "pyiceberg"}


@dataclass(frozen=True)
class ArchiveOptions:
    """What to archive, and where to. `follow` goes on as messages come, until it is stopped.

    `format` is one of FORMATS; empty: that of the archive, or Parquet for a new one. `catalog` and
    `table` are for Iceberg, as in the format `rhizome.table`. `reader` is the name under which
    brokers know how far the archive is; None: one made of its path; empty: none that is kept.
    """

    uri: str = field(repr=False)
    streams: tuple[str, ...]
    to: str
    checkpoint: str = ""
    starting: str = "earliest"
    follow: bool = False
    interval_s: float = 10
    rows_per_batch: int = 1_000_000
    fail_on_loss: bool = True
    format: str = ""
    catalog: str = field(default="", repr=False)
    table: str = ""
    reader: str | None = None


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


def checked(options: ArchiveOptions) -> ArchiveOptions:
    """Options with the format that the archive has or gets. Raises JobError, before Spark has to
    start, if it has another one, or if a package is missing."""
    to = absolute(options.to)
    found = _format_at(to)
    wanted = options.format or found or (ICEBERG if options.table else PARQUET)
    if wanted not in FORMATS:
        raise JobError(f"'{wanted}' is no format of archives; these are {', '.join(FORMATS)}")
    if found not in (None, wanted):
        raise JobError(f"'{to}' is an archive of format {found}, not {wanted}; choose another path")
    if wanted in _PACKAGES and find_spec(_PACKAGES[wanted]) is None:
        raise JobError(
            f"an archive of format {wanted} needs the package {_PACKAGES[wanted]}; install it "
            f"with: pip install 'rhizomemq[{wanted}]'"
        )
    if wanted != ICEBERG and options.table:
        raise JobError(f"a table's name is for Iceberg, not for {wanted}")
    if wanted != PARQUET and is_remote(normal_location(to)) and not options.checkpoint:
        raise JobError(
            f"Spark by itself can't keep its checkpoint at '{to}': name a directory for it that "
            "lasts as long as the archive (--checkpoint)"
        )
    checkpoint = absolute(options.checkpoint) or f"{to.rstrip('/')}/{CHECKPOINT}"
    # A catalogue may be in the environment, for other archives than this one.
    catalog = options.catalog if wanted == ICEBERG else ""
    return replace(
        options,
        to=to,
        checkpoint=checkpoint,
        format=wanted,
        catalog=catalog,
        reader=_reader_name(to) if options.reader is None else _checked_name(options.reader),
    )


def _reader_name(to: str) -> str:
    """A name for the archive at a path; of one that is too long for a name the end counts. All who
    may read a stream see the names of its readers."""
    shown = without_passwords(to)
    return READER_PREFIX + shown[-(READER_NAME_CHARS_MAX - len(READER_PREFIX)) :]


def _checked_name(name: str) -> str:
    if len(name) > READER_NAME_CHARS_MAX:
        raise JobError(
            f"the reader's name has {len(name)} characters; at most {READER_NAME_CHARS_MAX} are "
            "allowed (--reader-name)"
        )
    return name


def run(
    spark: SparkSession,
    options: ArchiveOptions,
    tell: Tell = silently,
    stopping: Callable[[], bool] = never,
) -> Archived:
    """Archive what the streams have, or with `follow` all that they get until `stopping`."""
    register(spark)
    options = checked(options)
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
    if not spark_master.has_remote_driver(spark):
        _tell_positions(options, end)
    return Archived(options.to, totals.rows, totals.batches, end)


def start(spark: SparkSession, options: ArchiveOptions) -> Any:
    """The streaming query that archives."""
    options = checked(options)
    source = (
        spark.readStream.format("rhizome")
        .option("uri", options.uri)
        .option("subscribe", ",".join(options.streams))
        .option("startingOffsets", options.starting)
        .option("maxOffsetsPerTrigger", options.rows_per_batch)
        .option("failOnDataLoss", options.fail_on_loss)
        .option("readerName", options.reader or "")
        .load()
    )
    writer = (
        source.withColumn("date", to_date(col("timestamp")))
        .writeStream.option("path", options.to)
        .option("checkpointLocation", options.checkpoint)
    )
    if options.format == PARQUET:
        writer = writer.format("parquet").partitionBy(*PARTITION_BY)
    else:
        writer = writer.format(TABLE).options(**_table_options(options.catalog, options.table))
        writer = writer.option("format", options.format).option(
            "partitionBy", ",".join(PARTITION_BY)
        )
    if options.follow:
        return writer.trigger(processingTime=f"{options.interval_s} seconds").start()
    return writer.trigger(availableNow=True).start()


def _tell_positions(options: ArchiveOptions, end: dict[str, int]) -> None:
    """Tell the brokers how far a run has come that has ended. Spark says that a batch is committed
    when it plans the next one, so the source itself never tells of the last.

    People look at positions, and nothing depends on them: if no broker answers, the archive is done
    all the same.
    """
    if not options.reader or not end:
        return
    client = StreamClient(addresses_of(resolved(options.uri, "archive")), TELL_SECONDS_MAX)
    try:
        for stream, offset in end.items():
            client.bounds(stream, position=Position(options.reader, offset, True))
    except (RhizomeError, OSError):
        return
    finally:
        client.close()


def _format_at(path: str) -> str | None:
    """What is archived there; None if nothing is, or if only Spark's file systems reach the place,
    where an archive is always Parquet."""
    try:
        return found_format(path)
    except (OSError, ValueError):
        return None


def _table_options(catalog: str, table: str) -> dict[str, str]:
    return {name: text for name, text in (("catalog", catalog), ("table", table)) if text}


def read(spark: SparkSession, path: str, catalog: str = "", table: str = "") -> DataFrame:
    """The messages of an archive, of whatever format; `catalog` and `table` are for one in Iceberg
    that is not in the catalogue of its own directory."""
    path = absolute(path)
    found = _format_at(path)
    if found in (DELTA, ICEBERG) or (found is None and table):
        options = {} if found == DELTA else _table_options(catalog, table)
        rows = spark.read.format(TABLE).options(**options).load(path)
        return rows.select(*schema().fieldNames())
    # Without a schema Spark guesses types of queue names: 007 would be a number.
    is_here = "://" not in path and not spark_master.has_remote_driver(spark)
    if is_here and not (Path(path) / METADATA).is_dir():
        raise JobError(f"'{path}' is no archive: it has no {METADATA}; make one with archive")
    return spark.read.schema(schema()).parquet(path)


def read_messages(
    spark: SparkSession, path: str, catalog: str, table: str, uri: str, stream: str
) -> DataFrame:
    """The messages of an archive, or of a stream if `path` is empty."""
    if path:
        return read(spark, path, catalog, table)
    reader = spark.read.format("rhizome").option("uri", uri).option("subscribe", stream)
    return reader.load()


def _next_offsets(progress: Any) -> dict[str, int]:
    sources = progress_document(progress)["sources"]
    end = sources[0]["endOffset"] if sources else None
    return dict(end["next"]) if isinstance(end, dict) else {}
