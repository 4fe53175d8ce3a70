"""The sink in Spark, against a real broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rhizome.client.blocking import Connection, Message
from rhizome.testing.broker_process import Broker

Unique = Callable[[str], str]


def declare(broker: Broker, queue: str) -> None:
    with Connection(broker.url) as connection:
        connection.channel().declare_queue(queue, durable=True)


def drain(broker: Broker, queue: str) -> list[Message]:
    with Connection(broker.url) as connection:
        channel = connection.channel()
        size = channel.declare_queue(queue, passive=True).message_count
        consumer = channel.consume(queue, no_ack=True, timeout_s=30)
        return [next(consumer) for _ in range(size)]


def write(frame: Any, broker: Broker, **options: str) -> None:
    writer = frame.write.format("rhizome").option("uri", broker.url).mode("append")
    writer.options(**options).save()


def test_rows_become_messages_with_their_properties(
    spark: Any, broker: Broker, unique: Unique
) -> None:
    queue = unique("properties")
    declare(broker, queue)
    frame = spark.createDataFrame(
        [("one", "text/plain", {"a": "1"}, 5, "m1"), ("two", None, None, None, None)],
        "value STRING, content_type STRING, headers MAP<STRING, STRING>, priority INT, "
        "message_id STRING",
    )
    write(frame.coalesce(1), broker, queue=queue, writeId="w1")
    first, second = drain(broker, queue)
    assert first.body == b"one"
    assert first.properties.content_type == "text/plain"
    assert first.properties.priority == 5
    assert first.properties.message_id == "m1"
    assert first.properties.delivery_mode == 2
    assert first.properties.headers == {"a": "1", "x-producer": "spark:w1:0", "x-sequence": 0}
    assert second.body == b"two"
    assert second.properties.content_type is None
    assert second.properties.headers == {"x-producer": "spark:w1:0", "x-sequence": 1}


def test_keys_route_rows_through_an_exchange(spark: Any, broker: Broker, unique: Unique) -> None:
    exchange, even, odd = unique("exchange"), unique("even"), unique("odd")
    with Connection(broker.url) as connection:
        channel = connection.channel()
        channel.declare_exchange(exchange, "direct")
        for queue, key in ((even, "k0"), (odd, "k1")):
            channel.declare_queue(queue)
            channel.bind_queue(queue, exchange, key)
    frame = spark.range(1000).selectExpr(
        "cast(id AS STRING) AS value", "concat('k', id % 2) AS key"
    )
    write(frame, broker, exchange=exchange)
    assert sorted(int(m.body) for m in drain(broker, even)) == list(range(0, 1000, 2))
    assert sorted(int(m.body) for m in drain(broker, odd)) == list(range(1, 1000, 2))


def test_exchange_and_key_of_the_sink_go_before_those_of_the_rows(
    spark: Any, broker: Broker, unique: Unique
) -> None:
    """Rows of a source say where their publishers sent them, and would go there again."""
    exchange, wanted, before = unique("exchange"), unique("wanted"), unique("before")
    with Connection(broker.url) as connection:
        channel = connection.channel()
        channel.declare_exchange(exchange, "direct")
        for queue in (wanted, before):
            channel.declare_queue(queue)
        channel.bind_queue(wanted, exchange, "k")
    frame = spark.createDataFrame([("x", "", before)], "value STRING, exchange STRING, key STRING")
    write(frame, broker, exchange=exchange, routingKey="k")
    assert [each.body for each in drain(broker, wanted)] == [b"x"]
    assert drain(broker, before) == []


def test_write_declares_its_queue_if_asked(spark: Any, broker: Broker, unique: Unique) -> None:
    queue = unique("declared")
    frame = spark.range(10).selectExpr("cast(id AS STRING) AS value").coalesce(1)
    arguments = '{"x-max-length": 8, "x-overflow": "drop-head"}'
    for _ in range(2):
        write(frame, broker, queue=queue, declare="true", arguments=arguments)
    assert [m.body for m in drain(broker, queue)] == [b"%d" % number for number in range(2, 10)]
    declare_alike = {"x-max-length": 8, "x-overflow": "drop-head"}
    with Connection(broker.url) as connection:
        connection.channel().declare_queue(queue, durable=True, arguments=declare_alike)
    for options, text in (
        ({"queue": queue, "declare": "true"}, "inequivalent arg 'x-max-length'"),
        ({"queue": queue, "declare": "true", "arguments": "x"}, "a JSON object"),
        ({"exchange": "amq.topic", "declare": "true"}, "name it with the option 'queue'"),
        ({"queue": queue, "durable": "false"}, "for queues that the write declares"),
    ):
        with pytest.raises(Exception, match=text):
            write(frame, broker, **options)


def test_second_run_with_the_same_write_id_stores_nothing(
    spark: Any, broker: Broker, unique: Unique
) -> None:
    queue, name = unique("rerun"), unique("write")
    declare(broker, queue)
    frame = spark.range(0, 5000, 1, 3).selectExpr("cast(id AS STRING) AS value")
    for _ in range(2):
        write(frame, broker, queue=queue, writeId=name)
    assert sorted(int(m.body) for m in drain(broker, queue)) == list(range(5000))
    write(frame, broker, queue=queue)
    write(frame, broker, queue=queue)
    assert len(drain(broker, queue)) == 10_000


def test_streaming_query_that_replays_a_batch_stores_it_once(
    spark: Any, broker: Broker, unique: Unique, tmp_path: Path
) -> None:
    queue = unique("stream")
    declare(broker, queue)
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    for number in range(3):
        spark.range(number * 1000, (number + 1) * 1000).selectExpr(
            "cast(id AS STRING) AS value"
        ).coalesce(1).write.mode("append").parquet(str(source))

    def run() -> Any:
        query = (
            spark.readStream.schema("value STRING")
            .option("maxFilesPerTrigger", 1)
            .parquet(str(source))
            .writeStream.format("rhizome")
            .option("uri", broker.url)
            .option("queue", queue)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(60)
        assert query.exception() is None
        return query

    first = run()
    # As after a crash between the last confirm and Spark's own commit of the batch.
    last = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
    for name in (f"{last}", f".{last}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    again = run()
    assert again.id == first.id
    assert again.lastProgress is None or again.lastProgress["batchId"] >= last
    assert sorted(int(m.body) for m in drain(broker, queue)) == list(range(3000))


@pytest.mark.parametrize(
    ("options", "columns", "text"),
    [
        ({}, "value STRING", "needs a destination"),
        ({"queue": "q", "exchange": "e"}, "value STRING", "either 'queue' or 'exchange'"),
        ({"queue": "no such queue"}, "value STRING", "no queue 'no such queue'.*declare it"),
        ({"queue": "q"}, "body STRING", "needs a column 'value'"),
        ({"queue": "q"}, "value INT", "column 'value' is int"),
        ({"queue": "q"}, "value STRING, colour STRING", "knows no column 'colour'"),
        ({"queue": "q", "deduplicate": "maybe"}, "value STRING", "sequence, message-id, none"),
        ({"queue": "q", "deduplicate": "message-id"}, "value STRING", "a column 'message_id'"),
        ({"queue": "q", "confirmTimeout": "-1"}, "value STRING", "a whole number"),
        ({"queue": "q", "routing": "x"}, "value STRING", "did you mean 'routingKey'"),
    ],
)
def test_wrong_options_are_told_on_the_driver(
    broker: Broker, options: dict[str, str], columns: str, text: str
) -> None:
    from pyspark.sql.types import IntegerType, StringType, StructField, StructType

    from rhizome.spark.data_source import RhizomeSource
    from rhizome.spark.data_source_options import OptionError

    kinds = {"STRING": StringType(), "INT": IntegerType()}
    parts = [column.split() for column in columns.split(", ")]
    schema = StructType([StructField(name, kinds[kind]) for name, kind in parts])
    with pytest.raises(OptionError, match=text):
        RhizomeSource({"uri": broker.url, **options}).writer(schema, False)


def test_credentials_appear_in_no_plan_and_no_log(
    spark: Any, broker: Broker, unique: Unique, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    queue = unique("secret")
    declare(broker, queue)
    uri = f"amqp://guest:hunter2-{'x' * 8}@127.0.0.1:{broker.port}/"
    frame = spark.range(10).selectExpr("cast(id AS STRING) AS value")
    writer = frame.write.format("rhizome").option("uri", uri).option("queue", queue).mode("append")
    with pytest.raises(Exception, match="efused") as caught:
        writer.save()
    assert "hunter2" not in str(caught.value)
    writer.option("uri", uri + "?heartbeat=x")
    with pytest.raises(Exception, match="wrong heartbeat; it must be a whole number") as caught:
        writer.save()
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in "".join(capfd.readouterr())
    log = Path(spark.conf.get("spark.local.dir")) / "spark.log"
    assert "hunter2" not in log.read_text()


def test_numbered_writes_under_one_name_are_stored_once_each(
    spark: Any, broker: Broker, unique: Unique
) -> None:
    queue, name = unique("numbered"), unique("w")
    declare(broker, queue)
    frame = spark.range(10).selectExpr("cast(id AS STRING) AS value").coalesce(1)
    for number in ("0", "1", "1", "2"):
        write(frame, broker, queue=queue, writeId=name, writeNumber=number)
    found = drain(broker, queue)
    assert [m.body for m in found] == [b"%d" % number for _ in range(3) for number in range(10)]
    assert len({(m.properties.headers or {})["x-producer"] for m in found}) == 1
