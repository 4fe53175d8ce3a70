"""Brokers whose power is cut: what their disks had not synced is undone after kill -9.

The rounds of the long forms: RHIZOME_TEST_POWER_CUTS (a lone broker; half as many of a whole
cluster, a fifth of homes), 100 by default. RHIZOME_TEST_SEED repeats a run.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rhizome.client import Channel, connect
from rhizome.testing.broker_process import BrokerProcess
from rhizome.testing.cluster_process import ClusterProcess
from tests.process.client_workers import Workers
from tests.process.cluster.test_takeover import assert_nothing_went_wrong, home_of, wait_for_copies
from tests.process.helpers import PERSISTENT, LeanBroker, contents, run, take
from tests.process.kill_workload import (
    KEPT,
    QUEUES,
    Ledger,
    declare,
    forget,
    load_until_killed,
    until_killed,
)
from tests.process.power_cut import PowerCut

pytestmark = pytest.mark.rhizome_only

ROUNDS = int(os.environ.get("RHIZOME_TEST_POWER_CUTS", "100"))
SEED = int(os.environ.get("RHIZOME_TEST_SEED", "0")) or random.randrange(1, 1 << 32)
SETTLED_SECONDS_MAX = 180.0
HELD = 200


class CutBroker(BrokerProcess):
    """A broker whose disk forgets what was not synced."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self.disk = PowerCut(directory / "data", directory / "beside")
        environment = {f"RHIZOME_{name.upper()}": value for name, value in settings.items()}
        super().__init__(directory, environment={**environment, **self.disk.environment()})

    def lose_power(self, chance: random.Random) -> None:
        """The broker has been killed: its disk loses what was not synced, all or some of it."""
        self.disk.cut(None if chance.random() < 0.25 else chance.randrange(1 << 32))


class LoneBroker(CutBroker, LeanBroker):
    """One without the HTTP API."""


def lone(directory: Path, **settings: str) -> CutBroker:
    return LoneBroker(directory, journal_segment_size="1MiB", listen_http="", **settings)


# --- a lone broker


def cut_again_and_again(broker: CutBroker, rounds: int, seed: int) -> Ledger:
    """Load, kill, cut, start, compare. Some kills are kills only: what they left unsynced the next
    cut may still take."""
    ledger = Ledger()
    chance = random.Random(seed)
    run(declare(broker))
    for _ in range(rounds):
        run(load_until_killed(broker, ledger, chance))
        if chance.random() < 0.8:
            broker.lose_power(chance)
        broker.start()
        found = {queue: run(contents(broker, queue)) for queue in QUEUES}
        for queue in QUEUES:
            ledger.settle(queue, found[queue])
        ledger.adopt(KEPT, found[KEPT])
        if found[KEPT]:
            run(forget(broker, ledger.queues[KEPT], KEPT, chance.randint(1, len(found[KEPT]))))
    return ledger


def test_what_was_confirmed_survives_power_cuts_in_order_and_once(tmp_path: Path) -> None:
    with lone(tmp_path / "lone") as broker:
        ledger = cut_again_and_again(broker, rounds=4, seed=SEED)
    assert len(ledger.confirmed) > 80, f"seed {SEED}"


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_what_was_confirmed_survives_a_hundred_power_cuts(tmp_path: Path) -> None:
    print(f"seed {SEED}")
    with lone(tmp_path / "lone") as broker:
        ledger = cut_again_and_again(broker, rounds=ROUNDS, seed=SEED)
    print(f"{len(ledger.confirmed)} confirmed, acks lost {ledger.acks_lost}")


# --- flush policies that don't wait


async def declare_both(channel: Channel) -> None:
    stream: dict[str, object] = {
        "x-queue-type": "stream",
        "x-stream-max-segment-size-bytes": 200_000,
    }
    await channel.declare_queue("s", durable=True, arguments=stream)
    await channel.declare_queue("q", durable=True)


async def fill_both(broker: CutBroker, bodies: list[bytes], chance: random.Random) -> None:
    """Publish to a stream and a queue, and kill the broker in the middle of it."""
    count = chance.randint(100, 400)
    async with connect(broker.url) as connection, connection.channel(confirms=True) as channel:
        await declare_both(channel)
        while True:
            bodies.append((b"%06d" % len(bodies)).ljust(chance.randint(6, 2000), b"."))
            for queue in ("s", "q"):
                channel.publish_soon(bodies[-1], routing_key=queue, properties=PERSISTENT)
            if len(bodies) == count:
                broker.kill()
            if len(bodies) >= count or chance.random() < 0.3:
                await channel.confirmed()


async def both(broker: BrokerProcess) -> tuple[list[bytes], list[bytes]]:
    """What the stream and the queue hold; a power cut may have taken the queues themselves."""
    async with connect(broker.url) as connection:
        channel = await connection.channel(prefetch=100, confirms=True)
        await declare_both(channel)
        for queue in ("s", "q"):
            await channel.publish(b"end", routing_key=queue, properties=PERSISTENT)
        first: dict[str, object] = {"x-stream-offset": "first"}
        return await until_end(channel, "s", first), await until_end(channel, "q", {})


async def until_end(channel: Channel, queue: str, arguments: dict[str, object]) -> list[bytes]:
    """The bodies before the one that says "end"."""
    consumer = channel.consume(queue, arguments=arguments)
    found: list[bytes] = []
    while b"end" not in found:
        batch = await consumer.batch()
        found += [message.body for message in batch]
        await batch[-1].ack(multiple=True)
    return found[: found.index(b"end")]


def cut_without_syncs(broker: CutBroker, seed: int) -> None:
    chance = random.Random(seed)
    bodies: list[bytes] = []
    broker.start()
    run(until_killed(fill_both(broker, bodies, chance)))
    broker.disk.cut(chance.randrange(1 << 32))
    broker.start()
    stream, queue = run(both(broker))
    broker.kill()
    for found in (stream, queue):
        assert found == bodies[: len(found)], f"seed {seed}"


@pytest.mark.parametrize("flush", ["interval", "never"])
def test_a_broker_that_does_not_wait_for_syncs_starts_after_a_power_cut(
    tmp_path: Path, flush: str
) -> None:
    """It has the first of what was published, in order, and lost the rest at most."""
    settings = {"journal_flush": flush, "journal_flush_interval": "50ms"}
    for turn in range(4):
        cut_without_syncs(lone(tmp_path / f"{turn}", **settings), SEED + turn)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("flush", ["interval", "never"])
def test_a_broker_that_does_not_wait_for_syncs_starts_after_every_power_cut(
    tmp_path: Path, flush: str
) -> None:
    settings = {"journal_flush": flush, "journal_flush_interval": "50ms"}
    for turn in range(ROUNDS // 2):
        cut_without_syncs(lone(tmp_path / f"{turn}", **settings), SEED + turn)


# --- marks


def test_what_a_client_held_when_its_broker_was_killed_is_redelivered(tmp_path: Path) -> None:
    """Nothing else was written since: the mark of what was shown has nothing to go along with."""
    broker = lone(tmp_path / "held")
    broker.start()

    async def fill() -> None:
        async with connect(broker.url) as connection, connection.channel(confirms=True) as channel:
            await channel.declare_queue("q", durable=True)
            for number in range(500):
                channel.publish_soon(b"%d" % number, routing_key="q", properties=PERSISTENT)
            await channel.confirmed()

    async def hold() -> None:
        async with connect(broker.url) as connection:
            channel = await connection.channel(prefetch=HELD)
            assert len(await take(channel, "q", HELD)) == HELD
            broker.kill()

    async def marked() -> list[bool]:
        async with connect(broker.url) as connection, connection.channel() as channel:
            return [message.redelivered for message in await take(channel, "q", 500)]

    run(fill())
    run(until_killed(hold()))
    broker.start()
    flags = run(marked())
    broker.kill()
    assert all(flags[:HELD]), f"{flags[:HELD].count(False)} of {HELD} are not marked"


# --- clusters


CLUSTER_STORE = """
import os, signal, sys
from pathlib import Path
from rhizome.server.clustered_broker.sqlite_cluster_store import SqliteClusterStore
store = SqliteClusterStore(Path(sys.argv[1]), lambda token: None, lambda error: None)
print(store.load().uuid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_new_broker_knows_of_its_cluster_survives_a_power_cut(tmp_path: Path) -> None:
    """Its directory too: nothing else of the data directory is synced after that was made."""
    data = tmp_path / "data"
    data.mkdir()
    disk = PowerCut(data, tmp_path / "beside")

    def uuid() -> bytes:
        command = [sys.executable, "-c", CLUSTER_STORE, str(data / "cluster")]
        environment = {**os.environ, **disk.environment()}
        return subprocess.run(command, env=environment, capture_output=True, check=False).stdout

    made = uuid()
    assert len(made) > 30
    disk.cut()
    assert uuid() == made


class CutCluster(ClusterProcess):
    """A cluster whose brokers die together, and whose disks forget what was not synced."""

    def kill(self) -> None:
        for broker in self.running():
            os.kill(broker.pid, signal.SIGKILL)
        super().kill()

    def lose_power(self, chance: random.Random) -> None:
        for broker in self.brokers.values():
            assert isinstance(broker, CutBroker)
            broker.lose_power(chance)

    def disk(self, name: str) -> PowerCut:
        broker = self.brokers[name]
        assert isinstance(broker, CutBroker)
        return broker.disk


@pytest.fixture
def edged(tmp_path: Path) -> Iterator[CutCluster]:
    """One with a secondary, s1, which is home of nothing."""
    cluster = CutCluster(
        tmp_path,
        secondaries=1,
        seed=SEED,
        make=lambda name, directory: CutBroker(directory),
    )
    cluster.start()
    yield cluster
    cluster.kill()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[CutCluster]:
    cluster = CutCluster(tmp_path, seed=SEED, make=lambda name, directory: CutBroker(directory))
    cluster.start()
    yield cluster
    cluster.kill()


def cut_all_again_and_again(cluster: CutCluster, rounds: int, seed: int) -> Ledger:
    """As of a lone broker, with clients of all brokers and a cut of all of them at once."""
    ledger = Ledger()
    chance = random.Random(seed)
    run(declare(cluster))
    for _ in range(rounds):
        wait_for_copies(cluster)
        run(load_until_killed(cluster, ledger, chance), SETTLED_SECONDS_MAX)
        if chance.random() < 0.8:
            cluster.lose_power(chance)
        cluster.start()
        wait_for_copies(cluster)
        found = {queue: run(contents(cluster, queue)) for queue in QUEUES}
        for queue in QUEUES:
            ledger.settle(queue, found[queue])
        ledger.adopt(KEPT, found[KEPT])
        if found[KEPT]:
            run(forget(cluster, ledger.queues[KEPT], KEPT, chance.randint(1, len(found[KEPT]))))
    return ledger


@pytest.mark.timeout(400)
def test_what_was_confirmed_survives_a_power_cut_of_all_brokers(cluster: CutCluster) -> None:
    ledger = cut_all_again_and_again(cluster, rounds=2, seed=SEED)
    assert len(ledger.confirmed) > 20, f"seed {SEED}"


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_what_was_confirmed_survives_fifty_power_cuts_of_all_brokers(cluster: CutCluster) -> None:
    print(f"seed {SEED}")
    ledger = cut_all_again_and_again(cluster, rounds=max(1, ROUNDS // 2), seed=SEED)
    print(f"{len(ledger.confirmed)} confirmed, acks lost {ledger.acks_lost}")


def cut_homes(cluster: CutCluster, rounds: int, seed: int) -> None:
    """Homes lose power, one after the other, while clients of s1 work: they see a pause."""
    chance = random.Random(seed)
    workers = Workers(cluster, ["orders", "mails", "jobs"], seed=seed, pace_s=0.005)
    workers.declare()
    wait_for_copies(cluster)
    workers.start(publishers=3, consumers=3, stay="s1")
    for _ in range(rounds):
        workers.wait_for_progress(30, SETTLED_SECONDS_MAX)
        victim = home_of(cluster, "s1")
        cluster.brokers[victim].kill()
        cluster.disk(victim).cut(None if chance.random() < 0.25 else chance.randrange(1 << 32))
        workers.wait_for_progress(30, SETTLED_SECONDS_MAX)
        cluster.make_whole()
        wait_for_copies(cluster)
    workers.finish(SETTLED_SECONDS_MAX)
    assert_nothing_went_wrong(workers.history)
    assert not any(each.redelivered for each in workers.history.deliveries)


@pytest.mark.timeout(400)
def test_clients_of_a_living_broker_do_not_notice_that_homes_lose_power(
    edged: CutCluster,
) -> None:
    cut_homes(edged, rounds=2, seed=SEED)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_clients_of_a_living_broker_do_not_notice_that_twenty_homes_lose_power(
    edged: CutCluster,
) -> None:
    print(f"seed {SEED}")
    cut_homes(edged, rounds=max(1, ROUNDS // 5), seed=SEED)
