"""Delta tables, committed by the driver with deltalake (delta-rs).

A commit is the next file of the table's log, made only if nobody else has made it. It holds the
files and an application transaction: the query's id and the number of its batch. Both are checked
on the state that the commit is based on, so a batch is in the log at most once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import date, datetime
from typing import Any, Final
from urllib.parse import quote, unquote

import pyarrow as pa

from rhizome.spark.lakehouse.parquet_files import DataFile, Layout, TableError
from rhizome.spark.lakehouse.table_format import (
    ConflictError,
    FileToRead,
    Mark,
    TableFormat,
    TableSnapshot,
    check_fit,
    check_partition_columns,
)
from rhizome.spark.lakehouse.table_location import exists, is_remote

TEXT_LENGTH_MAX: Final = 32
"""Of a text so many characters are kept as a bound."""
_LAST_CHARACTER: Final = "\U0010ffff"
_UNREAD_FEATURES: Final = ("columnMapping", "deletionVectors")


class DeltaFormat(TableFormat):
    """A Delta table at a path."""

    def prepare_once(self, rows: Any) -> Layout:
        normal = _normal(rows, self.settings.called)
        if not self._exists():
            self._create(normal)
        table = self._open()
        self._check_writable(table)
        check_fit(_arrow(table.schema()), normal, self.settings.called)
        columns = tuple(table.metadata().partition_columns)
        self._check_partitions(columns)
        check_partition_columns(columns, normal)
        self._make_data_directory(self.settings.path)
        settings = self.settings
        schema = _arrow(table.schema())
        return Layout(settings.path, schema, columns, settings.compression, settings.storage)

    def commit_once(self, files: Sequence[DataFile], mark: Mark | None, overwrite: bool) -> bool:
        deltalake = _deltalake()
        table = self._open()
        if mark is not None and _number(table, mark.name) >= mark.number:
            return False
        columns = table.metadata().partition_columns
        done = [deltalake.Transaction(mark.name, mark.number)] if mark is not None else None
        # deltalake must not try again by itself: it would not look for the mark.
        properties = deltalake.CommitProperties(max_commit_retries=0, app_transactions=done)
        try:
            table.create_write_transaction(
                [self._action(each, columns) for each in files],
                "overwrite" if overwrite else "append",
                table.schema(),
                columns,
                commit_properties=properties,
            )
        except _errors().CommitFailedError as error:
            raise ConflictError(str(error)) from None
        return True

    def snapshot(self) -> TableSnapshot:
        table = self._existing()
        features = table.protocol().reader_features or ()
        unread = [name for name in _UNREAD_FEATURES if name in features]
        if unread:
            raise TableError(
                f"the {self.settings.called} uses {unread[0]}, which can't be read here"
            )
        actions = pa.table(table.get_add_actions()).to_pylist()
        files = [
            FileToRead(
                _joined(self.settings.path, unquote(each["path"])),
                each["size_bytes"],
                each.get("partition") or {},
            )
            for each in actions
        ]
        return TableSnapshot(_arrow(table.schema()), tuple(files), {})

    def vacuum(self, older_than_hours: int, dry_run: bool) -> list[str]:
        table, settings = self._existing(), self.settings
        # deltalake names files that an earlier run has removed, too.
        found = [
            unquote(path)
            for path in self._unnamed(table, older_than_hours, True)
            if exists(settings.storage, settings.path, unquote(path))
        ]
        if found and not dry_run:
            self._unnamed(table, older_than_hours, False)
        return found

    def _unnamed(self, table: Any, older_than_hours: int, dry_run: bool) -> list[str]:
        return list(
            table.vacuum(
                older_than_hours, dry_run=dry_run, enforce_retention_duration=False, full=True
            )
        )

    # --- the table

    def _options(self) -> dict[str, str] | None:
        return self.settings.storage.delta_options() or None

    def _exists(self) -> bool:
        found = _deltalake().DeltaTable.is_deltatable(self.settings.path, self._options())
        return bool(found)

    def _open(self) -> Any:
        return _deltalake().DeltaTable(self.settings.path, storage_options=self._options())

    def _existing(self) -> Any:
        if not self._exists():
            raise TableError(f"there is no {self.settings.called}")
        return self._open()

    def _create(self, schema: Any) -> None:
        settings = self.settings
        check_partition_columns(settings.partition_by or (), schema)
        try:
            _deltalake().DeltaTable.create(
                settings.path,
                schema=schema,
                mode="ignore",
                partition_by=list(settings.partition_by or ()),
                storage_options=self._options(),
            )
        except _errors().DeltaError:
            if not self._exists():  # else somebody else has just made it
                raise

    def _check_writable(self, table: Any) -> None:
        """Rules that a writer must keep, and that are not kept here."""
        for name, value in table.metadata().configuration.items():
            if name.startswith("delta.constraints."):
                raise TableError(
                    f"the {self.settings.called} has a constraint, {name}, not kept here"
                )
            if name == "delta.columnMapping.mode" and value != "none":
                raise TableError(
                    f"the {self.settings.called} uses columnMapping, not supported here"
                )

    def _action(self, file: DataFile, columns: Sequence[str]) -> Any:
        if "" in file.partition:
            raise TableError(
                f"a partition column of the {self.settings.called} has an empty text, which Delta "
                "takes for null: replace it, or partition by other columns"
            )
        texts = [_partition_text(value) for value in file.partition]
        return _deltalake().AddAction(
            quote(file.path),
            file.size,
            dict(zip(columns, texts, strict=True)),
            int(time.time() * 1000),
            True,
            json.dumps(statistics(file, columns)),
        )


def _number(table: Any, name: str) -> int:
    found = table.transaction_version(name)
    return -1 if found is None else int(found)


def _joined(location: str, path: str) -> str:
    return path if is_remote(path) or path.startswith("/") else f"{location}/{path}"


def _partition_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- statistics: how readers pass over files


def statistics(file: DataFile, left_out: Sequence[str] = ()) -> dict[str, Any]:
    """Rows, nulls, and the least and greatest value of each column that has an order.

    All such columns or none: delta-rs finds no row of a column that has no bounds in a file where
    other columns have some. So a file with a column whose bounds are not known has none at all.
    """
    counted = {"numRecords": file.rows}
    ranges = [_Range(each.name, each.type) for each in _ordered(file, left_out)]
    for each in ranges:
        each.look(file.footer)
        if not each.is_known(file.rows):
            return counted
    bounded = [each for each in ranges if each.least is not None]
    return {
        **counted,
        "minValues": {each.name: _statistic(each.least) for each in bounded},
        "maxValues": {each.name: _statistic(each.greatest, True) for each in bounded},
        "nullCount": {each.name: each.nulls for each in ranges},
    }


def _ordered(file: DataFile, left_out: Sequence[str]) -> list[Any]:
    """The columns that have bounds: all but those of bytes, lists and maps."""
    return [
        each
        for each in file.footer.schema.to_arrow_schema()
        if each.name not in left_out
        and not pa.types.is_binary(each.type)
        and not pa.types.is_list(each.type)
        and not pa.types.is_map(each.type)
    ]


class _Range:
    """Bounds of one column over all row groups of a file."""

    def __init__(self, name: str, kind: Any) -> None:
        self.name = name
        self.least: Any = None
        self.greatest: Any = None
        self.nulls = 0
        # Not numbers with fractions (one may be no number), nor what is inside of structs.
        self._is_known = (
            pa.types.is_integer(kind)
            or pa.types.is_boolean(kind)
            or pa.types.is_string(kind)
            or pa.types.is_date32(kind)
            or pa.types.is_timestamp(kind)
        )

    def look(self, footer: Any) -> None:
        if not self._is_known:
            return
        first = footer.row_group(0)
        paths = [first.column(place).path_in_schema for place in range(first.num_columns)]
        place = paths.index(self.name)
        for group in range(footer.num_row_groups):
            rows = footer.row_group(group)
            found = rows.column(place).statistics
            if found is None or not found.has_null_count:
                self._is_known = False
                return
            self.nulls += found.null_count
            if found.has_min_max:
                self._widen(found.min, found.max)
            elif found.null_count < rows.num_rows:
                self._is_known = False

    def _widen(self, least: Any, greatest: Any) -> None:
        self.least = least if self.least is None else min(self.least, least)
        self.greatest = greatest if self.greatest is None else max(self.greatest, greatest)

    def is_known(self, rows: int) -> bool:
        return self._is_known and (self.least is not None or self.nulls == rows)


def _statistic(value: Any, is_greatest: bool = False) -> Any:
    """As the log has it. A long text is cut, upwards if it is the greatest."""
    if isinstance(value, str) and len(value) > TEXT_LENGTH_MAX:
        return value[:TEXT_LENGTH_MAX] + (_LAST_CHARACTER * 2 if is_greatest else "")
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.%f") + ("Z" if value.tzinfo else "")
    return value.isoformat() if isinstance(value, date) else value


# --- deltalake


class _deltalake:  # noqa: N801 - stands for the module, which only the driver has
    """The package's names, found when they are needed."""

    def __getattr__(self, name: str) -> Any:
        try:
            import deltalake
            from deltalake import transaction
        except ImportError:
            raise TableError(
                "Delta tables need the package deltalake on the driver; install it with: "
                "pip install 'rhizomemq[delta]'"
            ) from None
        return getattr(transaction if hasattr(transaction, name) else deltalake, name)


def _errors() -> Any:
    from deltalake import exceptions

    return exceptions


def _arrow(schema: Any) -> Any:
    return pa.schema(schema.to_arrow())


def _normal(rows: Any, called: str) -> Any:
    """The schema with the types that Delta has."""
    deltalake = _deltalake()
    try:
        return _arrow(deltalake.Schema.from_arrow(rows))
    except Exception as error:
        if isinstance(error, TableError):
            raise
        raise TableError(f"the {called} can't hold these rows: {error}") from None
