"""Streams and queues in SQL: views and tables, reads and inserts, and where passwords are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from rhizome.client.blocking import Connection
from rhizome.spark.data_source import RhizomeSource
from rhizome.spark.data_source_options import OptionError, Options
from rhizome.testing.broker_process import Broker
from tests.spark.streams import declare_stream, fill, numbered

Unique = Callable[[str], str]
KNOWN = ("uri", "url")


def texts(spark: Any, statement: str) -> str:
    return str([list(row) for row in spark.sql(statement).collect()])


def bodies(broker: Broker, queue: str) -> list[bytes]:
    with Connection(broker.url) as connection:
        channel = connection.channel()
        size = channel.declare_queue(queue, passive=True).message_count
        consumer = channel.consume(queue, no_ack=True, timeout_s=30)
        return [bytes(next(consumer).body) for _ in range(size)]


@pytest.fixture
def stream(broker: Broker, unique: Unique) -> str:
    name = unique("sql")
    declare_stream(broker.url, name)
    fill(broker.url, name, numbered(10))
    return name


@pytest.fixture
def queue(broker: Broker, unique: Unique) -> str:
    name = unique("inserted")
    with Connection(broker.url) as connection:
        connection.channel().declare_queue(name, durable=True)
    return name


@pytest.fixture
def messages(spark: Any) -> Iterator[str]:
    """A table of the catalogue, which says the format alone."""
    spark.sql("CREATE TABLE messages USING rhizome")
    yield "messages"
    spark.sql("DROP TABLE messages")


def test_temporary_views_read_a_stream_and_fill_a_queue(
    spark: Any, broker: Broker, stream: str, queue: str
) -> None:
    uri = f"uri '{broker.url}'"
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW read_view USING rhizome "
        f"OPTIONS ({uri}, subscribe '{stream}')"
    )
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW write_view (value STRING, key STRING) USING rhizome "
        f"OPTIONS ({uri}, queue '{queue}')"
    )
    spark.sql("INSERT INTO write_view SELECT cast(value AS STRING), 'k' FROM read_view")
    spark.sql("INSERT INTO write_view VALUES ('10', 'k'), ('11', 'k')")
    assert sorted(map(int, bodies(broker, queue))) == list(range(12))
    for statement in ("DESCRIBE EXTENDED read_view", "EXPLAIN EXTENDED SELECT * FROM read_view"):
        assert f":{broker.password}@" not in texts(spark, statement)


def test_table_of_the_catalogue_takes_its_options_in_the_query(
    spark: Any, broker: Broker, stream: str, queue: str, messages: str, tmp_path: Path
) -> None:
    secret = tmp_path / "uri"
    secret.write_text(f"{broker.url}\n")
    uri = f"uri = 'file:{secret}'"
    spark.sql(f"CREATE VIEW told AS SELECT * FROM {messages} WITH ({uri}, subscribe = '{stream}')")
    try:
        assert texts(spark, "SELECT count(*), max(offset) FROM told") == "[[10, 9]]"
        spark.sql(
            f"INSERT INTO {messages} WITH ({uri}, queue = '{queue}') (value, key) "
            "SELECT value, key FROM told"
        )
        assert sorted(map(int, bodies(broker, queue))) == list(range(10))
        for statement in (
            "DESCRIBE EXTENDED told",
            "SHOW CREATE TABLE told",
            "EXPLAIN EXTENDED SELECT * FROM told",
        ):
            assert f":{broker.password}@" not in texts(spark, statement)
    finally:
        spark.sql("DROP VIEW told")


def test_options_of_a_table_do_not_arrive_and_the_error_says_what_to_write(
    spark: Any, broker: Broker, stream: str
) -> None:
    spark.sql(f"CREATE TABLE kept USING rhizome OPTIONS (uri '{broker.url}', subscribe '{stream}')")
    try:
        with pytest.raises(Exception, match="SQL gives them where the table is used"):
            spark.sql("SELECT count(*) FROM kept").collect()
        for statement in ("DESCRIBE EXTENDED kept", "SHOW CREATE TABLE kept"):
            assert f":{broker.password}@" not in texts(spark, statement)
    finally:
        spark.sql("DROP TABLE kept")


def test_address_is_kept_in_the_environment_or_a_file_of_the_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def uri(text: str) -> str:
        return Options({"uri": text}, KNOWN, "rhizome").uri()

    monkeypatch.setenv("BROKERS", "amqp://a:b@c/")
    path = tmp_path / "uri"
    path.write_text("amqp://d:e@f/\n")
    assert uri("env:BROKERS") == "amqp://a:b@c/"
    assert uri(f"file:{path}") == uri(f"file://{path}") == "amqp://d:e@f/"
    assert uri("amqp://g") == "amqp://g"
    assert Options({"url": "env:BROKERS"}, KNOWN, "rhizome").uri() == "amqp://a:b@c/"
    for text, told in (
        ("env:NOBODY", "has no environment variable NOBODY"),
        (f"file:{tmp_path}/none", "No such file"),
    ):
        with pytest.raises(OptionError, match=told):
            uri(text)
    for content in ("", "password=hidden"):
        path.write_text(content)
        with pytest.raises(OptionError, match="where there is no address like") as error:
            uri(f"file:{path}")
        assert "hidden" not in str(error.value)


def test_every_kind_of_reader_and_writer_finds_an_address_that_is_kept_in_a_file(
    broker: Broker, stream: str, queue: str, tmp_path: Path
) -> None:
    path = tmp_path / "uri"
    path.write_text(broker.url)
    for name in (stream, queue):
        source = RhizomeSource({"uri": f"file:{path}", "subscribe": name})
        source.streamReader(source.schema()).stop()
    source = RhizomeSource({"uri": f"file:{path}", "subscribe": stream})
    assert len(source.reader(source.schema()).partitions()) == 1
    sink = RhizomeSource({"uri": f"file:{path}", "queue": queue})
    values = StructType([StructField("value", StringType())])
    assert sink.writer(values, False)
    assert sink.streamWriter(values, False)
