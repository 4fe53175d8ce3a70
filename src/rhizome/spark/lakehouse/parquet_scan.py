"""Files of a table, read by tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import InputPartition

from rhizome.spark.lakehouse.parquet_files import TableError
from rhizome.spark.lakehouse.table_format import FileToRead
from rhizome.spark.lakehouse.table_location import Storage

ROWS_MAX: Final = 8192
TASK_BYTES_MAX: Final = 128 << 20
TASK_FILES_MAX: Final = 64
_FIELD_ID: Final = b"PARQUET:field_id"


@dataclass
class FilesPartition(InputPartition):
    """The files that a task reads."""

    files: list[FileToRead]


def partitions(files: Sequence[FileToRead]) -> list[FilesPartition]:
    """Files for tasks: each has a few, or a large one."""
    found: list[FilesPartition] = []
    taken_bytes = 0
    for file in files:
        full = taken_bytes + file.size > TASK_BYTES_MAX
        if not found or full or len(found[-1].files) >= TASK_FILES_MAX:
            found.append(FilesPartition([]))
            taken_bytes = 0
        found[-1].files.append(file)
        taken_bytes += file.size
    return found


@dataclass(frozen=True)
class Scan:
    """How files become rows of `schema`. A column is found by its number in `ids`, which outlives
    its name, or else by its name; one that a file lacks has the partition's value, or is null."""

    schema: Any
    ids: dict[str, int]
    storage: Storage

    def rows(self, file: FileToRead) -> Iterator[Any]:
        filesystem, path = self.storage.filesystem(file.path)
        try:
            source = filesystem.open_input_file(path)
        except FileNotFoundError:
            raise TableError(
                f"'{file.path}' is not there: a table's path must be reachable by all executors; "
                "or the file was removed since the query began"
            ) from None
        with source, pq.ParquetFile(source) as parquet:
            places = self._places(parquet.schema_arrow)
            wanted = sorted(set(places.values()))
            names = [parquet.schema_arrow.field(each).name for each in wanted]
            dotted = any("." in name for name in names)
            columns = None if dotted else names
            for batch in parquet.iter_batches(ROWS_MAX, columns=columns):
                yield self._batch(batch, places, parquet.schema_arrow, file)

    def _places(self, found: Any) -> dict[str, int]:
        """Column -> its place in a file."""
        by_name = {each.name: place for place, each in enumerate(found)}
        by_id = {
            int((each.metadata or {})[_FIELD_ID]): place
            for place, each in enumerate(found)
            if _FIELD_ID in (each.metadata or {})
        }
        places = {}
        for name in self.schema.names:
            place = by_id.get(self.ids.get(name, -1)) if by_id and self.ids else by_name.get(name)
            if place is not None:
                places[name] = place
        return places

    def _batch(self, batch: Any, places: dict[str, int], found: Any, file: FileToRead) -> Any:
        columns = []
        for field in self.schema:
            if field.name in places:
                column = batch.column(found.field(places[field.name]).name).cast(field.type)
            else:
                value = pa.scalar(file.partition.get(field.name), field.type)
                column = pa.repeat(value, batch.num_rows)
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)
