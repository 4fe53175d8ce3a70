"""Real homes that live and can't serve everybody: clients go on while the trouble lasts.

A home that one other broker can't reach, and a home whose disk is full.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rhizome.client import connect
from rhizome.testing.broker_process import wait_until
from rhizome.testing.cluster_process import ClusterProcess
from tests.process.client_workers import Workers
from tests.process.cluster.test_takeover import (
    assert_nobody_gave_up,
    assert_nothing_went_wrong,
    wait_for_copies,
)
from tests.process.helpers import call_api, run
from tests.process.network_namespaces import Network, why_not
from tests.process.small_disks import SMALL_DISK_SETTINGS, SmallDisks

REFUSAL = why_not()

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(REFUSAL), reason=REFUSAL),
]

NAMES = ["b1", "b2", "b3"]
PATIENCE_SECONDS = 60.0
LITTLE_BYTES = 8 << 20


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network(NAMES, SMALL_DISK_SETTINGS)
    try:
        network.build()
        yield network
    finally:
        network.tear_down()


@pytest.fixture
def cluster(network: Network, tmp_path: Path) -> Iterator[ClusterProcess]:
    cluster = ClusterProcess(tmp_path, primaries=3, seed=8, make=network.broker)
    disks = SmallDisks(each.data for each in cluster.brokers.values())
    try:
        disks.mount()
        cluster.start()
        yield cluster
    finally:
        cluster.kill()
        disks.unmount()


def queue_of(name: str) -> str:
    return f"queue-of-{name}"


def declare_everywhere(cluster: ClusterProcess) -> None:
    """A queue at each broker."""

    async def declare() -> None:
        url = next(iter(cluster.brokers.values())).url
        async with connect(url) as connection, connection.channel() as channel:
            for name in NAMES:
                arguments = {"x-group": name}
                await channel.declare_queue(queue_of(name), durable=True, arguments=arguments)

    run(declare())
    wait_for_copies(cluster)


def start_work(cluster: ClusterProcess, stay: str) -> Workers:
    """A publisher and a consumer of each queue, all of them at one broker."""
    workers = Workers(cluster, [queue_of(name) for name in NAMES], seed=9, pace_s=0.02)
    workers.start(publishers=3, consumers=3, stay=stay)
    done = workers.history.progress
    wait_until(lambda: len(done) == 3 and min(done.values()) > 20, "some work", PATIENCE_SECONDS)
    return workers


def go_on(cluster: ClusterProcess, workers: Workers, begun: float) -> None:
    """Everybody gets on with it, for longer than what was under way."""
    workers.wait_for_progress(50, PATIENCE_SECONDS)
    workers.wait_for_deliveries(["c0", "c1", "c2"], PATIENCE_SECONDS)
    pauses = [length for end, length in workers.history.pauses if end > begun]
    print(f"longest pause {max(pauses, default=0.0):.1f} s")
    assert_nobody_gave_up(cluster)


def troubles(cluster: ClusterProcess) -> list[str]:
    """What the root says of homes that can't serve everybody."""
    root = cluster.brokers[cluster.wait_for_root()]
    told: list[str] = call_api(root, "GET", "rhizome", "checkup", "own")["troubled_homes"]
    return told


def home_of(cluster: ClusterProcess, at: str, origin: str) -> str:
    groups = cluster.status(at).get("groups", [])
    return next((str(each["home"]) for each in groups if each["origin"] == origin), "")


def test_clients_of_an_edge_that_cannot_reach_a_home_go_on_while_the_cut_lasts(
    cluster: ClusterProcess, network: Network
) -> None:
    root = cluster.wait_for_root()
    edge, home = [name for name in NAMES if name != root]
    declare_everywhere(cluster)
    workers = start_work(cluster, stay=edge)
    begun = time.monotonic()
    network.part([edge], [home])
    go_on(cluster, workers, begun)
    assert any(f"{edge} and {home} can't reach each other" in each for each in troubles(cluster))
    assert home_of(cluster, edge, home) == root
    workers.finish(PATIENCE_SECONDS)
    assert_nothing_went_wrong(workers.history)
    assert not workers.history.resent


def test_clients_of_an_edge_that_cannot_reach_the_root_go_on_while_the_cut_lasts(
    cluster: ClusterProcess, network: Network
) -> None:
    """Without a link with the root the edge has no lease; so another broker becomes root."""
    root = cluster.wait_for_root()
    edge, third = [name for name in NAMES if name != root]
    declare_everywhere(cluster)
    workers = start_work(cluster, stay=edge)
    begun = time.monotonic()
    network.part([edge], [root])
    cluster.wait_for_root_among([edge, third], root)
    go_on(cluster, workers, begun)
    broker = cluster.brokers[edge]
    workers.history.cut_off.append((f"{broker.host}:{broker.port}", begun, time.monotonic()))
    assert home_of(cluster, edge, root) == third
    workers.finish(PATIENCE_SECONDS)
    assert_nothing_went_wrong(workers.history, in_order=False)


@pytest.mark.parametrize("left", [LITTLE_BYTES, 0], ids=["short of space", "without a byte"])
def test_clients_of_a_home_with_a_full_disk_go_on_while_it_is_full(
    cluster: ClusterProcess, left: int
) -> None:
    root = cluster.wait_for_root()
    home = next(name for name in NAMES if name != root)
    declare_everywhere(cluster)
    workers = start_work(cluster, stay=root)
    data = cluster.brokers[home].data
    begun = time.monotonic()
    disks = SmallDisks([])
    disks.fill(data, left)
    go_on(cluster, workers, begun)
    assert home_of(cluster, root, home) != home
    workers.finish(PATIENCE_SECONDS)
    disks.free(data)
    cluster.wait_until_whole()
    assert_nothing_went_wrong(workers.history)
