"""The source on streams in Spark, against a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rhizome.amqp.properties import Properties
from rhizome.client.blocking import Connection
from rhizome.spark.data_source import RhizomeSource
from rhizome.spark.data_source_options import OptionError
from rhizome.testing.broker_process import Broker, wait_until
from tests.spark.streams import declare_partitioned, declare_stream, fill, numbered, numbers

Unique = Callable[[str], str]


def read(spark: Any, broker: Broker, name: str, **options: str) -> Any:
    return (
        spark.read.format("rhizome")
        .option("uri", broker.url)
        .option("subscribe", name)
        .options(**options)
        .load()
    )


def test_batch_reads_a_stream_in_parallel(spark: Any, broker: Broker, unique: Unique) -> None:
    name = unique("batch")
    declare_stream(broker.url, name)
    fill(broker.url, name, numbered(10_000), Properties(headers={"a": "b"}, message_id="m"))
    found = read(spark, broker, name, minPartitions="2")
    assert found.rdd.getNumPartitions() == 2
    rows = found.orderBy("offset").collect()
    assert numbers(rows) == list(range(10_000))
    assert [row.offset for row in rows] == list(range(10_000))
    assert (rows[0].headers, rows[0].message_id, rows[0].queue) == ({"a": "b"}, "m", name)
    some = read(spark, broker, name, startingOffsets=json.dumps({name: 10}),
                endingOffsets=json.dumps({name: 20}))  # fmt: skip
    assert sorted(numbers(some.collect())) == list(range(10, 20))
    assert read(spark, broker, name, startingOffsets="latest").count() == 0
    assert read(spark, broker, name, includeHeaders="false").columns[-1] == "cluster_id"


def rows_of(broker: Broker, name: str, **options: str) -> list[dict[str, Any]]:
    """The rows of a batch, read as Spark's workers do."""
    source = RhizomeSource({"uri": broker.url, "subscribe": name, **options})
    reader = source.reader(source.schema())
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [row for batch in batches for row in batch.to_pylist()]


def test_times_bound_a_batch(broker: Broker, unique: Unique) -> None:
    name = unique("times")
    declare_stream(broker.url, name)
    fill(broker.url, name, numbered(10))
    first = rows_of(broker, name)[-1]["timestamp"]
    wait_until(lambda: datetime.now(UTC) > first + timedelta(milliseconds=1), "another millisecond")
    fill(broker.url, name, numbered(10, 10))
    second = rows_of(broker, name)[10]["timestamp"]
    for text in (str(round(second.timestamp() * 1000)), second.isoformat()):
        after = rows_of(broker, name, startingTimestamp=text)
        assert [row["offset"] for row in after] == list(range(10, 20))
        before = rows_of(broker, name, endingTimestamp=text, readTimeout="30")
        assert [row["offset"] for row in before] == list(range(10))


def test_partitioned_stream_is_read_under_one_name(
    spark: Any, broker: Broker, unique: Unique
) -> None:
    name = unique("many")
    declare_partitioned(broker.url, name, 3)
    with Connection(broker.url) as connection:
        channel = connection.channel(confirms=True)
        for number in range(300):
            channel.publish(b"%d" % number, exchange=name, routing_key=f"k{number}")
    rows = read(spark, broker, name).collect()
    assert sorted(numbers(rows)) == list(range(300))
    assert {row.partition for row in rows} == {0, 1, 2}
    assert {(row.partition, row.queue) for row in rows} == {(n, f"{name}-{n}") for n in range(3)}


def run_query(spark: Any, broker: Broker, name: str, directory: Path, **options: str) -> Any:
    query = (
        spark.readStream.format("rhizome")
        .option("uri", broker.url)
        .option("subscribe", name)
        .option("startingOffsets", "earliest")
        .options(**options)
        .load()
        .select("value", "offset")
        .writeStream.format("parquet")
        .option("path", str(directory / "out"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(90)
    assert query.exception() is None
    return query


def test_streaming_query_goes_on_where_it_was(
    spark: Any, broker: Broker, unique: Unique, tmp_path: Path
) -> None:
    name = unique("streaming")
    declare_stream(broker.url, name)
    fill(broker.url, name, numbered(2500))
    first = run_query(spark, broker, name, tmp_path, maxOffsetsPerTrigger="1000")
    assert [batch["numInputRows"] for batch in first.recentProgress] == [1000, 1000, 500]
    fill(broker.url, name, numbered(500, 2500))
    second = run_query(spark, broker, name, tmp_path)
    assert sum(batch["numInputRows"] for batch in second.recentProgress) == 500
    found = spark.read.parquet(str(tmp_path / "out")).orderBy("offset").collect()
    assert numbers(found) == list(range(3000))
    progress = json.loads(second.lastProgress.json)["sources"][0]
    assert progress["endOffset"]["next"] == {name: 3000}
    assert "guest" not in second.lastProgress.json


@pytest.mark.soak
def test_bytes_limit_the_batches_too(
    spark: Any, broker: Broker, unique: Unique, tmp_path: Path
) -> None:
    name = unique("bytes")
    declare_stream(broker.url, name)
    fill(broker.url, name, [b"x" * 1000] * 1000)
    query = run_query(spark, broker, name, tmp_path, maxBytesPerTrigger="256k")
    sizes = [batch["numInputRows"] for batch in query.recentProgress]
    assert sum(sizes) == 1000
    assert len(sizes) >= 4


def test_replayed_batch_has_the_partitions_it_had(
    spark: Any, broker: Broker, unique: Unique, tmp_path: Path
) -> None:
    name = unique("frozen")
    declare_stream(broker.url, name)
    fill(broker.url, name, numbered(10_000))
    reader = RhizomeSource(
        {"uri": broker.url, "subscribe": name, "minPartitions": "2"}
    ).streamReader(RhizomeSource({}).schema())
    other = RhizomeSource(
        {"uri": broker.url, "subscribe": name, "minPartitions": "7"}
    ).streamReader(RhizomeSource({}).schema())
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    start = {"version": 1, "next": {name: 0}, "parts": 1, "least": 1}
    end = reader.latestOffset(start, ReadAllAvailable())
    before = [(part.start, part.end) for part in reader.partitions(start, end)]
    after = [(part.start, part.end) for part in other.partitions(start, end)]
    assert before == after == [(0, 5000), (5000, 10_000)]
    reader.stop()
    other.stop()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"subscribe": ""}, "needs the option 'subscribe'"),
        ({"subscribe": "no such stream"}, "there is no stream 'no such stream'"),
        ({"startingOffsets": "first"}, "must be earliest, latest, or JSON"),
        ({"startingOffsets": '{"s": -1}'}, "must be earliest, latest, or JSON"),
        ({"startingTimestamp": "yesterday"}, "milliseconds since 1970, or a time like"),
        (
            {"startingTimestamp": "5", "startingOffsets": "latest"},
            "either 'startingOffsets' or 'startingTimestamp'",
        ),
        ({"failOnDataLoss": "perhaps"}, "true or false"),
        ({"maxBytesPerTrigger": "many"}, "a number of bytes, like 64m"),
        ({"subscribes": "x"}, "did you mean 'subscribe'"),
        ({"uri": "http://guest:hunter2@h/"}, "must begin with amqp://"),
    ],
)
def test_wrong_options_are_told_on_the_driver(
    broker: Broker, options: dict[str, str], text: str
) -> None:
    given = {"uri": broker.url, "subscribe": "s", **options}
    source = RhizomeSource(given)
    with pytest.raises(OptionError, match=text) as caught:
        source.reader(source.schema())
    assert "hunter2" not in str(caught.value)
    if "startingTimestamp" not in given:
        with pytest.raises(OptionError, match="a streaming query has no end|" + text):
            RhizomeSource({**given, "endingOffsets": "latest"}).streamReader(source.schema())


def test_plans_and_progress_show_no_credentials(
    spark: Any, broker: Broker, unique: Unique, capfd: pytest.CaptureFixture[str]
) -> None:
    name = unique("secret")
    declare_stream(broker.url, name)
    fill(broker.url, name, numbered(3))
    uri = broker.url.replace("guest:guest@", "guest:gu%65st@")
    found = spark.read.format("rhizome").option("uri", uri).option("subscribe", name).load()
    for mode in ("simple", "extended", "formatted", "codegen", "cost"):
        found.explain(mode=mode)
    found.collect()
    printed = "".join(capfd.readouterr())
    assert "PythonDataSource" in printed or "rhizome" in printed
    assert "gu%65st" not in printed
    log = Path(spark.conf.get("spark.local.dir")) / "spark.log"
    assert "gu%65st" not in log.read_text()
