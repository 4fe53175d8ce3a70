"""Publishers are faster than consumers until the disks of a cluster are full: they wait, and when
the messages are taken they go on, without a person who frees some space."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from rhizome.amqp.properties import Properties
from rhizome.client import Channel, connect
from rhizome.testing.broker_process import BrokerProcess
from rhizome.testing.cluster_process import ClusterProcess
from tests.process.helpers import run
from tests.process.network_namespaces import why_not
from tests.process.small_disks import SMALL_DISK_SETTINGS, SmallDisks

REFUSAL = why_not()
NAMES = ("b1", "b2", "b3")
PUBLISHERS_PER_BROKER = 3
BODY = b"x" * 20_000
PERSISTENT = Properties(delivery_mode=2)
QUIET_SECONDS = 5.0
MORE = 500
SECONDS_MAX = 240.0

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(REFUSAL), reason=REFUSAL),
]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    cluster = ClusterProcess(tmp_path, primaries=3, seed=8, make=with_small_disk)
    disks = SmallDisks(each.data for each in cluster.brokers.values())
    try:
        disks.mount()
        cluster.start()
        yield cluster
    finally:
        cluster.kill()
        disks.unmount()


def with_small_disk(name: str, directory: Path) -> BrokerProcess:
    return BrokerProcess(directory, environment=SMALL_DISK_SETTINGS)


def queue_of(name: str) -> str:
    return f"queue-of-{name}"


async def publish(channel: Channel, queue: str, confirmed: Counter[str]) -> None:
    while True:
        await channel.publish(BODY, routing_key=queue, properties=PERSISTENT)
        confirmed[queue] += 1


async def consume(channel: Channel, queue: str, taken: Counter[str]) -> None:
    await channel.qos(100)
    async with channel.consume(queue) as consumer:
        async for message in consumer:
            await message.ack()
            taken[queue] += 1


async def stands_still(confirmed: Counter[str]) -> None:
    """Wait until nothing was confirmed for a while."""
    before = -1
    while confirmed.total() != before:
        before = confirmed.total()
        await asyncio.sleep(QUIET_SECONDS)


@pytest.mark.parametrize("publishers_at", [NAMES, NAMES[:1]])
def test_publishers_wait_for_full_disks_and_go_on_when_they_are_drained(
    cluster: ClusterProcess, publishers_at: tuple[str, ...]
) -> None:
    confirmed: Counter[str] = Counter()
    taken: Counter[str] = Counter()

    async def fill_and_drain() -> None:
        async with AsyncExitStack() as connections, asyncio.TaskGroup() as tasks:

            async def channel_at(name: str, confirms: bool) -> Channel:
                link = await connections.enter_async_context(connect(cluster.brokers[name].url))
                return await link.channel(confirms=confirms)

            running = []
            for name in NAMES:
                arguments = {"x-group": name}
                channel = await channel_at(name, confirms=False)
                await channel.declare_queue(queue_of(name), durable=True, arguments=arguments)
            for name in publishers_at * PUBLISHERS_PER_BROKER:
                for target in NAMES:
                    channel = await channel_at(name, confirms=True)
                    job = publish(channel, queue_of(target), confirmed)
                    running.append(tasks.create_task(job))
            await stands_still(confirmed)
            filled = confirmed.total()
            print(f"{filled} confirmed, {free_mib(cluster)} MiB free")
            for name in NAMES:
                channel = await channel_at(name, confirms=False)
                running.append(tasks.create_task(consume(channel, queue_of(name), taken)))
            while confirmed.total() < filled + MORE or taken.total() < filled:
                await asyncio.sleep(0.1)
            print(f"{taken.total()} taken, {free_mib(cluster)} MiB free")
            for task in running:
                task.cancel()

    run(fill_and_drain(), SECONDS_MAX)
    for broker in cluster.brokers.values():
        told = (broker.directory / "output.txt").read_text()
        assert "the disk of the journal is full" not in told


def free_mib(cluster: ClusterProcess) -> list[int]:
    found = (os.statvfs(each.data) for each in cluster.brokers.values())
    return [each.f_bavail * each.f_frsize >> 20 for each in found]
