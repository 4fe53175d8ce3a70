"""The audit of stores that real brokers wrote, while they run and afterwards."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rhizome.amqp.properties import Properties
from rhizome.client.blocking import Connection
from rhizome.journal.records import FLAG_ORIGIN, KIND_ENQUEUE, ORIGIN_BYTES, crc32c
from rhizome.journal.streams.stream_format import (
    KIND_MESSAGES,
    STREAM_HEADER_BYTES,
    UNCHECKED_BYTES,
    ChunkHead,
)
from rhizome.spark.jobs.audit import AuditOptions, run
from rhizome.spark.jobs.audit_findings import CHANGED, DIVERGING, MISSING
from rhizome.spark.journal import broker_stores
from rhizome.testing.broker_process import wait_until
from rhizome.testing.cluster_process import ClusterProcess
from tests.spark.damage import Segment, index_of, lose_group, resealed

QUEUES = ("orders", "payments", "mails")
STREAM = "events"
THREE_COPIES = {"x-queue-type": "quorum", "x-quorum-initial-group-size": 3}
PERSISTENT = Properties(delivery_mode=2)
SECONDS_MAX = 120.0
# The log is replaced by a snapshot after 8 MiB of commands.
BULKY_BINDINGS = 600
BULKY_BYTES = 15_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    cluster = ClusterProcess(tmp_path / "cluster", primaries=3, seed=5)
    cluster.start()
    yield cluster
    cluster.kill()


def paths(cluster: ClusterProcess) -> str:
    return ",".join(str(broker.data) for broker in cluster.brokers.values())


def traffic(cluster: ClusterProcess) -> None:
    """Messages, half of which are settled, and so many bindings that the log is cut."""
    with Connection(cluster.url) as connection:
        channel = connection.channel(confirms=True)
        for queue in QUEUES:
            channel.declare_queue(queue, durable=True, arguments=THREE_COPIES)
        for queue in QUEUES:
            bodies = [b"%d" % number for number in range(200)]
            channel.publish_many(bodies, routing_key=queue, properties=PERSISTENT)
            for _ in range(100):
                message = channel.get(queue, no_ack=True)
                assert message is not None
        arguments = {"x-queue-type": "stream", "x-initial-cluster-size": 3}
        channel.declare_queue(STREAM, durable=True, arguments=arguments)
        channel.publish_many([b"event"] * 200, routing_key=STREAM)
        channel.declare_exchange("bulky", "headers")
        for number in range(BULKY_BINDINGS):
            arguments = {"text": f"{number} " + "x" * BULKY_BYTES}
            channel.bind_queue(QUEUES[0], "bulky", str(number), arguments=arguments)


def wait_for_copies(cluster: ClusterProcess) -> None:
    """Until each group with a queue has two standbys in sync."""

    def is_whole() -> bool:
        known = [each for each in cluster.status("b1").get("groups", []) if each["queues"]]
        return bool(known) and all(len(each["in_sync"]) == 2 for each in known)

    wait_until(is_whole, "copies", SECONDS_MAX)


@contextmanager
def busy(cluster: ClusterProcess) -> Iterator[None]:
    """Messages come and go all the while, and some have before it begins."""
    enough, begun = threading.Event(), threading.Event()

    def publish_and_take() -> None:
        with Connection(cluster.url) as connection:
            channel = connection.channel(confirms=True)
            while not enough.is_set():
                for queue in QUEUES:
                    bodies = [b"more %d" % number for number in range(20)]
                    channel.publish_many(bodies, routing_key=queue, properties=PERSISTENT)
                    for _ in range(20):
                        assert channel.get(queue, no_ack=True) is not None
                begun.set()

    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(publish_and_take)
        try:
            wait_until(lambda: begun.is_set() or work.done(), "traffic", SECONDS_MAX)
            yield
        finally:
            enough.set()
        work.result()


def has_snapshot(data: Path) -> bool:
    connection = sqlite3.connect(
        f"{(data / broker_stores.CLUSTER_DATABASE).as_uri()}?mode=ro", uri=True
    )
    try:
        query = "SELECT length(value) FROM facts WHERE name = 'snapshot'"
        return connection.execute(query).fetchone() is not None
    finally:
        connection.close()


def test_audit_of_a_real_cluster_live_and_damaged(
    spark: Any, cluster: ClusterProcess, tmp_path: Path
) -> None:
    traffic(cluster)
    wait_for_copies(cluster)
    for broker in cluster.brokers.values():
        wait_until(lambda data=broker.data: has_snapshot(data), "a snapshot", SECONDS_MAX)
        known = broker_stores.state_of(broker.data)
        assert known.trouble == ""
        assert known.broker == broker.directory.name
        assert set(QUEUES) <= set(known.names.queues.values())

    with busy(cluster):
        report = run(spark, AuditOptions(paths(cluster)))
    assert report.is_sound, report.document()
    assert set(report.stores.values()) == {"b1", "b2", "b3"}
    assert report.messages >= 3 * 600
    streams = set(broker_stores.state_of(cluster.brokers["b1"].data).streams.values())
    whole = [group for group, names in report.copies.items() if len(names) == 3]
    groups = [group for group in whole if group not in streams]
    (stream,) = streams
    assert stream in whole, report.document()
    assert groups, report.document()
    assert sum(report.compared_at[group] for group in groups) >= 600

    # Brokers that stop one by one leave the sets of copies; what is damaged must count.
    cluster.kill()
    copies = tmp_path / "copies"
    for name, broker in cluster.brokers.items():
        shutil.copytree(broker.data, copies / name)
    damaged = damage(copies, groups[0], groups[1])
    damaged.add((CHANGED, "b3", stream, change_chunk(copies / "b3")))
    report = run(spark, AuditOptions(f"{copies}/b*"))
    found = {(each.kind, each.broker, each.group, each.index) for each in report.violations}
    assert damaged <= found, report.document()
    assert {(each[1], each[2]) for each in found} == {
        ("b2", groups[1]),
        ("b3", groups[0]),
        ("b3", stream),
    }


def damage(copies: Path, group: int, other: int) -> set[tuple[str, str, int, int | None]]:
    """Of a group another body, and another epoch for a record, at b3; the copy of another is gone
    at b2."""
    lose_group(copies / "b2", other)
    for path in (copies / "b2" / "journal").glob("checkpoint-*"):
        path.unlink()
    numbers = sorted(int(path.stem) for path in (copies / "b3" / "journal").glob("*.seg"))
    segments = [Segment(copies / "b3", number) for number in numbers]
    segment, places = next(
        (each, places) for each in segments if len(places := each.places(KIND_ENQUEUE, group)) > 1
    )
    changed, diverged = (segment.records[place] for place in (places[0], places[-1]))
    segment.records[places[0]] = with_another_body(changed)
    segment.records[places[-1]] = resealed(diverged[:12] + b"\0\0\0\x63" + diverged[16:])
    segment.write()
    return {
        (MISSING, "b2", other, None),
        (CHANGED, "b3", group, index_of(changed)),
        (DIVERGING, "b3", group, index_of(diverged)),
    }


def change_chunk(store: Path) -> int:
    """Another body for a message of the stream; the first offset of its chunk."""
    (path,) = (store / "streams").glob("*/*.seg")
    data = bytearray(path.read_bytes())
    at = STREAM_HEADER_BYTES
    while (head := ChunkHead(bytes(data), at)).kind != KIND_MESSAGES:
        at += int(head.size)
    end = at + int(head.size)
    data[end - 2] ^= 1  # before the end of the frame
    data[at + 8 : at + 12] = crc32c(bytes(data[at + UNCHECKED_BYTES : end])).to_bytes(4, "big")
    path.write_bytes(data)
    return int(head.first)


def with_another_body(record: bytes) -> bytes:
    """What was published through another broker than the home ends with its origin."""
    end = len(record) - (ORIGIN_BYTES if record[9] & FLAG_ORIGIN else 0)
    return resealed(record[: end - 1] + b"?" + record[end:])
