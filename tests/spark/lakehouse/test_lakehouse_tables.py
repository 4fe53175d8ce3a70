"""Delta and Iceberg tables, without Spark: files, commits, what other programs read of them."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rhizome.spark.data_source_options import OptionError
from rhizome.spark.lakehouse import parquet_files
from rhizome.spark.lakehouse.parquet_files import DataFile, Layout, TableError
from rhizome.spark.lakehouse.parquet_scan import Scan, partitions
from rhizome.spark.lakehouse.table_format import (
    COMMITS_MAX,
    ConflictError,
    FileToRead,
    Mark,
    SchemaError,
    TableFormat,
    nullable,
    open_table,
)
from rhizome.spark.lakehouse.table_location import Storage, normal_location
from rhizome.spark.lakehouse.table_options import (
    DELTA,
    ICEBERG,
    TableSettings,
    found_format,
    table_settings,
)
from tests.spark.rest_catalog import TOKEN, rest_catalog
from tests.spark.tables import FORMATS, iceberg_table, readers

SCHEMA = pa.schema(
    [
        ("queue", pa.string()),
        ("offset", pa.int64()),
        ("date", pa.date32()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("value", pa.binary()),
    ]
)
DAY = dt.date(2026, 11, 17)
NEXT_DAY = DAY + dt.timedelta(days=1)
NOON = dt.datetime(2026, 11, 17, 12, tzinfo=dt.UTC)
ODD_NAME = "0 07/%41=ü"


def batch(start: int, count: int, queue: str | None = "events", day: dt.date = DAY) -> Any:
    numbers = range(start, start + count)
    columns = (
        [queue] * count,
        list(numbers),
        [day] * count,
        [NOON + dt.timedelta(seconds=number) for number in numbers],
        [[("number", str(number))] for number in numbers],
        [b"%d" % number for number in numbers],
    )
    arrays = [pa.array(each, kind.type) for each, kind in zip(columns, SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=SCHEMA)


def settings(path: Path | str, kind: str, **options: str) -> TableSettings:
    given = {"path": str(path), "format": kind, "partitionBy": "queue,date"}
    return table_settings({**given, **options})


@pytest.fixture(params=FORMATS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def table(tmp_path: Path, kind: str) -> TableFormat:
    return open_table(settings(tmp_path / "table", kind))


def written(layout: Layout, *batches: Any) -> list[DataFile]:
    return parquet_files.write_files(layout, iter(batches))


def rows_of(table: TableFormat, *columns: str) -> list[tuple[Any, ...]]:
    """As this project reads them, in the order of the first column."""
    found = table.snapshot()
    schema = pa.schema([SCHEMA.field(name) for name in columns])
    scan = Scan(schema, found.ids, table.settings.storage)
    rows = [
        tuple(row.values())
        for file in found.files
        for part in scan.rows(file)
        for row in part.to_pylist()
    ]
    return sorted(rows, key=lambda row: row[0])


def offsets(table: TableFormat) -> list[int]:
    return [row[0] for row in rows_of(table, "offset")]


# --- exactly once


def test_each_program_reads_each_row_once(table: TableFormat) -> None:
    layout = table.prepare(SCHEMA)
    files = written(layout, batch(0, 5), batch(5, 5, day=NEXT_DAY), batch(10, 5, ODD_NAME))
    assert len(files) == 3
    assert table.commit(files, Mark("query", 0), False)
    expected = [
        (
            number,
            ODD_NAME if number >= 10 else "events",
            NEXT_DAY if 5 <= number < 10 else DAY,
            str(number),
            b"%d" % number,
        )
        for number in range(15)
    ]
    question = "SELECT \"offset\", queue, date, headers['number'], value FROM messages ORDER BY 1"
    for name, ask in readers(table.settings.format).items():
        assert ask(table.settings.path, question) == expected, name
    plain = [row[:3] for row in expected]
    assert rows_of(table, "offset", "queue", "date") == plain


def test_batch_that_comes_again_is_committed_once(table: TableFormat) -> None:
    layout = table.prepare(SCHEMA)
    assert table.commit(written(layout, batch(0, 3)), Mark("query", 0), False)
    assert table.commit(written(layout, batch(3, 3)), Mark("query", 1), False)
    for number in (0, 1):
        assert not table.commit(written(layout, batch(0, 6)), Mark("query", number), False)
    assert table.commit(written(layout, batch(6, 3)), Mark("another", 0), False)
    assert offsets(table) == list(range(9))


def test_iceberg_snapshot_tells_which_batch_it_was(tmp_path: Path) -> None:
    table = open_table(settings(tmp_path / "table", ICEBERG))
    table.commit(written(table.prepare(SCHEMA), batch(0, 3)), Mark("query", 7), False)
    summary = iceberg_table(table.settings.path).current_snapshot().summary
    assert summary.additional_properties["rhizome.query"] == "query"
    assert summary.additional_properties["rhizome.batch"] == "7"


def test_iceberg_knows_a_batch_again_when_its_snapshot_has_expired(tmp_path: Path) -> None:
    table = open_table(settings(tmp_path / "table", ICEBERG))
    layout = table.prepare(SCHEMA)
    table.commit(written(layout, batch(0, 3)), Mark("query", 7), False)
    table.commit(written(layout, batch(3, 3)), Mark("another", 0), False)
    table.vacuum(0, dry_run=False)
    assert len(iceberg_table(table.settings.path).metadata.snapshots) == 1
    assert not table.commit(written(layout, batch(0, 3)), Mark("query", 7), False)
    assert offsets(table) == list(range(6))


def test_two_who_commit_the_same_batch_at_once_commit_it_once(table: TableFormat) -> None:
    """A driver that was taken for dead wakes up while its successor commits."""
    layout = table.prepare(SCHEMA)
    files = [written(layout, batch(0, 10)) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda each: table.commit(each, Mark("query", 0), False), files))
    assert sorted(done) == [False, False, False, True]
    assert offsets(table) == list(range(10))


def test_many_writers_lose_no_commit(tmp_path: Path, kind: str) -> None:
    """All of them make the table, too."""

    def write(writer: int) -> None:
        table = open_table(settings(tmp_path / "table", kind))
        layout = table.prepare(SCHEMA)
        for number in range(5):
            files = written(layout, batch(writer * 100 + number * 10, 10))
            assert table.commit(files, Mark(f"query {writer}", number), False)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    expected = [writer * 100 + number for writer in range(4) for number in range(50)]
    assert offsets(open_table(settings(tmp_path / "table", kind))) == expected


def test_namespace_that_another_writer_makes_meanwhile_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catalogues of pyiceberg look for a namespace, and insert it then."""
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = f"sqlite:///{tmp_path}/catalog.db"
    open_table(settings(tmp_path / "one", ICEBERG, catalog=catalog)).prepare(SCHEMA)
    too_early = [False]
    exists = SqlCatalog.namespace_exists
    monkeypatch.setattr(
        SqlCatalog,
        "namespace_exists",
        lambda self, name: too_early.pop() if too_early else exists(self, name),
    )
    open_table(settings(tmp_path / "two", ICEBERG, catalog=catalog)).prepare(SCHEMA)
    assert not too_early


class Unlucky(TableFormat):
    """A table to which somebody else always commits first."""

    tried = 0

    def prepare_once(self, rows: Any) -> Layout:
        raise AssertionError

    def snapshot(self) -> Any:
        raise AssertionError

    def vacuum(self, older_than_hours: int, dry_run: bool) -> list[str]:
        raise AssertionError

    def commit_once(self, files: Any, mark: Any, overwrite: bool) -> bool:
        self.tried += 1
        raise ConflictError("version 7 exists")


def test_commit_that_always_loses_gives_up_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rhizome.spark.lakehouse.table_format.PAUSE_SECONDS_MAX", 0.0)
    table = Unlucky(settings(tmp_path / "table", DELTA))
    with pytest.raises(TableError, match=r"lost against others.*version 7 exists"):
        table.commit([], None, False)
    assert table.tried == COMMITS_MAX


def test_overwrite_replaces_all_rows(table: TableFormat) -> None:
    layout = table.prepare(SCHEMA)
    table.commit(written(layout, batch(0, 5)), None, True)
    table.commit(written(layout, batch(5, 5, "other")), None, True)
    assert offsets(table) == list(range(5, 10))
    table.commit([], None, True)
    assert offsets(table) == []


# --- files that don't count


def test_files_that_no_commit_names_do_not_count_and_can_be_removed(table: TableFormat) -> None:
    layout = table.prepare(SCHEMA)
    left = [each.path for each in written(layout, batch(0, 5))]
    table.commit(written(layout, batch(0, 5)), Mark("query", 0), False)
    assert offsets(table) == list(range(5))
    path = Path(table.settings.path)
    assert table.vacuum(24, dry_run=False) == []  # a batch may be on its way
    assert table.vacuum(0, dry_run=True) == left
    assert all((path / each).exists() for each in left)
    assert table.vacuum(0, dry_run=False) == left
    assert not any((path / each).exists() for each in left)
    assert table.vacuum(0, dry_run=False) == []
    assert offsets(table) == list(range(5))


def test_task_that_fails_removes_what_it_wrote(table: TableFormat) -> None:
    layout = table.prepare(SCHEMA)

    def rows() -> Iterator[Any]:
        yield batch(0, 5)
        yield batch(5, 5, "other")
        raise RuntimeError("lost a partition of the input")

    with pytest.raises(RuntimeError, match="lost a partition"):
        parquet_files.write_files(layout, rows())
    assert list((Path(table.settings.path) / "data").iterdir()) == []


def test_task_on_a_machine_without_the_directory_says_so(table: TableFormat) -> None:
    layout = table.prepare(SCHEMA)
    (Path(table.settings.path) / "data").rmdir()
    with pytest.raises(TableError, match="must be reachable by the driver and by all executors"):
        written(layout, batch(0, 1))


def test_more_partitions_than_files_that_may_be_open_are_all_written(
    table: TableFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_files, "FILES_OPEN_MAX", 3)
    layout = table.prepare(SCHEMA)
    queues = [batch(number, 1, f"q{number % 7}") for number in range(28)]
    table.commit(written(layout, *queues), None, False)
    assert offsets(table) == list(range(28))


def test_file_that_is_large_enough_ends(
    table: TableFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_files, "GROUP_ROWS_MAX", 10)
    monkeypatch.setattr(parquet_files, "FILE_BYTES_MAX", 1)
    layout = table.prepare(SCHEMA)
    files = written(layout, *(batch(number * 10, 10) for number in range(3)))
    assert [each.rows for each in files] == [10, 10, 10]


# --- schemas and partitions


def test_table_whose_columns_differ_is_refused_and_both_are_named(table: TableFormat) -> None:
    table.prepare(SCHEMA)
    other = pa.schema([("queue", pa.int64()), *list(SCHEMA)[1:5], ("body", pa.binary())])
    with pytest.raises(SchemaError) as refused:
        table.prepare(other)
    text = str(refused.value)
    assert "'queue' is string in the table and int64 in the rows" in text
    assert "'value' is binary in the table and missing in the rows" in text
    assert "'body' is missing in the table and binary in the rows" in text
    assert "The table has (queue string, offset int64" in text
    assert "the rows have (queue int64, offset int64" in text
    assert table.prepare(pa.schema(list(reversed(SCHEMA)))).schema.names == SCHEMA.names


def test_table_with_other_partitions_is_refused(tmp_path: Path, kind: str) -> None:
    open_table(settings(tmp_path / "table", kind)).prepare(SCHEMA)
    other = open_table(settings(tmp_path / "table", kind, partitionBy="date"))
    with pytest.raises(TableError, match="is partitioned by queue,date, not by date"):
        other.prepare(SCHEMA)
    unsaid = table_settings({"path": str(tmp_path / "table")})
    assert (unsaid.format, unsaid.partition_by) == (kind, None)
    assert open_table(unsaid).prepare(SCHEMA).partition_by == ("queue", "date")


@pytest.mark.parametrize(("column", "why"), [("value", "binary"), ("size", "the rows have")])
def test_columns_that_can_not_partition_are_refused(
    tmp_path: Path, kind: str, column: str, why: str
) -> None:
    table = open_table(settings(tmp_path / "table", kind, partitionBy=column))
    with pytest.raises(TableError, match=why):
        table.prepare(SCHEMA)
    assert found_format(str(tmp_path / "table")) is None


def test_null_is_a_partition(table: TableFormat) -> None:
    layout = table.prepare(SCHEMA)
    table.commit(written(layout, batch(0, 2, None), batch(2, 2)), None, False)
    expected = [(0, None), (1, None), (2, "events"), (3, "events")]
    assert rows_of(table, "offset", "queue") == expected
    for ask in readers(table.settings.format).values():
        found = ask(table.settings.path, 'SELECT "offset", queue FROM messages ORDER BY 1')
        assert found == expected


def test_empty_text_is_no_partition_of_delta(tmp_path: Path) -> None:
    """Delta would make it null."""
    table = open_table(settings(tmp_path / "table", DELTA))
    files = written(table.prepare(SCHEMA), batch(0, 1, ""))
    with pytest.raises(TableError, match="empty text"):
        table.commit(files, None, False)


def test_new_table_takes_nulls_whatever_its_first_rows_are() -> None:
    strict = pa.schema(
        [
            pa.field("a", pa.int64(), nullable=False),
            pa.field("b", pa.list_(pa.field("element", pa.string(), nullable=False))),
            pa.field("c", pa.struct([pa.field("d", pa.string(), nullable=False)])),
        ]
    )
    assert "not null" not in str(nullable(strict))


# --- tables that others have changed


def test_table_that_others_have_compacted_is_read_and_written(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    table = open_table(settings(tmp_path / "table", DELTA))
    layout = table.prepare(SCHEMA)
    for number in range(3):
        rows = batch(number * 5, 5, ODD_NAME)
        table.commit(written(layout, rows), Mark("query", number), False)
    done = DeltaTable(str(tmp_path / "table")).optimize.compact()
    assert done["numFilesRemoved"] == 3
    assert rows_of(table, "offset", "queue") == [(number, ODD_NAME) for number in range(15)]
    table.commit(written(layout, batch(15, 5)), Mark("query", 3), False)
    assert offsets(table) == list(range(20))


def test_delta_files_have_statistics_by_which_readers_pass_over_them(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    table = open_table(settings(tmp_path / "table", DELTA))
    layout = table.prepare(SCHEMA)
    table.commit(written(layout, batch(0, 5), batch(5, 5)), None, False)
    found = pa.table(DeltaTable(str(tmp_path / "table")).get_add_actions(flatten=True)).to_pylist()
    assert [(each["num_records"], each["min.offset"], each["max.offset"]) for each in found] == [
        (10, 0, 9)
    ]
    assert found[0]["max.timestamp"] >= NOON + dt.timedelta(seconds=9)


KINDS = pa.schema(
    [
        ("key", pa.string()),
        ("long", pa.string()),
        ("none", pa.string()),
        ("half", pa.string()),
        ("small", pa.int32()),
        ("flag", pa.bool_()),
        ("value", pa.binary()),
        ("day", pa.date32()),
        ("time", pa.timestamp("us", "UTC")),
        ("map", pa.map_(pa.string(), pa.string())),
        ("list", pa.list_(pa.int64())),
    ]
)
FRACTIONS = [("double", pa.float64()), ("price", pa.decimal128(10, 2))]
NESTED = [("struct", pa.struct([("inner", pa.string())]))]


def kinds_row(number: int) -> dict[str, Any]:
    return {
        "key": f"key {number}",
        "long": "x" * 40 + f"{number}",
        "none": None,
        "half": None if number % 2 else f"{number}",
        "small": number,
        "flag": number % 2 == 0,
        "value": b"%d" % number,
        "day": DAY + dt.timedelta(days=number),
        "time": NOON + dt.timedelta(microseconds=number),
        "map": [("n", f"{number}")],
        "list": [number],
        "double": float("nan") if number == 3 else number / 4,
        "price": number,
        "struct": {"inner": f"{number}"},
    }


@pytest.mark.parametrize("more", [[], FRACTIONS, NESTED], ids=["plain", "fractions", "nested"])
def test_condition_on_any_column_finds_its_rows(tmp_path: Path, kind: str, more: list[Any]) -> None:
    """Readers pass over files by their statistics: wrong ones would hide rows."""
    schema = pa.schema([*KINDS, *(pa.field(*each) for each in more)])
    table = open_table(table_settings({"path": str(tmp_path / "table"), "format": kind}))
    layout = table.prepare(schema)
    rows = [{name: kinds_row(each)[name] for name in schema.names} for each in range(8)]
    for first in (0, 4):
        part = pa.RecordBatch.from_pylist(rows[first : first + 4], schema=schema)
        table.commit(written(layout, part), None, False)
    conditions = [
        "key = 'key 5'",
        f"long = '{'x' * 40}5'",
        f"long >= '{'x' * 40}5' AND long < '{'x' * 40}6'",
        "half = '4' OR small = 4",
        "half IS NULL AND small = 5",
        "none IS NULL AND small = 5",
        "NOT flag AND small = 5",
        "value = '5'::BLOB",
        "day = DATE '2026-11-22'",
        "time = TIMESTAMPTZ '2026-11-17 12:00:00.000005+00'",
        "map['n'] = '5'",
        "list[1] = 5",
    ]
    special = {"double": "double = 1.25", "struct": "struct.inner = '5'"}
    conditions += [special[name] for name in schema.names if name in special]
    for name, ask in readers(kind).items():
        for condition in conditions:
            found = ask(table.settings.path, f"SELECT count(*) FROM messages WHERE {condition}")
            assert found == [(1,)], (name, condition)


def test_column_that_was_renamed_in_iceberg_is_found(tmp_path: Path) -> None:
    table = open_table(settings(tmp_path / "table", ICEBERG))
    table.commit(written(table.prepare(SCHEMA), batch(0, 5)), None, False)
    with iceberg_table(table.settings.path).update_schema() as change:
        change.rename_column("value", "body")
    found = table.snapshot()
    scan = Scan(pa.schema([("body", pa.binary())]), found.ids, Storage())
    rows = [
        row["body"] for file in found.files for part in scan.rows(file) for row in part.to_pylist()
    ]
    assert rows == [b"%d" % number for number in range(5)]


def test_table_with_rules_that_are_not_kept_here_is_refused(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    table = open_table(settings(tmp_path / "table", DELTA))
    table.prepare(SCHEMA)
    DeltaTable(str(tmp_path / "table")).alter.add_constraint({"positive": '"offset" >= 0'})
    with pytest.raises(TableError, match="constraint"):
        table.prepare(SCHEMA)


# --- where tables are


def test_addresses_of_one_directory_are_one_table(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a table"
    table = open_table(settings(path.as_uri(), kind))
    table.commit(written(table.prepare(SCHEMA), batch(0, 5)), None, False)
    assert offsets(open_table(settings(path, kind))) == list(range(5))
    assert normal_location(path.as_uri()) == normal_location(f"{path}/") == str(path)


def test_one_catalogue_has_several_tables(tmp_path: Path) -> None:
    catalog = f"sqlite:///{tmp_path}/all.db"
    for name in ("sales.orders", "sales.returns"):
        place = settings(tmp_path / name, ICEBERG, catalog=catalog, table=name)
        table = open_table(place)
        table.commit(written(table.prepare(SCHEMA), batch(0, 5)), None, False)
    unplaced = table_settings({"catalog": catalog, "table": "sales.orders"})
    assert offsets(open_table(unplaced)) == list(range(5))


def test_rest_catalogue_takes_each_batch_once(tmp_path: Path) -> None:
    with rest_catalog(tmp_path) as uri:
        given = {"catalog": uri, "table": "sales.orders", "catalog.token": TOKEN}
        tables = [
            open_table(settings(tmp_path / "orders", ICEBERG, **given)),
            open_table(table_settings(given)),  # the catalogue knows where it is
        ]
        for number, table in enumerate(tables):
            layout = table.prepare(SCHEMA)
            assert layout.partition_by == ("queue", "date")
            files = written(layout, batch(number * 5, 5))
            assert table.commit(files, Mark("query", number), False)
            assert not table.commit(files, Mark("query", number), False)
        layouts = [table.prepare(SCHEMA) for table in tables]
        files = [written(layout, batch(10, 5)) for layout in layouts]
        with ThreadPoolExecutor(2) as pool:
            done = pool.map(lambda t, f: t.commit(f, Mark("query", 2), False), tables, files)
            assert sorted(done) == [False, True]
        assert offsets(tables[0]) == offsets(tables[1]) == list(range(15))
        stranger = open_table(table_settings({**given, "catalog.token": "hush"}))
        with pytest.raises(TableError, match="the catalogue of the iceberg table") as refused:
            stranger.snapshot()
        assert "hush" not in str(refused.value)


def test_nothing_at_a_path_is_told(tmp_path: Path, kind: str) -> None:
    table = open_table(settings(tmp_path, kind))
    with pytest.raises(TableError, match=f"there is no {kind} table"):
        table.snapshot()
    with pytest.raises(TableError, match=f"there is no {kind} table"):
        table.vacuum(0, True)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "needs the option 'path'"),
        ({"path": "/x", "format": "orc"}, "one of delta, iceberg"),
        ({"path": "/x", "formt": "delta"}, "did you mean 'format'"),
        ({"path": "/x", "format": "delta", "catalog": "sqlite://"}, "is for Iceberg"),
        ({"format": "iceberg", "table": "a.b"}, "needs the option 'catalog'"),
        ({"path": "/x", "storage.passwort": "hush"}, "it has storage.access_key_id"),
        ({"path": "/a%20b"}, "%"),
    ],
)
def test_wrong_options_are_told(options: dict[str, str], why: str) -> None:
    with pytest.raises(OptionError, match=why) as told:
        table_settings(options)
    assert "hush" not in str(told.value)


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    options = {"storage.secret_access_key": "hush", "catalog.token": "hush"}
    shown = settings(tmp_path, ICEBERG, catalog="postgresql://u:hush@h/d", **options)
    assert "hush" not in repr(shown)


def test_one_set_of_storage_options_serves_three_libraries() -> None:
    storage = Storage("id", "key", "token", "eu-1", "http://minio:9000")
    assert storage.delta_options() == {
        "aws_access_key_id": "id",
        "aws_secret_access_key": "key",
        "aws_session_token": "token",
        "aws_region": "eu-1",
        "aws_endpoint": "http://minio:9000",
        "aws_allow_http": "true",
    }
    assert storage.iceberg_properties() == {
        "s3.access-key-id": "id",
        "s3.secret-access-key": "key",
        "s3.session-token": "token",
        "s3.region": "eu-1",
        "s3.endpoint": "http://minio:9000",
    }
    filesystem, path = storage.filesystem("s3://bucket/table")
    assert (filesystem.type_name, path) == ("s3", "bucket/table")


# --- tasks


def test_small_files_share_a_task_and_a_large_one_has_its_own() -> None:
    sizes = [1, 2, 3, 200 << 20, 4]
    files = [FileToRead(str(number), size, {}) for number, size in enumerate(sizes)]
    found = [[each.size for each in part.files] for part in partitions(files)]
    assert found == [[1, 2, 3], [200 << 20], [4]]


@pytest.mark.parametrize(("kind", "package"), [(DELTA, "deltalake"), (ICEBERG, "pyiceberg")])
def test_missing_package_is_named_with_its_extra(
    tmp_path: Path, kind: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    table = open_table(settings(tmp_path / "table", kind))
    with pytest.raises(TableError, match=rf"{package} on the driver.*rhizomemq\[{kind}\]"):
        table.prepare(SCHEMA)


def test_tasks_import_neither_deltalake_nor_pyiceberg() -> None:
    code = (
        "import sys, rhizome.spark.lakehouse.table_source, rhizome.spark.lakehouse.parquet_scan;"
        "print([n for n in ('deltalake', 'pyiceberg', 'sqlalchemy') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
