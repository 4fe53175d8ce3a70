"""What a table format must do, and what all of them share: schemas that fit, commits that are made
once and repeated after conflicts.
"""

from __future__ import annotations

import random
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyarrow import fs

from rhizome.spark.amqp_socket import wait_s
from rhizome.spark.lakehouse.parquet_files import DATA, DataFile, Layout, TableError
from rhizome.spark.lakehouse.table_location import is_remote
from rhizome.spark.lakehouse.table_options import DELTA, TableSettings

T = TypeVar("T")

COMMITS_MAX: Final = 50
"""A commit that loses against so many others gives up."""
PAUSE_SECONDS_MAX: Final = 2.0
_PAUSE_SECONDS: Final = 0.02
# Arrow prints one type in several ways, by who made it.
_SAME_TYPE: Final = (
    (re.compile(r"large_| not null| \('[^)]*'\)"), ""),
    (re.compile(r"list<\w+: "), "list<"),
)


class ConflictError(TableError):
    """Somebody else has committed meanwhile; the commit is tried again."""


class SchemaError(TableError):
    """Rows and table have different columns; the text names both."""


@dataclass(frozen=True)
class Mark:
    """What makes a commit known again: who (query or write), and the number of its batch. Of each
    `name` the highest `number` is kept in the table."""

    name: str
    number: int


@dataclass(frozen=True)
class FileToRead:
    """A file of a snapshot, with the values that partition columns have in all its rows."""

    path: str
    size: int
    partition: dict[str, Any]


@dataclass(frozen=True)
class TableSnapshot:
    """A table at one moment. `ids` has the number of each column, where columns are known by
    numbers and may have been renamed."""

    schema: Any
    files: tuple[FileToRead, ...]
    ids: dict[str, int]


class TableFormat(ABC):
    """A table, as the driver deals with it."""

    def __init__(self, settings: TableSettings) -> None:
        self.settings = settings

    @abstractmethod
    def prepare_once(self, rows: Any) -> Layout:
        """As `prepare`; raises ConflictError if another was faster."""

    @abstractmethod
    def commit_once(self, files: Sequence[DataFile], mark: Mark | None, overwrite: bool) -> bool:
        """Commit; False if the table has the mark already. Raises ConflictError if another was
        faster, in which case nothing has happened."""

    @abstractmethod
    def snapshot(self) -> TableSnapshot:
        """What the table has now."""

    @abstractmethod
    def vacuum(self, older_than_hours: int, dry_run: bool) -> list[str]:
        """Remove files that no commit names and that are older; which these are."""

    def prepare(self, rows: Any) -> Layout:
        """Make the table if it isn't there; raises SchemaError if rows of this schema don't fit."""
        return self._through_conflicts(lambda: self.prepare_once(rows))

    def commit(self, files: Sequence[DataFile], mark: Mark | None, overwrite: bool) -> bool:
        """Have the files count, all at once; False if the table has the mark already."""
        return self._through_conflicts(lambda: self.commit_once(files, mark, overwrite))

    def _through_conflicts(self, do: Callable[[], T]) -> T:
        last = ""
        for attempt in range(COMMITS_MAX):
            try:
                return do()
            except ConflictError as conflict:
                last = str(conflict)
                pause_s = min(PAUSE_SECONDS_MAX, _PAUSE_SECONDS * 2**attempt)
                wait_s(random.uniform(0, pause_s))
        raise TableError(
            f"{COMMITS_MAX} commits to the {self.settings.called} lost against others, the last "
            f"one with: {last}. Give those who write to it longer intervals"
        )

    def _check_partitions(self, partition_by: Sequence[str]) -> None:
        """What the user wants is what the table has."""
        asked = self.settings.partition_by
        if asked is not None and asked != tuple(partition_by):
            has = ",".join(partition_by) or "nothing"
            raise TableError(
                f"the {self.settings.called} is partitioned by {has}, not by {','.join(asked)}"
            )

    def _make_data_directory(self, location: str) -> None:
        """On the driver only: a task that does not find it is on a machine that has another disk
        under this path, and must fail."""
        if not is_remote(location):
            fs.LocalFileSystem().create_dir(f"{location}/{DATA}", recursive=True)


def open_table(settings: TableSettings) -> TableFormat:
    """The table that the settings name, whether it exists or not."""
    if settings.format == DELTA:
        from rhizome.spark.lakehouse.delta import DeltaFormat

        return DeltaFormat(settings)
    from rhizome.spark.lakehouse.iceberg import IcebergFormat

    return IcebergFormat(settings)


# --- schemas


def type_text(kind: Any) -> str:
    """A type of Arrow, the same text for all that hold the same values."""
    text = str(kind)
    for pattern, replacement in _SAME_TYPE:
        text = pattern.sub(replacement, text)
    return text


def nullable(schema: Any, instead: Mapping[Any, Any] | None = None) -> Any:
    """The schema with nulls allowed everywhere, and with types `instead` of those that a format
    does not have. A new table has this one, as Spark's own formats have it: whether a column of a
    DataFrame can be null says nothing of the next DataFrame."""
    known = instead or {}
    return pa.schema([pa.field(each.name, _nullable(each.type, known)) for each in schema])


def _nullable(kind: Any, instead: Mapping[Any, Any]) -> Any:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _nullable(each.type, instead)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(_nullable(kind.key_type, instead), _nullable(kind.item_type, instead))
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _nullable(kind.value_type, instead)))
    return instead.get(kind, kind)


def check_fit(table: Any, rows: Any, called: str) -> None:
    """Make sure that the rows have the columns of the table, in whatever order."""
    has = {each.name: type_text(each.type) for each in table}
    given = {each.name: type_text(each.type) for each in rows}
    differences = [
        f"'{name}' is {has.get(name, 'missing')} in the table and {given.get(name, 'missing')} in "
        "the rows"
        for name in {**has, **given}
        if has.get(name) != given.get(name)
    ]
    if differences:
        raise SchemaError(
            f"the rows don't fit the {called}: {'; '.join(differences)}. The table has "
            f"({_columns_text(has)}), the rows have ({_columns_text(given)}); select and cast what "
            "fits, or write to another table"
        )


def _columns_text(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def check_partition_columns(columns: Sequence[str], rows: Any) -> None:
    """Make sure that a table of these rows can be partitioned by them."""
    for name in columns:
        if name not in rows.names:
            raise TableError(
                f"partitionBy names '{name}', and the rows have {', '.join(rows.names)}"
            )
        kind = rows.field(name).type
        if not (
            pa.types.is_string(kind)
            or pa.types.is_large_string(kind)
            or pa.types.is_integer(kind)
            or pa.types.is_boolean(kind)
            or pa.types.is_date32(kind)
        ):
            raise TableError(
                f"column '{name}' is {type_text(kind)}; partitionBy takes texts, whole numbers, "
                "booleans and dates"
            )
