"""The format `rhizome.table` and archives in tables, in Spark and on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from rhizome.amqp.properties import Properties
from rhizome.cli.pipeline.pipeline_command import failure_text
from rhizome.client.blocking import Connection
from rhizome.spark.jobs import archive
from rhizome.spark.jobs.job_progress import JobError
from rhizome.testing.broker_process import Broker
from tests.spark.cli import command
from tests.spark.streams import declare_stream, fill, numbered
from tests.spark.tables import FORMATS, readers

Unique = Callable[[str], str]
MESSAGES = "SELECT \"offset\", queue, decode(value), headers['n'] FROM messages ORDER BY queue, 1"


@pytest.fixture(params=FORMATS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def written(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """What a command says for programs."""
    assert command("pipeline", *arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_archive_in_a_table_is_read_by_the_jobs_and_by_duckdb(
    spark: Any,
    broker: Broker,
    unique: Unique,
    tmp_path: Path,
    kind: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stream, again, path = unique("007"), unique("again"), str(tmp_path / "archive")
    declare_stream(broker.url, stream)
    with Connection(broker.url) as connection:
        connection.channel().declare_queue(again, durable=True)
    fill(broker.url, stream, numbered(50), Properties(headers={"n": 1}))
    given = ("archive", stream, "--to", path, "--uri", broker.url)
    assert written(capsys, *given, "--format", kind)["messages"] == 50
    fill(broker.url, stream, numbered(50, 50), Properties(headers={"n": 2}))
    assert written(capsys, *given)["messages"] == 50
    assert written(capsys, *given)["messages"] == 0

    for name, ask in readers(kind).items():
        assert ask(path, MESSAGES) == [
            (number, stream, str(number), "1" if number < 50 else "2") for number in range(100)
        ], name
    page = str(tmp_path / "traffic.html")
    assert written(capsys, "traffic", "--archive", path, "--html", page)["messages"] == 100
    chosen = ("--name", unique("name"), "--queue", again, "--where", "offset < 60")
    sent = written(capsys, "replay", "--archive", path, *chosen, "--uri", broker.url)
    assert sent["messages"] == 60
    (Path(path) / "data" / "left.parquet").touch()
    assert written(capsys, "vacuum", path)["files"] == []
    removed = written(capsys, "vacuum", path, "--older-than", "0")["files"]
    assert [name for name in removed if name.endswith(".parquet")] == ["data/left.parquet"]


def test_dataframe_is_appended_overwritten_and_under_a_name_written_once(
    spark: Any, tmp_path: Path, kind: str
) -> None:
    path = (tmp_path / "table").as_uri()
    rows = spark.range(100).select(
        "id",
        (F.col("id") % 3).cast("string").alias("part"),
        F.lit("2026-11-17 12:00:00").cast("timestamp").alias("time"),
        F.create_map(F.lit("a"), F.col("id").cast("string")).alias("map"),
        F.array("id").alias("list"),
        F.struct(F.col("id").cast("smallint").alias("small")).alias("struct"),
        F.lit("1.50").cast("decimal(10,2)").alias("price"),
    )

    def write(found: Any, mode: str, **options: str) -> None:
        writer = found.write.format("rhizome.table").options(**options)
        writer.mode(mode).save(path)

    def read() -> Any:
        return spark.read.format("rhizome.table").load(path)

    write(rows, "append", format=kind, partitionBy="part")
    for _ in range(2):
        write(rows, "append", writeId="once")
    assert read().count() == 200
    assert read().where("part = '1'").count() == 66
    write(rows.where("id < 10"), "overwrite")
    found = [row.asDict(recursive=True) for row in read().orderBy("id").collect()]
    assert found == [row.asDict(recursive=True) for row in rows.where("id < 10").collect()]
    pruned = spark.read.format("rhizome.table").schema("id LONG").load(path)
    assert sorted(row.id for row in pruned.collect()) == list(range(10))
    with pytest.raises(PySparkException) as refused:
        write(rows.drop("price"), "append")
    told = failure_text(refused.value) or ""
    assert "'price' is decimal128(10, 2) in the table and missing in the rows" in told


def test_query_in_complete_mode_replaces_what_the_table_had(spark: Any, tmp_path: Path) -> None:
    source, path = str(tmp_path / "source"), str(tmp_path / "table")

    def run() -> list[tuple[int, int]]:
        counted = (
            spark.readStream.schema("id LONG")
            .parquet(source)
            .selectExpr("id % 2 AS odd")
            .groupBy("odd")
            .count()
        )
        query = (
            counted.writeStream.format("rhizome.table")
            .outputMode("complete")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(path)
        )
        query.awaitTermination()
        rows = spark.read.format("rhizome.table").load(path).orderBy("odd").collect()
        return [(row.odd, row["count"]) for row in rows]

    spark.range(10).write.mode("append").parquet(source)
    assert run() == [(0, 5), (1, 5)]
    spark.range(11).write.mode("append").parquet(source)
    assert run() == [(0, 11), (1, 10)]


def test_catalogue_in_the_environment_is_for_iceberg_only(
    spark: Any,
    tmp_path: Path,
    kind: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    catalog = f"sqlite:///{tmp_path}/all.db"
    monkeypatch.setenv("RHIZOME_CATALOG", catalog)
    path, stored = str(tmp_path / "table"), {"catalog": catalog} if kind == "iceberg" else {}
    writer = spark.range(3).write.format("rhizome.table").option("format", kind).options(**stored)
    writer.mode("append").save(path)
    (tmp_path / "table" / "data" / "left.parquet").touch()
    removed = written(capsys, "vacuum", path, "--older-than", "0")["files"]
    assert removed == ["data/left.parquet"]
    given = archive.ArchiveOptions("amqp://", ("events",), path, catalog=catalog)
    assert bool(archive.checked(given).catalog) == (kind == "iceberg")


def test_two_archives_write_to_one_table_side_by_side(
    spark: Any, broker: Broker, unique: Unique, tmp_path: Path, kind: str
) -> None:
    path = str(tmp_path / "archive")
    streams = [unique("one"), unique("two")]
    queries = []
    for number, stream in enumerate(streams):
        declare_stream(broker.url, stream)
        fill(broker.url, stream, numbered(40))
        options = archive.ArchiveOptions(
            broker.url, (stream,), path, str(tmp_path / f"{number}"), rows_per_batch=20, format=kind
        )
        queries.append(archive.start(spark, options))
    for query in queries:
        query.awaitTermination()
    expected = [(number, stream) for stream in sorted(streams) for number in range(40)]
    for ask in readers(kind).values():
        found = ask(path, 'SELECT "offset", queue FROM messages ORDER BY queue, 1')
        assert found == expected


def test_archive_keeps_its_format(tmp_path: Path) -> None:
    path = tmp_path / "archive"
    (path / "_spark_metadata").mkdir(parents=True)
    given = archive.ArchiveOptions("amqp://", ("events",), str(path))
    assert archive.checked(given).format == "parquet"
    with pytest.raises(JobError, match="an archive of format parquet, not delta"):
        archive.checked(archive.ArchiveOptions("amqp://", ("events",), str(path), format="delta"))
    new = archive.ArchiveOptions("amqp://", ("events",), str(tmp_path / "new"))
    assert archive.checked(new).format == "parquet"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"format": "orc"}, "no format of archives; these are parquet, delta, iceberg"),
        ({"format": "delta", "table": "a.b"}, "for Iceberg, not for delta"),
        ({"format": "delta", "to": "s3://bucket/x"}, "--checkpoint"),
    ],
)
def test_wrong_wishes_are_told_before_spark_starts(options: dict[str, str], why: str) -> None:
    given = {"uri": "amqp://", "streams": ("events",), "to": "/nowhere", **options}
    with pytest.raises(JobError, match=why):
        archive.checked(archive.ArchiveOptions(**given))  # type: ignore[arg-type]


def test_secrets_among_the_options_are_hidden_in_plans(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "table")
    spark.range(1).write.format("rhizome.table").option("format", "iceberg").mode("append").save(
        path
    )
    found = (
        spark.read.format("rhizome.table")
        .option("storage.secret_access_key", "hush")
        .option("catalog", f"sqlite:///{path}/catalog.db?timeout=7")
        .option("table", "default.table")
        .load(path)
    )
    found.explain(True)
    shown = capsys.readouterr().out
    assert "hush" not in shown
    assert "timeout=7" not in shown
