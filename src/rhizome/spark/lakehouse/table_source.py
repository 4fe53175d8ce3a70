"""The format `rhizome.table`: Delta and Iceberg tables, read and written without any JAR."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from rhizome.spark import schema as schemas
from rhizome.spark.lakehouse import parquet_scan
from rhizome.spark.lakehouse.parquet_files import DataFile, Layout, write_files
from rhizome.spark.lakehouse.table_format import Mark, TableSnapshot, nullable, open_table
from rhizome.spark.lakehouse.table_options import NAME, TableSettings, table_settings
from rhizome.spark.shipment.zip_pickle import ZipImported


class TableSource(DataSource):
    """Delta and Iceberg tables.

    Options:
        path         where the table is: a directory that driver and executors share, or an address
                     of an object store (s3://bucket/table, gs://..., abfss://...)
        format       delta or iceberg; default: what is at the path, else delta
        partitionBy  columns that a new table is partitioned by, comma-separated
        compression  of files: zstd (default), snappy, gzip, none
        writeId      batches: a name under which a second run writes nothing
        catalog      Iceberg: a database (sqlite:////dir/catalog.db, postgresql://...) or a REST
                     catalogue (https://...); default: catalog.db in the table's directory
        table        Iceberg: the table's name in it; default: default.LAST_PART_OF_PATH
        catalog.X    Iceberg: property X of the catalogue, as pyiceberg has it (token, warehouse)
        storage.X    S3: access_key_id, secret_access_key, session_token, region, endpoint; default:
                     as the environment says

    Guarantee: a batch of a streaming query is in the table once, whole, however often Spark repeats
    it; files of attempts that failed don't count. Modes append and overwrite; streaming in append
    and complete mode.

    Example:
        df.writeStream.format("rhizome.table").option("format", "delta")
          .option("checkpointLocation", "/lake/_checkpoints/orders").start("/lake/orders")
    """

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        found = open_table(table_settings(self.options)).snapshot()
        return from_arrow_schema(found.schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        settings = table_settings(self.options)
        snapshot = open_table(settings).snapshot()
        offered = from_arrow_schema(snapshot.schema)
        schemas.check_columns(schema, offered, f"the {settings.called}")
        return TableReader(settings, snapshot, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        settings = table_settings(self.options)
        return BatchTableWriter(settings, prepared(settings, schema), overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        settings = table_settings(self.options)
        return StreamTableWriter(settings, prepared(settings, schema), overwrite)


def prepared(settings: TableSettings, schema: StructType) -> Layout:
    """Make sure of the table, on the driver, before rows are written."""
    return open_table(settings).prepare(nullable(schemas.arrow_schema(schema)))


@dataclass
class TaskFiles(WriterCommitMessage):
    """The files that a task has written, and for which query."""

    query: str = ""
    files: list[DataFile] = field(default_factory=list)


def _files(messages: Sequence[WriterCommitMessage | None]) -> list[DataFile]:
    return [file for each in messages if isinstance(each, TaskFiles) for file in each.files]


class BatchTableWriter(DataSourceArrowWriter):
    """Writes a DataFrame. A re-run with the same `writeId` writes nothing."""

    def __init__(self, settings: TableSettings, layout: Layout, overwrite: bool) -> None:
        self._settings = settings
        self._layout = layout
        self._overwrite = overwrite

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return TaskFiles(files=write_files(self._layout, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        name = self._settings.write_id
        files = _files(messages)
        if files or self._overwrite:
            mark = Mark(name, 0) if name else None
            open_table(self._settings).commit(files, mark, self._overwrite)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Files stay: the commit may have been made though it was reported as failed. What no
        commit names does not count, and `vacuum` removes it."""


class StreamTableWriter(ZipImported, DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query, each as one commit."""

    def __init__(self, settings: TableSettings, layout: Layout, overwrite: bool) -> None:
        self._settings = settings
        self._layout = layout
        self._overwrite = overwrite

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None, "a streaming sink writes in tasks only"
        query = context.getLocalProperty("sql.streaming.queryId") or ""
        return TaskFiles(query, write_files(self._layout, iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        files = _files(messages)
        queries = {each.query for each in messages if isinstance(each, TaskFiles)}
        assert len(queries) <= 1, f"one batch of several queries: {queries}"
        if files or self._overwrite:
            mark = Mark(queries.pop(), batchId) if queries else None
            open_table(self._settings).commit(files, mark, self._overwrite)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """As for batches: files stay, and don't count unless a commit names them."""


class TableReader(DataSourceReader):
    """Reads the table as it was when the query was planned."""

    def __init__(
        self, settings: TableSettings, snapshot: TableSnapshot, schema: StructType
    ) -> None:
        ids = snapshot.ids
        self._scan = parquet_scan.Scan(schemas.arrow_schema(schema), ids, settings.storage)
        self._files = snapshot.files

    def partitions(self) -> Sequence[InputPartition]:
        return parquet_scan.partitions(self._files) or [parquet_scan.FilesPartition([])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, parquet_scan.FilesPartition)
        for file in partition.files:
            yield from self._scan.rows(file)
