"""Parquet files of a table, written by a task.

A file has rows of one partition of the table, and a name that no other attempt uses: a task that is
retried leaves files that no commit names. Partition columns are in the file as well, so that it can
be read without the table's metadata.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rhizome.errors import RhizomeError
from rhizome.spark.lakehouse.table_location import Storage

DATA: Final = "data"
GROUP_ROWS_MAX: Final = 128 << 10
GROUP_BYTES_MAX: Final = 64 << 20
"""Rows are gathered into row groups of so many rows or bytes in memory."""
FILE_BYTES_MAX: Final = 1 << 30
"""A file that has taken so many bytes in memory ends; compressed it is smaller."""
FILES_OPEN_MAX: Final = 64
"""A task that meets more partitions than this ends the oldest file, and begins another if rows of
its partition come again."""


class TableError(RhizomeError):
    """A table can't be written or read as asked; the text says which, why and what to do."""


@dataclass(frozen=True)
class Layout:
    """How tasks write: where to, with which columns (as they are in files), and partitioned how."""

    location: str
    schema: Any
    partition_by: tuple[str, ...]
    compression: str
    storage: Storage


@dataclass(frozen=True)
class DataFile:
    """A file that is complete. `path` is relative to the table's location, `partition` has a value
    for each partition column, `footer` is that of the file, with statistics."""

    path: str
    rows: int
    size: int
    partition: tuple[Any, ...]
    footer: Any


def write_files(layout: Layout, batches: Iterator[Any]) -> list[DataFile]:
    """Write rows; the files that they are in."""
    files = OpenFiles(layout)
    try:
        for batch in batches:
            files.add(batch.select(layout.schema.names).cast(layout.schema))
        return files.finish()
    except BaseException:
        files.discard()
        raise


class OpenFiles:
    """Files that are being written, by partition. Invariant: at most FILES_OPEN_MAX are open."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._filesystem, self._root = layout.storage.filesystem(layout.location)
        self._open: dict[tuple[Any, ...], _OpenFile] = {}
        self._done: list[DataFile] = []

    def add(self, batch: Any) -> None:
        for partition, rows in by_partition(batch, self._layout.partition_by):
            file = self._open.get(partition) or self._begin(partition)
            file.add(rows)
            if file.taken_bytes >= FILE_BYTES_MAX:
                self._end(partition)

    def finish(self) -> list[DataFile]:
        for partition in list(self._open):
            self._end(partition)
        return self._done

    def discard(self) -> None:
        """Remove what was written, as far as that works: a task that is killed can't either."""
        for file in self._open.values():
            file.drop()
        for path in [*(file.path for file in self._open.values()), *(d.path for d in self._done)]:
            try:
                self._filesystem.delete_file(f"{self._root}/{path}")
            except OSError:
                pass

    def _begin(self, partition: tuple[Any, ...]) -> _OpenFile:
        if len(self._open) >= FILES_OPEN_MAX:
            self._end(next(iter(self._open)))
        path = f"{DATA}/{uuid.uuid4().hex}.parquet"
        try:
            stream = self._filesystem.open_output_stream(f"{self._root}/{path}")
        except OSError as error:
            raise TableError(
                f"a task on {socket.gethostname()} can't write to '{self._layout.location}' "
                f"({error}): a table's path must be reachable by the driver and by all executors, "
                "under the same name"
            ) from None
        self._open[partition] = _OpenFile(path, partition, stream, self._layout)
        return self._open[partition]

    def _end(self, partition: tuple[Any, ...]) -> None:
        self._done.append(self._open[partition].finish())
        del self._open[partition]


class _OpenFile:
    """One file. Rows wait until they make a row group."""

    def __init__(self, path: str, partition: tuple[Any, ...], stream: Any, layout: Layout) -> None:
        self.path = path
        self.taken_bytes = 0
        self._partition = partition
        self._stream = stream
        self._schema = layout.schema
        self._footers: list[Any] = []
        # Arrow's own copy of the schema is left out: the file looks the same to every reader.
        self._writer = pq.ParquetWriter(
            stream,
            layout.schema,
            compression=layout.compression,
            store_schema=False,
            metadata_collector=self._footers,
        )
        self._rows: list[Any] = []
        self._rows_count = 0
        self._rows_bytes = 0

    def add(self, rows: Any) -> None:
        self._rows.append(rows)
        self._rows_count += rows.num_rows
        self._rows_bytes += rows.nbytes
        if self._rows_count >= GROUP_ROWS_MAX or self._rows_bytes >= GROUP_BYTES_MAX:
            self._flush()

    def finish(self) -> DataFile:
        self._flush()
        self._writer.close()
        size = self._stream.tell()
        self._stream.close()
        footer = self._footers[0]
        return DataFile(self.path, footer.num_rows, size, self._partition, footer)

    def drop(self) -> None:
        """Close it, complete or not."""
        try:
            self._writer.close()
            self._stream.close()
        except (OSError, pa.ArrowException):
            pass

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(pa.Table.from_batches(self._rows, self._schema))
        self.taken_bytes += self._rows_bytes
        self._rows, self._rows_count, self._rows_bytes = [], 0, 0


def by_partition(batch: Any, columns: tuple[str, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The rows of a batch, divided by the values of `columns`."""
    if not batch.num_rows:
        return
    if not columns:
        yield (), batch
        return
    keys = pa.Table.from_batches([batch.select(list(columns))])
    groups = keys.group_by(list(columns), use_threads=False).aggregate([]).to_pylist()
    for group in groups:
        values = tuple(group[name] for name in columns)
        if len(groups) == 1:
            yield values, batch
            return
        masks = [_is_value(batch.column(name), group[name]) for name in columns]
        yield values, batch.filter(reduce(pc.and_, masks))


def _is_value(column: Any, value: Any) -> Any:
    if value is None:
        return column.is_null()
    return pc.fill_null(pc.equal(column, pa.scalar(value, column.type)), False)
