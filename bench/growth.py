"""How costs grow: what one more costs beside N queues, and beside ten times as many.

    .venv/bin/python bench/growth.py [--queues 1000 10000] [--operations 200]

A cluster of three gets N durable queues, each bound to a topic exchange. Beside them are measured,
in processor time of all brokers (user and system, from /proc): a declare, delete, bind, unbind,
connect, consumer, and a publish whose route no cache has; a second at rest; a page and the whole
list of /api/queues, a scrape, a status. Then memory per queue, the takeover of a broker that is
home of a third of them, and its restart. The latest table is in GROWTH.md, and history.jsonl gets
a line.

Only the ratio of two lines of a run says something: the machine may be shared, and the build
interpreted. The last column says how a cost grows from the first N to the last: O(1), O(log N),
O(N) or more. Brokers don't poll busily here: what they spend on waiting isn't the operation's.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import sys
import tempfile
import time
import urllib.request
from base64 import b64encode
from collections.abc import Awaitable, Callable
from pathlib import Path

from history import HERE, remember

from rhizome.build_info import is_compiled
from rhizome.client import Channel, connect
from rhizome.testing.broker_process import BrokerProcess, wait_until
from rhizome.testing.cluster_process import ClusterProcess

REST_SECONDS = 5.0
WAIT_SECONDS_MAX = 900.0
EXCHANGE = "amq.topic"
NO_POLL = {"RHIZOME_BROKER_BUSY_POLL": "0us"}
PAGES = 5

FLAT_EXPONENT = 0.2
"""A cost that grows with N to a power below this is counted as O(1), ..."""
LOG_EXPONENT = 0.35
"""... below this as O(log N): from 1,000 to 10,000 a logarithm grows by a third, ..."""
LINEAR_EXPONENT = 1.3
"""... and up to this as O(N)."""

Costs = dict[str, float]

PAGE = """# How costs grow

A cluster of three brokers ({build}) beside N durable queues with a binding each: processor time of
all brokers in milliseconds, and bytes. The last column is fitted from the first and the last N.
`bench/growth.py` wrote it; only ratios count.

```
{table}
```
"""


def make_broker(name: str, directory: Path) -> BrokerProcess:
    return BrokerProcess(directory, environment=NO_POLL)


# ---- readings -----------------------------------------------------------------------------------


def processor_ms(brokers: list[BrokerProcess]) -> float:
    """Of all threads of all brokers, in steps of nanoseconds."""
    total = 0
    for broker in brokers:
        for task in Path(f"/proc/{broker.pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e6


def resident_bytes(brokers: list[BrokerProcess]) -> int:
    pages = [int(Path(f"/proc/{each.pid}/statm").read_text().split()[1]) for each in brokers]
    return sum(pages) * os.sysconf("SC_PAGE_SIZE")


def get(broker: BrokerProcess, target: str) -> None:
    login = b64encode(f"{broker.user}:{broker.password}".encode()).decode()
    request = urllib.request.Request(
        broker.http_url + target, headers={"Authorization": f"Basic {login}"}
    )
    with urllib.request.urlopen(request, timeout=WAIT_SECONDS_MAX) as answer:
        answer.read()


# ---- one cluster --------------------------------------------------------------------------------


class Growth:
    """A cluster that gets more and more queues, and what is measured beside them."""

    def __init__(self, cluster: ClusterProcess, operations: int) -> None:
        self.cluster = cluster
        self.operations = operations
        self.queues = 0
        self.empty_bytes = resident_bytes(cluster.running())

    @property
    def url(self) -> str:
        return self.cluster.brokers["b1"].url

    async def grow(self, queues: int) -> None:
        async with connect(self.url) as connection, connection.channel() as channel:
            for number in range(self.queues, queues):
                await channel.declare_queue(f"q{number}", durable=True)
                await channel.bind_queue(f"q{number}", EXCHANGE, f"{number}.*")
        self.queues = queues

    async def each(self, work: Callable[[int], Awaitable[object]]) -> float:
        """Processor milliseconds of an operation, the mean of many."""
        before = processor_ms(self.cluster.running())
        for number in range(self.operations):
            await work(number)
        return (processor_ms(self.cluster.running()) - before) / self.operations

    async def operation_costs(self) -> Costs:
        async with connect(self.url) as connection, connection.channel(confirms=True) as channel:
            return {
                "declare": await self.each(
                    lambda number: channel.declare_queue(f"new{number}", durable=True)
                ),
                "bind": await self.each(
                    lambda number: channel.bind_queue(f"new{number}", EXCHANGE, f"new{number}")
                ),
                "publish, cold": await self.each(
                    lambda number: channel.publish(
                        b"x", exchange=EXCHANGE, routing_key=f"new{number}"
                    )
                ),
                "consumer": await self.each(lambda number: consumer(channel, f"new{number}")),
                "unbind": await self.each(
                    lambda number: channel.unbind_queue(f"new{number}", EXCHANGE, f"new{number}")
                ),
                "delete": await self.each(lambda number: channel.delete_queue(f"new{number}")),
                "connect": await self.each(lambda _: connection_and_channel(self.url)),
            }

    def view_costs(self) -> Costs:
        targets = {
            "page of 100": "/api/queues?page=1&page_size=100",
            "page by name": "/api/queues?page=1&page_size=100&sort=name",
            "list": "/api/queues",
            "scrape": "/metrics",
            "status": "/api/rhizome/cluster",
        }
        found: Costs = {}
        for name, target in targets.items():
            get(self.cluster.brokers["b2"], target)
            before = processor_ms(self.cluster.running())
            for _ in range(PAGES):
                get(self.cluster.brokers["b2"], target)
            found[name] = (processor_ms(self.cluster.running()) - before) / PAGES
        return found

    def second_at_rest(self) -> float:
        before = processor_ms(self.cluster.running())
        time.sleep(REST_SECONDS)
        return (processor_ms(self.cluster.running()) - before) / REST_SECONDS

    def takeover_and_restart(self) -> Costs:
        """Processor time until a killed broker's queues are served again, and of its restart."""
        killed = self.cluster.brokers["b3"]
        killed.kill()
        others = self.cluster.running()
        before = processor_ms(others)
        wait_until(
            lambda: all(each["home"] not in ("", "b3") for each in self._groups()),
            "all groups to have a home again",
            WAIT_SECONDS_MAX,
        )
        taken = processor_ms(others) - before
        killed.start()
        self.cluster.wait_until_whole()
        return {"takeover": taken, "restart": processor_ms([killed])}

    def _groups(self) -> list[dict[str, str]]:
        found: list[dict[str, str]] = self.cluster.status("b1")["groups"]
        return found

    def costs(self) -> Costs:
        """All figures beside the queues that are there: milliseconds, and bytes."""
        found = asyncio.run(self.operation_costs())
        found["second at rest"] = self.second_at_rest()
        found |= self.view_costs()
        taken = resident_bytes(self.cluster.running()) - self.empty_bytes
        found["bytes per queue and broker"] = taken / self.queues / len(self.cluster.brokers)
        return found | self.takeover_and_restart()


async def consumer(channel: Channel, queue: str) -> None:
    async with channel.consume(queue):
        pass


async def connection_and_channel(url: str) -> None:
    async with connect(url) as connection, connection.channel():
        pass


# ---- the table ----------------------------------------------------------------------------------


def order_of(first: float, last: float, times: float) -> str:
    """How a cost grows that was ``first``, and is ``last`` beside so many times as many."""
    if first <= 0 or last <= first:
        return "O(1)"
    exponent = math.log(last / first) / math.log(times)
    if exponent < FLAT_EXPONENT:
        return "O(1)"
    if exponent < LOG_EXPONENT:
        return "O(log N)"
    return "O(N)" if exponent <= LINEAR_EXPONENT else f"O(N^{exponent:.1f})"


def table(found: dict[int, Costs]) -> str:
    sizes = sorted(found)
    lines = [f"{'ms of all brokers':28}" + "".join(f"{size:>12,}" for size in sizes)]
    for name in found[sizes[0]]:
        costs = [found[size][name] for size in sizes]
        row = f"{name:28}" + "".join(f"{cost:>12,.2f}" for cost in costs)
        if len(sizes) > 1:
            row += f"  {order_of(costs[0], costs[-1], sizes[-1] / sizes[0])}"
        lines.append(row)
    return "\n".join(lines)


def build() -> str:
    return "compiled" if is_compiled() else "interpreted"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--operations", type=int, default=200)
    parser.add_argument("--no-history", action="store_true")
    options = parser.parse_args()
    found: dict[int, Costs] = {}
    with tempfile.TemporaryDirectory() as directory:
        cluster = ClusterProcess(Path(directory), make=make_broker)
        cluster.start()
        try:
            growth = Growth(cluster, options.operations)
            for queues in sorted(options.queues):
                asyncio.run(growth.grow(queues))
                found[queues] = growth.costs()
                print(table(found), flush=True)
        finally:
            cluster.kill()
    if not options.no_history:
        (HERE / "GROWTH.md").write_text(PAGE.format(build=build(), table=table(found)))
        remember({"growth": {str(size): costs for size, costs in found.items()}})
    return 0


if __name__ == "__main__":
    sys.exit(main())
