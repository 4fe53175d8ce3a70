"""Kill the root of a real cluster again and again while applications work through all brokers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from rhizome.client import connect
from rhizome.testing.clusterprocess import ClusterProcess

from .cluster_apps import Applications
from .kit import call_api, run

ROUNDS = 20
ELECTION_SECONDS_MAX = 3.0
HEARD_SECONDS_MAX = 15.0
WORK_SECONDS = 1.0
BINDINGS = 100_000
BINDERS = 50
TIMES_BOUND = 6
TIMES_JUDGED = 3
"""The first times fill the gaps that an allocator leaves: a leak goes on, in the last ones too."""
BYTES_LEFT_MAX = 40
"""Per binding and broker, in the best of the judged times; one small object that leaks is more."""

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
        f"{sent} messages confirmed, {heard} deliveries, {applications.refusals()} relays from "
        "secondary to secondary refused with their root"
    )
    wrong = [*missed, *applications.gaps(), *applications.failures]
    assert wrong == [], "\n".join(wrong)
    assert exits == [0] * 5, cluster.printed()
    assert max(took) < ELECTION_SECONDS_MAX, sorted(took)


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def come_and_go(url_of: Callable[[int], str], bindings: int) -> float:
    """Bind so many keys of private queues over many connections; seconds until all are known."""

    async def bind(number: int, stack: contextlib.AsyncExitStack) -> None:
        connection = await stack.enter_async_context(connect(url_of(number)))
        channel = await stack.enter_async_context(connection.channel())
        queue = (await channel.declare_queue("", exclusive=True)).name
        for key in range(bindings // BINDERS):
            await channel.bind_queue(queue, "amq.topic", f"churn.{number}.{key}")

    async with contextlib.AsyncExitStack() as stack:
        begun = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in range(BINDERS):
                group.create_task(bind(number, stack))
        return time.monotonic() - begun


@pytest.mark.timeout(1800)
def test_a_hundred_thousand_private_bindings_come_and_go(tmp_path: Path) -> None:
    """No entry of the cluster's log for them, and their memory is used again (A3)."""
    cluster = ClusterProcess(tmp_path, primaries=3, secondaries=2, seed=1)
    cluster.start()
    names = list(cluster.brokers)

    def url_of(number: int) -> str:
        return cluster.brokers[names[number % len(names)]].url

    def entries() -> int:
        path = cluster.brokers["b1"].data / "cluster" / "state.db"
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as store:
            return int(store.execute("SELECT max(idx) FROM entries").fetchone()[0] or 0)

    try:
        before = entries()
        took: list[float] = []
        sizes: dict[str, list[int]] = {name: [] for name in names}
        for _ in range(TIMES_BOUND):
            took.append(run(come_and_go(url_of, BINDINGS), seconds=800))
            cluster.wait_until_whole()
            for name in names:
                sizes[name].append(rss_bytes(cluster.brokers[name].pid))
        more = entries() - before
    finally:
        cluster.stop()
    left = {
        name: [round((later - earlier) / BINDINGS) for earlier, later in pairwise(size)]
        for name, size in sizes.items()
    }
    seconds = ", ".join(f"{each:.1f}" for each in took)
    print(f"bound in {seconds} s; left per binding: {left}; {more} entries")
    assert more < BINDINGS / 100
    for name, each in left.items():
        assert min(each[-TIMES_JUDGED:]) < BYTES_LEFT_MAX, f"{name} grows each time: {each}"
