"""Audit and other jobs on journals that are read through running brokers, without their disks."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rhizome.cli.pipeline.pipeline_command import VIOLATIONS_EXIT_CODE
from rhizome.client.blocking import Connection
from rhizome.journal.records import KIND_ENQUEUE
from rhizome.spark.jobs import audit, deadletters, timetravel, traffic
from rhizome.spark.jobs.job_progress import Figures
from rhizome.spark.journal.broker_stores import StorePlace
from rhizome.spark.journal.remote_broker_stores import stores_of
from rhizome.testing.broker_process import BrokerProcess, wait_until
from rhizome.testing.cluster_process import ClusterProcess
from tests.spark import damage
from tests.spark.cli import command
from tests.spark.damage import DAMAGES, Segment, index_of, lose_group
from tests.spark.jobs.test_audit_cluster import PERSISTENT, THREE_COPIES, busy, wait_for_copies
from tests.spark.jobs.test_audit_cluster import traffic as fill

SMALL_SEGMENTS = {"RHIZOME_JOURNAL_SEGMENT_SIZE": "1MiB"}
COUNT = 400
PATIENCE_S = 60.0


def uri_of(broker: BrokerProcess, user: str = "guest") -> str:
    return f"http://{user}:{user}@127.0.0.1:{broker.http_port}"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    def small(name: str, directory: Path) -> BrokerProcess:
        return BrokerProcess(directory, environment=SMALL_SEGMENTS)

    cluster = ClusterProcess(tmp_path / "cluster", 3, seed=11, make=small)
    cluster.start()
    yield cluster
    cluster.kill()


def declare(cluster: ClusterProcess, *queues: str) -> dict[str, int]:
    """Queues with three copies; the group of each."""
    with Connection(cluster.url) as connection:
        channel = connection.channel(confirms=True)
        for queue in queues:
            channel.declare_queue(queue, durable=True, arguments=THREE_COPIES)
    state = state_of(cluster)
    return {row["name"]: row["group"] for row in state["queues"] if row["name"] in queues}


def state_of(cluster: ClusterProcess) -> Any:
    place = StorePlace("", uri_of(cluster.brokers["b1"]), "b1")
    (store,) = stores_of(place, PATIENCE_S)
    return store.client.document("GET", f"{store.path}/state")


def send(cluster: ClusterProcess, queue: str, count: int, size: int) -> None:
    with Connection(cluster.url) as connection:
        channel = connection.channel(confirms=True)
        bodies = [b"message %d " % number + b"x" * size for number in range(count)]
        channel.publish_many(bodies, routing_key=queue, properties=PERSISTENT)


def settle_some(cluster: ClusterProcess, queue: str) -> None:
    """Acknowledge the messages 10 to 59, each by itself."""
    with Connection(cluster.url) as connection:
        channel = connection.channel()
        for number in range(60):
            message = channel.get(queue)
            assert message is not None
            if number >= 10:
                message.ack()


def test_running_cluster_is_sound_under_load_and_its_traffic_counts_once(
    spark: Any, cluster: ClusterProcess
) -> None:
    fill(cluster)
    wait_for_copies(cluster)
    uri = uri_of(cluster.brokers["b1"])
    with busy(cluster):
        report = audit.run(spark, audit.AuditOptions(uri=uri))
    assert report.is_sound, report.document()
    assert set(report.stores.values()) == {"b1", "b2", "b3"}
    assert report.messages >= 3 * 600
    whole = {group for group, copies in report.copies.items() if len(copies) == 3}
    streams = {row["group"] for row in state_of(cluster)["queues"] if row["stream"]}
    assert whole & streams, report.document()
    assert whole - streams, report.document()
    wait_until(lambda: pins_of(*cluster.brokers.values()) == [], "the end of the pins")

    declare(cluster, "counted")
    send(cluster, "counted", 30, 10)
    wait_for_copies(cluster)
    options = traffic.TrafficOptions(uri_of(cluster.brokers["b2"]), where="queue = 'counted'")
    assert traffic.run(spark, options).messages == 30
    travelled = timetravel.TimetravelOptions(
        "", "counted", 4_000_000_000_000, uri=uri_of(cluster.brokers["b3"])
    )
    assert timetravel.run(spark, travelled).first.messages == 30


def test_all_kinds_of_damage_are_found_at_running_brokers(
    spark: Any,
    cluster: ClusterProcess,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """So little is written that no broker takes the time for a checkpoint, which would have a use
    for fewer records."""
    groups = declare(cluster, *(f"q{number}" for number in range(6)))
    # A copy that came later would have what is left of the messages, and no acknowledgements.
    wait_for_copies(cluster)
    first = "q0"
    other = next(name for name, group in groups.items() if group != groups[first])
    send(cluster, other, 20, 100)
    send(cluster, first, 70, 100)
    settle_some(cluster, first)
    send(cluster, first, COUNT, 10_000)
    wait_for_copies(cluster)
    wanted = damaged(cluster, groups[first], groups[other], monkeypatch)
    uri = uri_of(cluster.brokers["b1"])
    assert command("pipeline", "audit", "--uri", uri, "--json") == VIOLATIONS_EXIT_CODE
    found = json.loads(capsys.readouterr().out)
    kinds = {(each["kind"], each["broker"]) for each in found["violations"]}
    assert wanted <= kinds, json.dumps(found["violations"], indent=1)
    assert set(found["counts"]) >= set(DAMAGES)
    assert {each["broker"] for each in found["violations"]} == {"b2", "b3"}


def pins_of(*brokers: BrokerProcess) -> list[Path]:
    return [path for broker in brokers for path in (broker.data / "pins").glob("*/*")]


def damaged(
    cluster: ClusterProcess, group: int, other: int, monkeypatch: pytest.MonkeyPatch
) -> set[tuple[str, str]]:
    """Change the files of two brokers while they run, in sealed segments; nothing is written to
    them any more."""
    monkeypatch.setattr(damage, "GROUP", group)
    b2, b3 = cluster.brokers["b2"].data, cluster.brokers["b3"].data
    done = {**DAMAGES, "swapped order": swap_two_records, "lost record": lose_a_live_record}
    for kind, do in done.items():
        if kind not in ("missing copy", "truncated segment"):
            do(b2)
    sizes = {path: path.stat().st_size for path in (b3 / "journal").glob("*.seg")}
    lose_group(b3, other)
    for path, size in sizes.items():
        os.truncate(path, size)
    damage.truncate_a_segment(b3)
    return {
        *((kind, "b2") for kind in DAMAGES if kind not in ("missing copy", "truncated segment")),
        ("missing copy", "b3"),
        ("truncated segment", "b3"),
    }


def lose_a_live_record(store: Path) -> int:
    """Message 3 was not acknowledged."""
    segment = Segment(store, 1)
    places = segment.places(KIND_ENQUEUE, damage.GROUP)
    place = next(each for each in places if b"message 3 " in segment.records[each])
    index = index_of(segment.records.pop(place))
    segment.write()
    return index


def swap_two_records(store: Path) -> int:
    """Two messages of a batch."""
    segment = Segment(store, 1)
    places = segment.places(KIND_ENQUEUE, damage.GROUP)
    place = next(each for each in places[60:] if each + 1 in places)
    records = segment.records
    records[place], records[place + 1] = records[place + 1], records[place]
    segment.write()
    return index_of(records[place + 1])


def test_broker_that_dies_amid_an_audit_and_comes_back_is_read_again(
    spark: Any, tmp_path: Path
) -> None:
    broker = BrokerProcess(tmp_path / "own")
    broker.start()
    try:
        with Connection(broker.url) as connection:
            channel = connection.channel(confirms=True)
            channel.declare_queue("orders", durable=True)
            channel.publish_many([b"x" * 100] * 1000, routing_key="orders", properties=PERSISTENT)
        killed = threading.Event()

        def kill_once(figures: Figures) -> None:
            if figures.stage == "reading journals" and not killed.is_set():
                killed.set()
                broker.kill()
                broker.start()

        report = audit.run(spark, audit.AuditOptions(uri=uri_of(broker)), kill_once)
        assert killed.is_set()
        assert report.is_sound, report.document()
        assert report.messages >= 1000
    finally:
        broker.close()


def test_jobs_read_a_running_broker(
    spark: Any, own_broker: BrokerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Connection(own_broker.url) as connection:
        channel = connection.channel(confirms=True)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        channel.declare_queue("dead", durable=True)
        channel.declare_queue("orders", durable=True, arguments=arguments)
        bodies = [b'{"number": %d}' % number for number in range(50)]
        channel.publish_many(bodies, routing_key="orders", properties=PERSISTENT)
        for _ in range(20):
            message = channel.get("orders")
            assert message is not None
            message.nack(requeue=False)
    add_user(own_broker, "eve", "auditor")
    capsys.readouterr()
    uri = uri_of(own_broker, "eve")

    found = deadletters.run(spark, deadletters.DeadletterOptions(uri, queue="dead"))
    (group,) = found.groups
    assert (group["messages"], group["died_in"], group["shape"]) == (20, "orders", "{number}")

    page = str(tmp_path / "traffic.html")
    assert command("pipeline", "traffic", "--uri", uri, "--html", page, "--json") == 0
    counted = json.loads(capsys.readouterr().out)
    assert counted["messages"] == 70
    assert [each["of"] for each in counted["latencies"]] == ["waiting in queues"]
    assert {name: count for name, count, _ in counted["top"]["queue"]} == {"orders": 50, "dead": 20}

    at = ("--at", "2100-01-01T00:00:00Z")
    assert command("pipeline", "timetravel", "orders", *at, "--uri", uri, "--json") == 0
    travelled = json.loads(capsys.readouterr().out)
    assert travelled["first"]["messages"] == 30
    wait_until(lambda: pins_of(own_broker) == [], "the end of the pins")

    add_user(own_broker, "bob", "monitoring")
    capsys.readouterr()
    assert command("pipeline", "audit", "--uri", uri_of(own_broker, "bob")) == 1
    told = capsys.readouterr().err
    assert "needs the tag auditor" in told
    assert "bob:bob" not in told


def add_user(broker: BrokerProcess, name: str, tags: str) -> None:
    http = f"127.0.0.1:{broker.http_port}"
    given = ("--new-password", name, "--tags", tags, "--http", http)
    assert command("user", "add", name, *given) == 0
