"""Procedures of docs/operating/runbook.md, done as they are written."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from rhizome.testing.broker_process import BrokerProcess, wait_until
from rhizome.testing.cluster_process import ClusterProcess
from tests.process.cluster.test_drain import wait_for_copies
from tests.process.helpers import contents, run
from tests.process.network_namespaces import Network, why_not

REFUSAL = why_not()
SECONDS_MAX = 180.0
QUEUES = {"orders": ["one", "two"], "mails": ["three"], "jobs": []}

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]


def rhizome(broker: BrokerProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    where = ("--http", f"{broker.host}:{broker.http_port}")
    return subprocess.run(
        [sys.executable, "-m", "rhizome", *arguments, *where],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def fill(broker: BrokerProcess) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.port))
    channel = connection.channel()
    channel.confirm_delivery()
    for queue, bodies in QUEUES.items():
        channel.queue_declare(queue, durable=True)
        for body in bodies:
            channel.basic_publish("", queue, body.encode(), pika.BasicProperties(delivery_mode=2))
    connection.close()


def found(broker: BrokerProcess) -> dict[str, list[str]]:
    return {queue: [body.decode() for body in run(contents(broker, queue))] for queue in QUEUES}


def pack(broker: BrokerProcess) -> Path:
    """As the runbook does it: ``tar`` of the data directory of a stopped broker."""
    archive = broker.directory / "backup.tar.gz"
    tar("-cpzf", archive, "-C", broker.data.parent, broker.data.name)
    return archive


def unpack(broker: BrokerProcess, archive: Path) -> None:
    broker.data.rename(broker.data.with_name("old"))
    tar("-xpzf", archive, "-C", broker.data.parent)


def tar(*arguments: str | Path) -> None:
    subprocess.run(["tar", *map(str, arguments)], check=True, timeout=SECONDS_MAX)


def test_a_lone_broker_is_restored_from_a_copy_of_its_store(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        fill(broker)
        broker.stop_cleanly()
        archive = pack(broker)
        broker.start()
        assert rhizome(broker, "queue", "delete", "orders").returncode == 0
        broker.stop_cleanly()
        unpack(broker, archive)
        broker.start()
        assert found(broker) == QUEUES


def test_definitions_of_one_cluster_are_another_ones(tmp_path: Path) -> None:
    file = str(tmp_path / "definitions.json")
    with BrokerProcess(tmp_path / "one") as one:
        fill(one)
        rhizome(one, "user", "add", "ann", "--new-password", "x", "--tags", "monitoring")
        exported = rhizome(one, "definitions", "export", file)
        assert exported.returncode == 0, exported.stderr
    with BrokerProcess(tmp_path / "two") as two:
        imported = rhizome(two, "definitions", "import", file)
        assert imported.returncode == 0, imported.stderr
        assert "3 queues" in imported.stdout
        assert found(two) == {queue: [] for queue in QUEUES}
        assert rhizome(two, "status", "--user", "ann", "--password", "x").returncode == 0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    cluster = ClusterProcess(tmp_path, primaries=3, seed=6)
    cluster.start()
    yield cluster
    cluster.kill()


def test_a_cluster_is_restored_from_copies_of_all_its_stores(cluster: ClusterProcess) -> None:
    """All stopped at one time; the machines are lost, and the copies are all that is left."""
    fill(cluster.brokers["b1"])
    cluster.stop()
    archives = {name: pack(broker) for name, broker in cluster.brokers.items()}
    for name, broker in cluster.brokers.items():
        unpack(broker, archives[name])
        shutil.rmtree(broker.data.with_name("old"))
    cluster.restart()
    cluster.wait_until_whole()
    assert found(cluster.brokers["b2"]) == QUEUES
    doctor_is_content(cluster)


def test_a_broker_that_has_lost_its_disk_begins_anew_under_its_old_name(
    cluster: ClusterProcess,
) -> None:
    fill(cluster.brokers["b1"])
    wait_for_copies(cluster, "b1")
    victim = next(name for name in cluster.brokers if name != cluster.wait_for_root())
    broker = cluster.brokers[victim]
    broker.kill()
    shutil.rmtree(broker.data)
    broker.start()
    cluster.wait_until_whole()
    wait_for_copies(cluster, victim)
    doctor_is_content(cluster)
    assert found(broker) == QUEUES


def doctor_is_content(cluster: ClusterProcess) -> None:
    def content() -> bool:
        results = [rhizome(broker, "doctor") for broker in cluster.brokers.values()]
        return [each.stdout.count("0 problems, 0 warnings") for each in results] == [1, 1, 1]

    wait_until(content, "doctors that find nothing", SECONDS_MAX)


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network(["b1", "b2", "b3"])
    try:
        network.build()
        yield network
    finally:
        network.tear_down()


@pytest.mark.skipif(bool(REFUSAL), reason=REFUSAL)
def test_a_partition_is_told_on_both_sides_and_mends_itself(
    network: Network, tmp_path: Path
) -> None:
    cluster = ClusterProcess(tmp_path, primaries=3, make=network.broker, seed=7)
    try:
        cluster.start()
        fill(cluster.brokers["b1"])
        wait_for_copies(cluster, "b1")
        alone = cluster.wait_for_root()
        others = [name for name in cluster.brokers if name != alone]
        network.part([alone], others)
        cluster.wait_for_root_among(others, but=alone)
        cluster.wait_for_status(alone, "isolated")
        status = rhizome(cluster.brokers[alone], "status").stdout
        assert "isolated" in status, status
        print(status)
        for name in (alone, others[0]):
            examined = rhizome(cluster.brokers[name], "doctor")
            print(name, examined.stdout)
            assert examined.returncode == 1
        assert found(cluster.brokers[others[0]]) == QUEUES
        network.heal()
        cluster.wait_until_whole()
        assert found(cluster.brokers[alone]) == QUEUES
    finally:
        network.heal()
        cluster.kill()
