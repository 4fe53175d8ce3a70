"""What a broker with many queues and connections costs while nothing happens, and what a scrape
costs those who send messages.

    .venv/bin/python bench/idle.py [--queues 1000] [--connections 1000] [--seconds 20]

The processor time of the broker is read from /proc: it doesn't depend on what else runs. The pause
that scrapes cause is the difference between rounds of messages with scrapes and rounds without, in
turn, within one run.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import os
import statistics
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rhizome.client import Channel, connect
from rhizome.testing.processes import BrokerProcess

SCRAPE_SECONDS = 15.0
"""As Prometheus does it unless told otherwise."""

CONSOLE_SECONDS = 2.0
ROUNDS = 4
MESSAGES_PER_ROUND = 300
PAUSE_BETWEEN_S = 0.002


@dataclass(frozen=True)
class Figures:
    """Shares of one core; milliseconds."""

    idle_share: float
    watched_share: float
    calm_ms: float
    scraped_ms: float

    @property
    def pause_ms(self) -> float:
        """How much longer the slowest messages take while there are scrapes."""
        return self.scraped_ms - self.calm_ms


def get(broker: BrokerProcess, target: str) -> int:
    connection = http.client.HTTPConnection(broker.host, broker.http_port, timeout=60)
    login = b64encode(f"{broker.user}:{broker.password}".encode()).decode()
    connection.request("GET", target, headers={"Authorization": f"Basic {login}"})
    answer = connection.getresponse()
    size = len(answer.read())
    connection.close()
    if answer.status != 200:
        raise RuntimeError(f"{target}: {answer.status}")
    return size


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# A process of its own: in this one it would hold up those who measure.
ASKER = """
import sys, time, urllib.request
target, login, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
request = urllib.request.Request(target, headers={"Authorization": "Basic " + login})
while True:
    urllib.request.urlopen(request).read()
    time.sleep(seconds)
"""


@contextmanager
def asking(broker: BrokerProcess, every: dict[str, float]) -> Iterator[None]:
    """Meanwhile each path is asked for again and again."""
    login = b64encode(f"{broker.user}:{broker.password}".encode()).decode()
    askers = [
        subprocess.Popen(
            [sys.executable, "-c", ASKER, broker.http_url + target, login, str(seconds)],
            stderr=subprocess.DEVNULL,
        )
        for target, seconds in every.items()
    ]
    try:
        yield
    finally:
        for asker in askers:
            asker.kill()
            asker.wait()


async def share(broker: BrokerProcess, seconds: float) -> float:
    """Of one core, for a while."""
    begun, used = time.monotonic(), processor_seconds(broker.pid)
    await asyncio.sleep(seconds)
    return (processor_seconds(broker.pid) - used) / (time.monotonic() - begun)


async def slowest_ms(channel: Channel) -> float:
    """The median over parts of a round of the slowest publish in each, confirm included."""
    slowest: list[float] = []
    for _ in range(10):
        taken: list[float] = []
        for _ in range(MESSAGES_PER_ROUND // 10):
            begun = time.perf_counter()
            await channel.publish(b"x" * 100, routing_key="probe")
            taken.append((time.perf_counter() - begun) * 1000)
            await asyncio.sleep(PAUSE_BETWEEN_S)
        slowest.append(max(taken))
    return statistics.median(slowest)


async def measure(broker: BrokerProcess, queues: int, connections: int, seconds: float) -> Figures:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(connect(broker.url))
        channel = await stack.enter_async_context(first.channel())
        for number in range(queues):
            await channel.declare_queue(f"idle-{number}")
        await channel.declare_queue("probe", arguments={"x-max-length": 10})
        for _ in range(connections - 1):
            await stack.enter_async_context(connect(broker.url))
        get(broker, "/metrics")  # the first one loads a library
        await asyncio.sleep(1.0)
        idle = await share(broker, seconds)
        watching = {"/metrics": SCRAPE_SECONDS, "/api/rhizome/live": CONSOLE_SECONDS}
        with asking(broker, watching):
            watched = await share(broker, seconds)
        calm: list[float] = []
        scraped: list[float] = []
        await channel.select_confirms()
        for _ in range(ROUNDS):
            calm.append(await slowest_ms(channel))
            with asking(broker, {"/metrics": 0.05, "/metrics/per-object": 0.05}):
                scraped.append(await slowest_ms(channel))
        return Figures(idle, watched, statistics.median(calm), statistics.median(scraped))


def main() -> None:
    parser = argparse.ArgumentParser(description="What a broker costs while nothing happens.")
    parser.add_argument("--queues", type=int, default=1000)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        broker = BrokerProcess(Path(scratch))
        broker.start()
        try:
            figures = asyncio.run(measure(broker, given.queues, given.connections, given.seconds))
        finally:
            broker.close()
    print(f"{given.queues} queues, {given.connections} connections")
    print(f"idle:                        {figures.idle_share:.2%} of a core")
    print(f"scraped, console open:       {figures.watched_share:.2%} of a core")
    print(f"slowest publish, calm:       {figures.calm_ms:.2f} ms")
    print(f"slowest publish, scraped:    {figures.scraped_ms:.2f} ms")


if __name__ == "__main__":
    main()
