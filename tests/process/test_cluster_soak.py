"""Kill the root of a real cluster again and again while applications work through all brokers."""

from __future__ import annotations

import asyncio
import statistics
from pathlib import Path

import pytest

from rhizome.testing.clusterprocess import ClusterProcess

from .cluster_apps import Applications
from .kit import call_api, run

ROUNDS = 20
ELECTION_SECONDS_MAX = 3.0
HEARD_SECONDS_MAX = 15.0
WORK_SECONDS = 1.0

pytestmark = pytest.mark.soak


def known_to(cluster: ClusterProcess, name: str) -> tuple[set[str], set[str]]:
    """The queues that a broker knows, and the keys of their bindings."""
    broker = cluster.brokers[name]
    queues = {each["name"] for each in call_api(broker, "GET", "queues", "/")}
    bindings = call_api(broker, "GET", "exchanges", "/", "declared", "bindings", "source")
    return queues, {each["routing_key"] for each in bindings}


@pytest.mark.timeout(1800)
def test_twenty_roots_are_killed_and_nothing_that_counts_is_lost(tmp_path: Path) -> None:
    """A new root within three seconds each time; no declared object lost; subscribers on surviving
    brokers miss nothing from surviving publishers; calls between surviving brokers are answered.
    """
    cluster = ClusterProcess(tmp_path, primaries=3, secondaries=2, seed=1)
    cluster.start()
    took: list[float] = []
    missed: list[str] = []

    async def scenario() -> Applications:
        applications = Applications(cluster, seed=1)
        await applications.start()
        for turn in range(ROUNDS):
            await asyncio.sleep(WORK_SECONDS)
            root = await asyncio.to_thread(cluster.wait_for_root)
            cluster.brokers[root].kill()
            new, seconds = await asyncio.to_thread(cluster.wait_for_new_root, root)
            took.append(seconds)
            missing = await applications.all_heard(HEARD_SECONDS_MAX)
            missed.extend(f"round {turn}: {each}" for each in missing)
            print(f"round {turn}: {root} killed, {new} is root after {seconds:.2f} s", flush=True)
            await asyncio.sleep(WORK_SECONDS)
            await asyncio.to_thread(cluster.make_whole)
        await asyncio.sleep(WORK_SECONDS)
        missed.extend(await applications.all_heard(HEARD_SECONDS_MAX))
        await applications.stop()
        return applications

    try:
        applications = run(scenario(), seconds=1700)
        declared = set(applications.declared)
        for name in cluster.brokers:
            queues, keys = known_to(cluster, name)
            assert declared - queues == set(), f"{name} has lost queues"
            assert declared - keys == set(), f"{name} has lost bindings"
    finally:
        exits = cluster.stop()
    sent = sum(sending.confirmed for sending in applications.sendings.values())
    heard = sum(len(each) for life in applications.hearings for each in life.heard.values())
    print(
        f"new root after {min(took):.2f} to {max(took):.2f} s, median "
        f"{statistics.median(took):.2f} s, mean {statistics.mean(took):.2f} s\n"
        f"{len(declared)} queues declared and bound, {applications.calls} calls answered, "
        f"{sent} messages confirmed, {heard} deliveries, {applications.relays_lost()} relays from "
        "secondary to secondary lost with their root"
    )
    wrong = [*missed, *applications.gaps(), *applications.failures]
    assert wrong == [], "\n".join(wrong)
    assert exits == [0] * 5, cluster.printed()
    assert max(took) < ELECTION_SECONDS_MAX, sorted(took)
