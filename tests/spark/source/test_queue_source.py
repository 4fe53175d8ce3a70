"""The source on work queues, against a real broker: leased, read, settled, given back."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from rhizome.amqp.properties import Properties
from rhizome.client.blocking import Connection
from rhizome.spark import schema as schemas
from rhizome.spark.amqp_socket import addresses_of
from rhizome.spark.data_source import RhizomeSource
from rhizome.spark.data_source_options import OptionError
from rhizome.spark.source.lease_client import LeaseClient
from rhizome.spark.source.queue_source import QueueStreamReader, queue_settings
from rhizome.spark.source.retry_client import DataLossError
from rhizome.testing.broker_process import Broker, BrokerProcess, wait_until
from tests.spark.driver import ROOT
from tests.spark.streams import declare_stream, fill, numbered, numbers

Unique = Callable[[str], str]
PERSISTENT = Properties(delivery_mode=2)
LIMIT = ReadMaxRows(1000)


def declare(uri: str, name: str, count: int = 0, **arguments: object) -> None:
    given = {key.replace("_", "-"): value for key, value in arguments.items()}
    with Connection(uri) as connection:
        connection.channel().declare_queue(name, durable=True, arguments=given)
    fill(uri, name, numbered(count), PERSISTENT)


def reader_of(broker: Broker, name: str, **options: str) -> QueueStreamReader:
    given = {"uri": broker.url, "subscribe": name, **options}
    reader = RhizomeSource(given).streamReader(schemas.stream())
    assert isinstance(reader, QueueStreamReader)
    return reader


def read(reader: QueueStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """What the tasks of a batch read, as Spark does: from what was pickled."""
    parts = pickle.loads(pickle.dumps(reader.partitions(start, end)))
    copy = pickle.loads(pickle.dumps(reader))
    batches = [batch for part in parts for batch in copy.read(part)]
    return [int(value.as_py()) for value in pa.Table.from_batches(batches)["value"]]


def ready(broker: Broker, name: str) -> int:
    with Connection(broker.url) as connection:
        return int(connection.channel().declare_queue(name, passive=True).message_count)


def left(broker: Broker, name: str) -> list[tuple[int, bool]]:
    """What other consumers get."""
    found = []
    with Connection(broker.url) as connection:
        channel = connection.channel()
        while (message := channel.get(name, no_ack=True)) is not None:
            found.append((int(message.body), message.redelivered))
    return found


def test_a_batch_is_read_again_and_settled_by_the_next_start(
    broker: Broker, unique: Unique
) -> None:
    name = unique("work")
    declare(broker.url, name, 2500)
    reader = reader_of(broker, name, minPartitions="2")
    initial = reader.initialOffset()
    first = reader.latestOffset(initial, LIMIT)
    assert first["next"] == {name: 1000}
    assert len(reader.partitions(initial, first)) == 1
    assert read(reader, initial, first) == list(range(1000))
    reader.stop()
    again = reader_of(broker, name)
    assert read(again, again.initialOffset(), first) == list(range(1000)), "the driver came back"
    second = again.latestOffset(first, LIMIT)
    assert second["next"] == {name: 2000}
    assert read(again, first, second) == list(range(1000, 2000))
    with pytest.raises(DataLossError, match="has the positions 1000 to 1999, and not 0"):
        read(again, initial, first)
    third = again.latestOffset(second, LIMIT)
    assert third["next"] == {name: 2500}
    assert again.latestOffset(third, LIMIT) == third
    again.stop()
    assert left(broker, name) == []


def test_a_batch_is_split_into_frozen_partitions(broker: Broker, unique: Unique) -> None:
    name = unique("split")
    declare(broker.url, name, 10_000)
    reader = reader_of(broker, name, minPartitions="2")
    initial = reader.initialOffset()
    end = reader.latestOffset(initial, ReadMaxRows(10_000))
    other = reader_of(broker, name, minPartitions="7")
    assert [(part.start, part.end) for part in other.partitions(initial, end)] == [  # type: ignore[attr-defined]
        (0, 5000),
        (5000, 10_000),
    ]
    assert read(other, initial, end) == list(range(10_000))
    reader.stop()
    other.stop()


def test_rows_have_everything(broker: Broker, unique: Unique) -> None:
    name = unique("rows")
    declare(broker.url, name)
    properties = Properties(headers={"a": "b"}, message_id="m", delivery_mode=2)
    fill(broker.url, name, [b"0", b"1"], properties)
    reader = reader_of(broker, name)
    initial = reader.initialOffset()
    end = reader.latestOffset(initial, LIMIT)
    (part,) = reader.partitions(initial, end)
    (batch,) = reader.read(part)
    rows = batch.to_pylist()
    assert [row["value"] for row in rows] == [b"0", b"1"]
    assert rows[0]["headers"] == [("a", "b")]
    assert (rows[0]["message_id"], rows[0]["key"], rows[0]["exchange"]) == ("m", name, "")
    assert (rows[0]["queue"], rows[0]["partition"], rows[0]["delivery_mode"]) == (name, 0, 2)
    assert rows[0]["offset"] < rows[1]["offset"], "the index of the message"
    assert rows[0]["timestamp"].year >= 2025
    reader.stop()


def test_restart_of_the_broker_leaves_a_lease_as_it_is(
    own_broker: BrokerProcess, unique: Unique
) -> None:
    name = unique("kept")
    declare(own_broker.url, name, 5)
    reader = reader_of(own_broker, name)
    initial = reader.initialOffset()
    first = reader.latestOffset(initial, ReadMaxRows(3))
    assert read(reader, initial, first) == [0, 1, 2]
    own_broker.kill()
    own_broker.start()
    assert read(reader, initial, first) == [0, 1, 2]
    reader.stop()


def test_query_that_is_gone_gives_its_messages_back(
    own_broker: BrokerProcess, unique: Unique
) -> None:
    name = unique("gone")
    declare(own_broker.url, name, 5)
    reader = reader_of(own_broker, name, leaseId="l")
    initial = reader.initialOffset()
    first = reader.latestOffset(initial, ReadMaxRows(3))
    assert read(reader, initial, first) == [0, 1, 2]
    # Only now may the lease end soon: a busy machine would not read in time.
    hasty = reader_of(own_broker, name, leaseId="l", leaseTimeout="5")
    assert hasty.latestOffset(initial, ReadMaxRows(3)) == first
    for each in (reader, hasty):
        each.stop()
    wait_until(lambda: ready(own_broker, name) == 5, "the messages to come back", 60)
    assert left(own_broker, name) == [(0, True), (1, True), (2, True), (3, False), (4, False)]
    again = reader_of(own_broker, name)
    with pytest.raises(DataLossError, match="has expired: nothing was heard of its reader for 5 s"):
        again.latestOffset(first, LIMIT)
    fill(own_broker.url, name, [b"9"], PERSISTENT)
    careless = reader_of(own_broker, name, failOnDataLoss="false")
    second = careless.latestOffset(first, LIMIT)
    assert second["lease"] != first["lease"]
    assert read(careless, first, second) == [9]
    for each in (again, careless):
        each.stop()


def test_signs_of_life_keep_a_lease_while_a_batch_takes_long(
    broker: Broker, unique: Unique
) -> None:
    name = unique("alive")
    declare(broker.url, name, 2)
    given = {"uri": broker.url, "subscribe": name}
    settings = replace(queue_settings(given), keep_s=2)
    reader = QueueStreamReader(settings, schemas.stream())
    initial = reader.initialOffset()
    end = reader.latestOffset(initial, LIMIT)
    signs = reader._signs
    assert signs is not None
    wait_until(lambda: signs.shown >= 6, "signs for longer than the lease lives without", 60)
    assert read(reader, initial, end) == [0, 1]
    reader.stop()


def test_options_are_checked(broker: Broker, unique: Unique) -> None:
    queue, stream = unique("q"), unique("s")
    declare(broker.url, queue)
    declare_stream(broker.url, stream)
    with pytest.raises(OptionError, match=r"names work queues \(q-.*\) and others"):
        reader_of(broker, f"{queue},{stream}")
    with pytest.raises(OptionError, match="'startingOffsets' is for streams"):
        reader_of(broker, queue, startingOffsets="earliest")
    with pytest.raises(OptionError, match="did you mean 'leaseTimeout'"):
        reader_of(broker, queue, leaseTimeOuts="5")
    with pytest.raises(OptionError, match="a whole number, 5 or more"):
        reader_of(broker, queue, leaseTimeout="1")
    with pytest.raises(OptionError, match="names a queue twice"):
        reader_of(broker, f"{queue},{queue}")
    single = unique("single")
    declare(broker.url, single, x_single_active_consumer=True)
    with pytest.raises(OptionError, match="has a single active consumer"):
        reader_of(broker, single)
    given = {"uri": "amqp://someone:secret@h/", "subscribe": "q"}
    assert "secret" not in repr(queue_settings(given))


# ---- in Spark --------------------------------------------------------------------------------


def start_query(spark: Any, broker: Broker, name: str, directory: Path, **options: str) -> Any:
    return (
        spark.readStream.format("rhizome")
        .option("uri", broker.url)
        .option("subscribe", name)
        .options(**options)
        .load()
        .select("value")
        .writeStream.format("parquet")
        .option("path", str(directory / "out"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def test_queries_empty_a_queue_each_message_once(
    spark: Any, broker: Broker, unique: Unique, tmp_path: Path
) -> None:
    name = unique("query")
    declare(broker.url, name, 2500)
    query = start_query(spark, broker, name, tmp_path, maxOffsetsPerTrigger="1000")
    query.awaitTermination(200)
    assert query.exception() is None
    assert [batch["numInputRows"] for batch in query.recentProgress] == [1000, 1000, 500]
    assert "guest" not in query.lastProgress.json
    assert ready(broker, name) == 0
    client = LeaseClient(addresses_of(broker.url), 10)
    lease = json.loads(query.lastProgress.json)["sources"][0]["endOffset"]["lease"]
    told = client.ask(name, lease)
    client.close()
    assert told.first == told.next, "the last batch was settled, too"
    fill(broker.url, name, numbered(10, 2500), PERSISTENT)
    query = start_query(spark, broker, name, tmp_path)
    query.awaitTermination(200)
    assert query.exception() is None
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(numbers(rows)) == list(range(2510))


DRIVER = """
import os, sys, time
from pathlib import Path
from rhizome.spark import register
from rhizome.spark.session import local_session
from tests.spark.driver import Kept

uri, name, directory, seconds = sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4]
go_on = str(directory / "go-on")

def slowly(batches):
    for batch in batches:
        yield batch
    Path(directory / f"read-{os.getpid()}").touch()
    while not Path(go_on).exists():
        time.sleep(0.05)

spark = local_session("driver", "local[2]", directory / "spark", quick=True)
register(spark)
query = Kept(lambda: (
    spark.readStream.format("rhizome").option("uri", uri).option("subscribe", name)
    .option("maxOffsetsPerTrigger", "400").option("minPartitions", "2")
    .option("leaseTimeout", seconds).load().select("value")
    .mapInArrow(slowly, "value binary").writeStream.format("parquet")
    .option("path", str(directory / "out"))
    .option("checkpointLocation", str(directory / "checkpoint"))
    .trigger(availableNow=True).start()
))
query.wait()
"""


class SlowDriver:
    """A process with the script above. It goes no further than its first batch until told to."""

    def __init__(self, uri: str, name: str, directory: Path, lease_s: int) -> None:
        self.directory = directory
        self.commits = directory / "checkpoint" / "commits"
        script = directory / "driver.py"
        script.write_text(textwrap.dedent(DRIVER))
        self._command = [sys.executable, str(script), uri, name, str(directory), str(lease_s)]
        self._environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}

    def kill_amid_a_batch(self) -> None:
        """Start it, and kill -9 it when tasks have read and nothing is committed."""
        driver = subprocess.Popen(self._command, env=self._environment, start_new_session=True)

        def has_read() -> bool:
            assert driver.poll() is None, "the driver has ended"
            return any(self.directory.glob("read-*"))

        try:
            wait_until(has_read, "tasks that have read", 600)
            assert not (self.commits / "0").exists()
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
        for file in self.directory.glob("read-*"):
            file.unlink()

    def finish(self) -> None:
        (self.directory / "go-on").touch()
        subprocess.run(
            self._command, env=self._environment, start_new_session=True, timeout=600, check=True
        )

    def written(self) -> list[int]:
        """What counts of the Parquet files."""
        manifest = [
            line
            for file in sorted((self.directory / "out" / "_spark_metadata").glob("[0-9]*"))
            for line in file.read_text().splitlines()[1:]
        ]
        files = [json.loads(line)["path"].removeprefix("file://") for line in manifest]
        return [int(value) for file in files for value in pq.read_table(file)["value"].to_pylist()]


@pytest.mark.soak
@pytest.mark.timeout(2400)
def test_driver_killed_amid_a_batch_gives_each_message_once(
    own_broker: BrokerProcess, unique: Unique, tmp_path: Path
) -> None:
    name = unique("killed")
    declare(own_broker.url, name, 1000)
    driver = SlowDriver(own_broker.url, name, tmp_path, lease_s=600)
    driver.kill_amid_a_batch()
    driver.kill_amid_a_batch()
    driver.finish()
    assert sorted(driver.written()) == list(range(1000))
    assert left(own_broker, name) == []


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_messages_of_a_killed_driver_go_to_other_consumers(
    own_broker: BrokerProcess, unique: Unique, tmp_path: Path
) -> None:
    name = unique("deserted")
    declare(own_broker.url, name, 1000)
    driver = SlowDriver(own_broker.url, name, tmp_path, lease_s=20)
    driver.kill_amid_a_batch()
    wait_until(lambda: ready(own_broker, name) == 1000, "the messages to come back", 60)
    assert left(own_broker, name) == [(number, number < 400) for number in range(1000)]
    assert driver.written() == []
