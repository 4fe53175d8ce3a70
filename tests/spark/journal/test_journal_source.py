"""The journal source in Spark, on journals that a real broker writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rhizome.amqp.properties import Properties
from rhizome.client.blocking import Connection
from rhizome.spark import schema
from rhizome.spark.data_source_options import Options
from rhizome.spark.journal import broker_stores
from rhizome.spark.journal.journal_source import (
    GONE,
    OPTIONS,
    CheckpointPart,
    JournalDamagedError,
    JournalReader,
    SegmentRange,
)
from rhizome.testing.broker_process import BrokerProcess
from tests.spark.journals import JournalFiles


def test_lifecycle_of_messages_is_a_table(spark: Any, own_broker: BrokerProcess) -> None:
    with Connection(own_broker.url) as connection:
        channel = connection.channel(confirms=True)
        channel.declare_queue("orders", durable=True)
        bodies = [b"order %d" % number for number in range(20)]
        channel.publish_many(bodies, routing_key="orders", properties=Properties(delivery_mode=2))
        for _ in range(5):
            message = channel.get("orders")
            assert message is not None
            message.ack()
    rows = (
        spark.read.format("rhizome.journal")
        .option("queue", "orders")
        .load(str(own_broker.data))
        .orderBy("segment", "offset", "index")
        .collect()
    )
    enqueued = [row for row in rows if row.event == "enqueued"]
    assert [row.message.value for row in enqueued] == [b"order %d" % n for n in range(20)]
    assert {(row.vhost, row.queue, row.message.key) for row in enqueued} == {
        ("/", "orders", "orders")
    }
    settled = [row["index"] for row in rows if row.event == "dequeued"]
    assert settled == [row["index"] for row in enqueued[:5]]


def test_columns_are_chosen_by_the_schema(spark: Any, tmp_path: Path) -> None:
    store = JournalFiles(tmp_path)
    for number in range(100):
        store.message([1], b"%d" % number)
    store.flush()
    found = (
        spark.read.format("rhizome.journal")
        .schema("index BIGINT, message STRUCT<value BINARY>")
        .load(str(tmp_path))
    )
    assert found.columns == ["index", "message"]
    assert {(row["index"], bytes(row.message.value)) for row in found.collect()} == {
        (number + 1, b"%d" % number) for number in range(100)
    }


def test_segments_are_read_in_parallel_each_once(spark: Any, tmp_path: Path) -> None:
    store = JournalFiles(tmp_path, segment_bytes=4096)
    for _ in range(500):
        store.message([1, 2], b"x" * 100)
    store.flush()
    found = (
        spark.read.format("rhizome.journal").option("minPartitions", 5).load(str(tmp_path)).cache()
    )
    assert found.rdd.getNumPartitions() >= 5
    assert found.count() == 1000
    assert found.select("index", "queue_id").distinct().count() == 1000


def test_plan_and_checkpoint_of_a_running_broker_belong_together(tmp_path: Path) -> None:
    """A later checkpoint would name records of segments that the plan doesn't know."""
    store = JournalFiles(tmp_path)
    store.message([1])
    store.flush()
    planned = tmp_path / "journal" / "checkpoint-0000000001"
    planned.write_bytes(b"no checkpoint")
    options = Options({"path": str(tmp_path), "checkpoints": "true"}, OPTIONS, "rhizome.journal")
    reader = JournalReader(schema.journal(), options)
    segments, checkpoint = reader.partitions()
    assert isinstance(segments, SegmentRange)
    assert isinstance(checkpoint, CheckpointPart)
    (tmp_path / "journal" / "checkpoint-0000000002").write_bytes(b"another")
    assert checkpoint.names == [planned.name]
    assert list(reader.read(checkpoint)) == []
    planned.unlink()
    with pytest.raises(JournalDamagedError, match=f"checkpoint-0000000001 of .* {GONE}"):
        list(reader.read(checkpoint))


@pytest.mark.parametrize(("history", "segments"), [("true", [[1], [2, 3]]), ("false", [[2, 3]])])
def test_retired_segments_are_read_if_asked_for(
    tmp_path: Path, history: str, segments: list[list[int]]
) -> None:
    store = JournalFiles(tmp_path, segment_bytes=4096)
    while int(store.journal.end_position()) >> 32 < 3:
        store.message([1], b"x" * 100)
    store.flush()
    (tmp_path / "history").mkdir()
    store.segment(1).rename(tmp_path / "history" / store.segment(1).name)
    given = {"path": str(tmp_path), "history": history, "minPartitions": "1"}
    reader = JournalReader(schema.journal(), Options(given, OPTIONS, "rhizome.journal"))
    parts = [part for part in reader.partitions() if isinstance(part, SegmentRange)]
    assert [part.segments for part in parts] == segments
    found = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    assert [row["index"] for row in found][-1] == store.index
    assert (len(found) == store.index) == (history == "true")


def test_segment_that_is_a_dangling_link_is_told(tmp_path: Path) -> None:
    store = JournalFiles(tmp_path)
    store.flush()
    (tmp_path / "journal" / "0000000009.seg").symlink_to(tmp_path / "nowhere")
    (segments,) = broker_stores.segments_of(tmp_path)
    with pytest.raises(broker_stores.StoreError, match="change each time they are listed"):
        segments.listed()


def test_unknown_option_is_told_by_name(spark: Any, tmp_path: Path) -> None:
    JournalFiles(tmp_path).flush()
    with pytest.raises(Exception, match="did you mean 'damage'"):
        spark.read.format("rhizome.journal").option("demage", "rows").load(str(tmp_path)).count()


def test_store_without_segments_has_no_rows(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    assert spark.read.format("rhizome.journal").load(str(tmp_path)).count() == 0
