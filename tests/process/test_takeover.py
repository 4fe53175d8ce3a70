"""Real brokers die under real clients: nothing confirmed is lost, and nothing comes twice."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from rhizome.testing.clusterprocess import ClusterProcess
from rhizome.testing.processes import wait_until

from .workers import History, Workers

QUEUES = ["orders", "mails", "jobs"]
SETTLED_SECONDS_MAX = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    cluster = ClusterProcess(tmp_path, primaries=3, seed=4)
    cluster.start()
    yield cluster
    cluster.kill()


def groups(cluster: ClusterProcess, at: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = cluster.status(at).get("groups", [])
    return found


def wait_for_copies(cluster: ClusterProcess) -> None:
    """Wait until every group has a home that runs and a standby in sync."""

    def all_safe() -> bool:
        names = cluster.names()
        known = groups(cluster, names[0])
        return bool(known) and all(
            each["home"] in names and each["in_sync"] for each in known if each["queues"]
        )

    wait_until(all_safe, "all groups to have copies", SETTLED_SECONDS_MAX)


def home_of(cluster: ClusterProcess, at: str) -> str:
    """A broker other than ``at`` that is home of a group with queues."""
    for group in groups(cluster, at):
        if group["queues"] and group["home"] != at:
            return str(group["home"])
    raise AssertionError("no group has its home elsewhere")


def assert_nothing_went_wrong(history: History) -> None:
    assert not history.errors
    assert not history.lost()
    assert not history.duplicates()
    assert not history.disordered()
    assert len(history.confirmed) > 50


def test_clients_of_a_surviving_broker_do_not_notice_that_a_home_dies(
    cluster: ClusterProcess,
) -> None:
    """They see a pause, and no error, no loss, no duplicate and no redelivery."""
    workers = Workers(cluster, QUEUES, seed=1)
    workers.declare()
    wait_for_copies(cluster)
    workers.start(publishers=3, consumers=3, stay="b1")
    wait_until(lambda: len(workers.history.confirmed) > 100, "some work", SETTLED_SECONDS_MAX)
    cluster.brokers[home_of(cluster, "b1")].kill()
    workers.wait_for_progress(100, SETTLED_SECONDS_MAX)
    workers.finish(SETTLED_SECONDS_MAX)
    assert_nothing_went_wrong(workers.history)
    assert not any(each.redelivered for each in workers.history.deliveries)
    assert not workers.history.resent


def roll(cluster: ClusterProcess, workers: Workers, chance: Random) -> None:
    """One misfortune, and then everything is as before."""
    name = chance.choice(list(cluster.brokers))
    if chance.random() < 0.6:
        cluster.brokers[name].kill()
    else:
        cluster.pause(name)
    time.sleep(chance.uniform(0.5, 4))
    cluster.make_whole()
    wait_for_copies(cluster)


@pytest.mark.parametrize("rounds", [3, pytest.param(60, marks=pytest.mark.soak)])
@pytest.mark.timeout(1800)
def test_misfortunes_in_random_order(cluster: ClusterProcess, rounds: int) -> None:
    workers = Workers(cluster, QUEUES, seed=2)
    workers.declare()
    wait_for_copies(cluster)
    workers.start(publishers=3, consumers=4)
    chance = Random(rounds)
    for _ in range(rounds):
        roll(cluster, workers, chance)
        workers.wait_for_progress(10, SETTLED_SECONDS_MAX)
    workers.finish(SETTLED_SECONDS_MAX)
    assert_nothing_went_wrong(workers.history)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_publishing_goes_on_soon_after_a_home_is_killed(cluster: ClusterProcess) -> None:
    """Over twenty kills; the figures are printed, and only gross failure is asserted."""
    workers = Workers(cluster, QUEUES, seed=3)
    workers.declare()
    took = []
    for turn in range(20):
        wait_for_copies(cluster)
        stay = cluster.names()[turn % len(cluster.names())]
        workers.publishing = workers.consuming = True
        workers.start(publishers=3, consumers=3, stay=stay)
        wait_until(lambda: len(workers.history.progress) == 3, "some work", SETTLED_SECONDS_MAX)
        workers.wait_for_progress(20, SETTLED_SECONDS_MAX)
        victim = home_of(cluster, stay)
        killed = time.monotonic()
        cluster.brokers[victim].kill()
        workers.wait_for_progress(20, SETTLED_SECONDS_MAX)
        pauses = [length for end, length in workers.history.pauses if end > killed]
        took.append(max(pauses, default=0.0))
        print(f"{turn}: {victim} killed, longest pause {took[-1]:.2f} s", flush=True)
        workers.finish(SETTLED_SECONDS_MAX)
        cluster.make_whole()
    print(f"median {statistics.median(took):.2f} s, worst {max(took):.2f} s")
    assert_nothing_went_wrong(workers.history)
