"""More connections than one address has ports: spread over the brokers of a cluster (H23)."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from rhizome.client import connect
from rhizome.testing.broker_process import BrokerProcess, wait_until
from rhizome.testing.cluster_process import ClusterProcess
from tests.process.helpers import log_in_many, resident_bytes, run

SOFT_LIMIT = 256
CONNECTIONS_OF_ALL = 61_000
SPARE_FILES = 1_000
BYTES_PER_CONNECTION_MAX = 40 * 1024
CONNECT_SECONDS_MAX = 900

# Connects, says so, and holds on until its input ends.
HOLDER = """
import asyncio, sys
from tests.process.cluster.test_many_connections import hold

asyncio.run(hold(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
"""


@dataclass(frozen=True)
class Address:
    """A broker, for those who only connect."""

    host: str
    port: int
    user: str = "guest"
    password: str = "guest"


async def hold(host: str, port: int, count: int) -> None:
    clients = await log_in_many(Address(host, port), count)
    print(f"connected {len(clients)}", flush=True)
    await asyncio.to_thread(sys.stdin.read)


@contextmanager
def held(broker: BrokerProcess, count: int) -> Iterator[None]:
    """So many connections at a broker, of a process of their own: its files are limited too."""
    command = [sys.executable, "-c", HOLDER, broker.host, str(broker.port), str(count)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == f"connected {count}\n"
            yield
        finally:
            process.kill()


def test_a_broker_takes_all_the_files_that_it_may_have(tmp_path: Path) -> None:
    """Shells start programs with a thousand open files at most, though they may have more."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limited = ("prlimit", f"--nofile={SOFT_LIMIT}:{hard}")
    broker = BrokerProcess(tmp_path, launcher=limited)
    broker.start()

    async def scenario() -> None:
        clients = await log_in_many(broker, 2 * SOFT_LIMIT)
        assert len(clients) == 2 * SOFT_LIMIT
        async with connect(broker.url) as connection, connection.channel() as channel:
            await channel.declare_queue("served")
        for client in clients:
            await client.close()

    try:
        run(scenario())
    finally:
        broker.kill()


def counted(cluster: ClusterProcess) -> int:
    """The connections that one broker knows of, its own and the others'."""
    return sum(int(one["connections"]) for one in cluster.status("b1")["brokers"])


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_sixty_thousand_connections_are_spread_over_brokers(tmp_path: Path) -> None:
    """All are open at once; meanwhile whoever reaches one broker alone is served by it, whatever
    broker has the queue."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    brokers = -(-CONNECTIONS_OF_ALL // max(files - SPARE_FILES, 1))
    if brokers > 5:
        pytest.skip(f"{files} open files per process are too few")
    cluster = ClusterProcess(tmp_path, primaries=3, secondaries=max(brokers - 3, 1))
    cluster.start()
    each = -(-CONNECTIONS_OF_ALL // len(cluster.brokers))
    before = {name: resident_bytes(one.pid) for name, one in cluster.brokers.items()}

    async def scenario() -> None:
        for number, broker in enumerate(cluster.brokers.values()):
            async with (
                connect(broker.url) as connection,
                connection.channel(confirms=True) as channel,
            ):
                await channel.declare_queue("everywhere", durable=True)
                await channel.publish(b"%d" % number, routing_key="everywhere")
                message = await channel.get("everywhere", no_ack=True)
                assert message is not None
                assert message.body == b"%d" % number

    try:
        with ExitStack() as stack:
            for broker in cluster.brokers.values():
                stack.enter_context(held(broker, each))
            run(scenario(), 300)
            grown = {name: resident_bytes(one.pid) for name, one in cluster.brokers.items()}
            wait_until(
                lambda: counted(cluster) >= CONNECTIONS_OF_ALL,
                "all connections to be known",
                CONNECT_SECONDS_MAX,
            )
            print(f"{counted(cluster)} connections, {grown} bytes resident, before {before}")
            for name, size in grown.items():
                assert (size - before[name]) / each < BYTES_PER_CONNECTION_MAX
        wait_until(
            lambda: counted(cluster) == 0,
            "all connections to be gone",
            CONNECT_SECONDS_MAX,
        )
    finally:
        cluster.kill()
