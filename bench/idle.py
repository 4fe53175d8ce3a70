"""What a broker with many queues and connections costs while nothing happens, and what a scrape
costs those who send messages.

    .venv/bin/python bench/idle.py [--queues 1000] [--connections 1000] [--seconds 20]

The processor time of the broker is read from /proc: it doesn't depend on what else runs. The pause
that scrapes cause is what the broker works between a publish and its confirm: during a scrape, less
that of as many publishes without one, in turn, within one run.
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
from rhizome.testing.broker_process import BrokerProcess

SCRAPE_SECONDS = 15.0
"""As Prometheus does it unless told otherwise."""

CONSOLE_SECONDS = 2.0
SCRAPED = ("/metrics", "/metrics/per-object", "/api/rhizome/live", "/api/queues")
SCRAPES = 20
PAUSE_BETWEEN_S = 0.05


@dataclass(frozen=True)
class Figures:
    """Shares of one core; milliseconds."""

    idle_share: float
    watched_share: float
    slowest_ms: dict[str, tuple[float, float]]
    """The slowest publishes without and with scrapes, by what is scraped."""

    @property
    def pause_ms(self) -> float:
        """How much longer the slowest messages take while there are scrapes."""
        return max(scraped - calm for calm, scraped in self.slowest_ms.values())


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


def processor_ms(pid: int) -> float:
    """Of all threads of a process so far: what one of them does, another may have to wait for."""
    files = [each / "schedstat" for each in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int(file.read_text().split()[0]) for file in files) / 1e6


async def publish_ms(channel: Channel, broker: BrokerProcess) -> float:
    """What the broker works from a publish to its confirm: that is how long it takes where a
    processor is free, and it doesn't depend on what else runs."""
    before = processor_ms(broker.pid)
    await channel.publish(b"x" * 100, routing_key="probe")
    return processor_ms(broker.pid) - before


class Scraper:
    """Asks for a page over one connection, in the loop of those who publish: nothing else takes
    part in the measurement."""

    def __init__(self, broker: BrokerProcess, target: str) -> None:
        login = b64encode(f"{broker.user}:{broker.password}".encode()).decode()
        lines = f"GET {target} HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {login}\r\n\r\n"
        self._request = lines.encode()
        self.broker = broker

    async def __aenter__(self) -> Scraper:
        self._reader, self._writer = await asyncio.open_connection(
            self.broker.host, self.broker.http_port
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def scrape(self) -> None:
        self._writer.write(self._request)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].partition(b"\r")[0])
        await self._reader.readexactly(length)


async def slowest_ms(channel: Channel, scraper: Scraper) -> tuple[float, float]:
    """The slowest of some publishes, confirm included: while nothing else happens, and of as many
    from the beginning of a scrape to its end. Medians over many scrapes."""
    calm: list[float] = []
    scraped: list[float] = []
    for _ in range(SCRAPES):
        scrape = asyncio.create_task(scraper.scrape())
        taken = [await publish_ms(channel, scraper.broker)]
        while not scrape.done():
            taken.append(await publish_ms(channel, scraper.broker))
        await scrape
        scraped.append(max(taken))
        calm.append(max([await publish_ms(channel, scraper.broker) for _ in taken]))
        await asyncio.sleep(PAUSE_BETWEEN_S)
    return statistics.median(calm), statistics.median(scraped)


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
        await channel.select_confirms()
        pauses: dict[str, tuple[float, float]] = {}
        for target in SCRAPED:
            async with Scraper(broker, target) as scraper:
                pauses[target] = await slowest_ms(channel, scraper)
        return Figures(idle, watched, pauses)


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
    for target, (calm, scraped) in figures.slowest_ms.items():
        print(f"work until a confirm: {calm:.2f} ms, during {target} {scraped:.2f} ms")


if __name__ == "__main__":
    main()
