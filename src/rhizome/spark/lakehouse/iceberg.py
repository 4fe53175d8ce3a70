"""Iceberg tables, committed by the driver with pyiceberg.

A commit is a new version of the table's metadata, which the catalogue takes only if the table is
still what it was when the commit began. It adds a snapshot with the files, and sets two things that
tell which batch of which query it was: the summary of the snapshot, for people and tools, and a
property of the table, which stays when snapshots expire.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from pyarrow import fs

from rhizome.printable_text import without_passwords
from rhizome.spark.lakehouse.parquet_files import DATA, DataFile, Layout, TableError
from rhizome.spark.lakehouse.table_format import (
    ConflictError,
    FileToRead,
    Mark,
    TableFormat,
    TableSnapshot,
    check_fit,
    check_partition_columns,
    nullable,
)
from rhizome.spark.lakehouse.table_location import normal_location

CATALOG_NAME: Final = "rhizome"
QUERY: Final = "rhizome.query"
BATCH: Final = "rhizome.batch"
_EPOCH: Final = date(1970, 1, 1)
# Of tables that are made here: many small commits must not make the metadata long.
_PROPERTIES: Final = {
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
# Iceberg has no smaller numbers.
_INSTEAD: Final = {pa.int8(): pa.int32(), pa.int16(): pa.int32()}
# SQLite was busy, or another writer made the catalogue's own tables or a row of them (a namespace,
# say) between this one's look and its own attempt.
_LOST_RACE: Final = re.compile(r"database is locked|\biceberg_\w+\b.*already exists|IntegrityError")
_NO_RETRIES: Final = {"commit.retry.num-retries": "0"}


class IcebergFormat(TableFormat):
    """An Iceberg table in a catalogue."""

    def prepare_once(self, rows: Any) -> Layout:
        if self.settings.path:
            self._make_data_directory(self.settings.path)
        with self._opened() as catalog:
            table = self._find(catalog)
            if table is None:
                self._create(catalog, rows)
                table = catalog.load_table(self.settings.table)
        location = self._location(table)
        schema = _physical(table.schema())
        check_fit(schema, nullable(rows, _INSTEAD), self.settings.called)
        columns = self._partition_columns(table)
        self._check_partitions(columns)
        check_partition_columns(columns, schema)
        self._make_data_directory(location)
        settings = self.settings
        return Layout(location, schema, columns, settings.compression, settings.storage)

    def commit_once(self, files: Sequence[DataFile], mark: Mark | None, overwrite: bool) -> bool:
        from pyiceberg.exceptions import CommitFailedException
        from pyiceberg.expressions import AlwaysTrue

        with self._opened() as catalog:
            table = catalog.load_table(self.settings.table)
            if mark is not None and committed(table, mark.name) >= mark.number:
                return False
            # pyiceberg must not try again by itself: it would not look for the mark.
            found = table.metadata
            table.metadata = found.model_copy(
                update={"properties": {**found.properties, **_NO_RETRIES}}
            )
            known = {} if mark is None else {QUERY: mark.name, BATCH: str(mark.number)}
            change = table.transaction()
            if overwrite and table.current_snapshot() is not None:
                change.delete(AlwaysTrue(), snapshot_properties=known)
            with change.update_snapshot(snapshot_properties=known).merge_append() as append:
                for file in files:
                    append.append_data_file(_entry(file, table, self._location(table)))
            if mark is not None:
                change.set_properties({f"{BATCH}.{mark.name}": str(mark.number)})
            try:
                change.commit_transaction()
            except CommitFailedException as error:
                raise ConflictError(str(error)) from None
        return True

    def snapshot(self) -> TableSnapshot:
        with self._opened() as catalog:
            table = self._existing(catalog)
            files = []
            for task in table.scan().plan_files():
                if task.delete_files:
                    raise TableError(
                        f"the {self.settings.called} has deleted rows in separate files, which "
                        "can't be read here: compact it first"
                    )
                size = task.file.file_size_in_bytes
                path = normal_location(task.file.file_path)
                files.append(FileToRead(path, size, _partition(task.file, table)))
        ids = {each.name: each.field_id for each in table.schema().fields}
        return TableSnapshot(table.schema().as_arrow(), tuple(files), ids)

    def vacuum(self, older_than_hours: int, dry_run: bool) -> list[str]:
        """Lets go of snapshots that are older, too; the current one stays."""
        with self._opened() as catalog:
            table = self._existing(catalog)
            before = datetime.now(UTC) - timedelta(hours=older_than_hours)
            if not dry_run:
                table.maintenance.expire_snapshots().older_than(before).commit()
                table.refresh()
            named = _named_files(table)
        filesystem, root = self.settings.storage.filesystem(self._location(table))
        selector = fs.FileSelector(root, recursive=True, allow_not_found=True)
        places = (f"{root}/{DATA}/", f"{root}/metadata/")
        left = [
            each.path
            for each in filesystem.get_file_info(selector)
            if each.is_file
            and each.path.startswith(places)
            and each.path.endswith((".parquet", ".avro"))
            and each.path not in named
            and each.mtime < before
        ]
        if not dry_run:
            for path in left:
                filesystem.delete_file(path)
        return [path.removeprefix(f"{root}/") for path in left]

    # --- the table

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        """The catalogue, for a while. Its failures name the table; a lost race is a conflict."""
        try:
            with contextlib.closing(self._catalog()) as catalog:
                yield catalog
        except ImportError as error:
            raise TableError(
                "Iceberg tables need the package pyiceberg on the driver; install it with: "
                f"pip install 'rhizomemq[iceberg]' ({error})"
            ) from None
        except Exception as error:
            text = without_passwords(str(error))
            if _LOST_RACE.search(f"{type(error).__name__}: {text}"):
                raise ConflictError(text) from None
            if type(error).__module__.partition(".")[0] in ("sqlalchemy", "requests", "pyiceberg"):
                raise TableError(f"the catalogue of the {self.settings.called}: {text}") from None
            raise

    def _catalog(self) -> Any:
        from pyiceberg.catalog import load_catalog

        settings = self.settings
        is_rest = settings.catalog.startswith(("http://", "https://"))
        properties = {
            "type": "rest" if is_rest else "sql",
            "uri": settings.catalog,
            **({"warehouse": settings.path} if settings.path and not is_rest else {}),
            **settings.storage.iceberg_properties(),
            **settings.catalog_properties,
        }
        return load_catalog(properties.pop("name", CATALOG_NAME), **properties)

    def _find(self, catalog: Any) -> Any:
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return catalog.load_table(self.settings.table)
        except NoSuchTableError:
            return None

    def _existing(self, catalog: Any) -> Any:
        table = self._find(catalog)
        if table is None:
            raise TableError(f"there is no {self.settings.called}")
        return table

    def _create(self, catalog: Any, rows: Any) -> None:
        columns = self.settings.partition_by or ()
        check_partition_columns(columns, rows)
        name = self.settings.table
        try:
            catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
            change = catalog.create_table_transaction(
                name, rows, location=self.settings.path or None, properties=_PROPERTIES
            )
            with change.update_spec() as spec:
                for column in columns:
                    spec.add_identity(column)
            change.commit_transaction()
        except Exception as error:
            if self._find(catalog) is not None:  # somebody else has just made it
                return
            if isinstance(error, (TypeError, ValueError)):
                called = self.settings.called
                raise TableError(f"the {called} can't hold these rows: {error}") from None
            raise

    def _location(self, table: Any) -> str:
        return normal_location(table.location())

    def _partition_columns(self, table: Any) -> tuple[str, ...]:
        for field in table.spec().fields:
            if str(field.transform) != "identity":
                raise TableError(
                    f"the {self.settings.called} is partitioned by {field.transform} of a column; "
                    "only columns themselves work here"
                )
        names = (table.schema().find_column_name(each.source_id) for each in table.spec().fields)
        return tuple(names)


def committed(table: Any, name: str) -> int:
    """The highest batch of a query or write that the table has; -1 if none."""
    kept = int(table.metadata.properties.get(f"{BATCH}.{name}", -1))
    for each in table.metadata.snapshots:
        summary = each.summary
        if summary is not None and summary.additional_properties.get(QUERY) == name:
            kept = max(kept, int(summary.additional_properties.get(BATCH, -1)))
    return kept


def _physical(schema: Any) -> Any:
    """The columns as they are in files: with their numbers."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return schema_to_pyarrow(schema, include_field_ids=True)


def _entry(file: DataFile, table: Any, location: str) -> Any:
    """What a manifest says of a file."""
    from pyiceberg.io.pyarrow import (
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )
    from pyiceberg.manifest import DataFile as ManifestFile
    from pyiceberg.manifest import DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    schema = table.schema()
    statistics = data_file_statistics_from_parquet_metadata(
        file.footer,
        compute_statistics_plan(schema, table.metadata.properties),
        parquet_path_to_id_mapping(schema),
    )
    return ManifestFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{location}/{file.path}",
        file_format=FileFormat.PARQUET,
        partition=Record(*(_days(value) for value in file.partition)),
        file_size_in_bytes=file.size,
        sort_order_id=None,
        spec_id=table.spec().spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def _days(value: Any) -> Any:
    """A date as Iceberg counts it."""
    return (value - _EPOCH).days if isinstance(value, date) else value


def _partition(file: Any, table: Any) -> dict[str, Any]:
    """Values of partition columns, which files that others have added may lack."""
    from pyiceberg.types import DateType

    schema = table.schema()
    found = {}
    for position, field in enumerate(table.specs()[file.spec_id].fields):
        if str(field.transform) == "identity":
            column = schema.find_field(field.source_id)
            value = file.partition[position]
            is_date = isinstance(column.field_type, DateType) and value is not None
            found[column.name] = _EPOCH + timedelta(days=value) if is_date else value
    return found


def _named_files(table: Any) -> set[str]:
    """Paths of all files that any snapshot names."""
    found: set[str] = set()
    for snapshot in table.metadata.snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in found:
                continue
            found.add(manifest.manifest_path)
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
            found |= {entry.data_file.file_path for entry in entries}
    return {normal_location(path).partition("://")[2] or normal_location(path) for path in found}
