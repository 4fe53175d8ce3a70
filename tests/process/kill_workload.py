"""Publishers and consumers for brokers that are killed, and the ledger of what must be left.

Bodies name their publisher and number, and their padding follows from these: whoever reads a body
knows what it must be. A `Ledger` keeps, per queue, what was confirmed, acknowledged, and known to
be gone for good; `settle` compares that with what a restart found.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Final

from rhizome.client import Channel, ConnectionLost, connect
from rhizome.errors import ConnectionForced
from rhizome.testing.broker_process import Broker
from tests.process.helpers import PERSISTENT

EXCHANGE: Final = "orders"
CONSUMED: Final = "consumed"
KEPT: Final = "kept"
QUEUES: Final = (CONSUMED, KEPT)
BATCH_MAX: Final = (1, 8, 50)
"""Messages in flight of each publisher, at most."""
PADDING_BYTES_MAX: Final = 4000
PREFETCH: Final = 100

Name = tuple[int, int]
"""Publisher and number."""


def body_of(publisher: int, number: int) -> bytes:
    head = b"%d:%d:" % (publisher, number)
    size = (publisher * 7919 + number * 104_729) % PADDING_BYTES_MAX
    return head + (head * (size // len(head) + 1))[:size]


def name_of(body: bytes) -> Name:
    publisher, number, _ = body.split(b":", 2)
    name = int(publisher), int(number)
    assert body == body_of(*name), f"the body of {name} is not what was published"
    return name


@dataclass
class QueueLedger:
    """Invariant: `gone` and `acked` are disjoint; `gone` never comes back.

    `found`: what an earlier restart found, confirmed or not. It is known by queue: in a cluster
    queues may have different homes, and a publish that nobody confirmed may be in one of them only.
    """

    found: set[Name] = field(default_factory=set)
    acked: set[Name] = field(default_factory=set)
    gone: set[Name] = field(default_factory=set)


@dataclass
class Ledger:
    """What clients know of a broker that is killed again and again."""

    sent: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    confirmed: set[Name] = field(default_factory=set)
    queues: dict[str, QueueLedger] = field(
        default_factory=lambda: {name: QueueLedger() for name in QUEUES}
    )
    acks_lost: int = 0
    unconfirmed_kept: int = 0

    def settle(self, queue: str, bodies: list[bytes]) -> None:
        """Check what a restart found in `queue`, and take it for the truth from here on."""
        found = [name_of(body) for body in bodies]
        ledger = self.queues[queue]
        present = set(found)
        assert len(present) == len(found), f"{queue}: something is there twice"
        missing = (self.confirmed | ledger.found) - ledger.acked - ledger.gone - present
        assert not missing, f"{queue}: confirmed and lost: {sorted(missing)[:20]}"
        back = present & ledger.gone
        assert not back, f"{queue}: acknowledged, gone, and back: {sorted(back)[:20]}"
        for publisher in self.sent:
            self._check_order(queue, publisher, [number for p, number in found if p == publisher])
        self.acks_lost += len(present & ledger.acked)
        self.unconfirmed_kept += len(present - self.confirmed)
        ledger.gone |= ledger.acked - present
        ledger.acked.clear()

    def _check_order(self, queue: str, publisher: int, numbers: list[int]) -> None:
        assert numbers == sorted(numbers), f"{queue}: publisher {publisher} is out of order"
        never = [number for number in numbers if number > self.sent[publisher]]
        assert not never, f"{queue}: publisher {publisher} never sent {never}"

    def adopt(self, queue: str, bodies: list[bytes]) -> None:
        """What a restart found in a queue is safe now, confirmed or not."""
        self.queues[queue].found.update(name_of(body) for body in bodies)


async def declare(broker: Broker) -> None:
    async with connect(broker.url) as connection, connection.channel() as channel:
        await channel.declare_exchange(EXCHANGE, "fanout", durable=True)
        for queue in QUEUES:
            await channel.declare_queue(queue, durable=True)
            await channel.bind_queue(queue, EXCHANGE)


async def until_killed(work: Awaitable[None]) -> None:
    try:
        await work
    except (ConnectionLost, ConnectionForced):
        return


async def publish(broker: Broker, ledger: Ledger, publisher: int) -> None:
    """Publish in batches, for as long as the broker lives; note what it confirms."""
    chance = random.Random(publisher)
    async with connect(broker.url) as connection, connection.channel(confirms=True) as channel:
        while True:
            await channel.ready()
            batch: list[Name] = []
            for _ in range(chance.randint(1, BATCH_MAX[publisher])):
                ledger.sent[publisher] += 1
                batch.append((publisher, ledger.sent[publisher]))
                channel.publish_soon(body_of(*batch[-1]), exchange=EXCHANGE, properties=PERSISTENT)
            await channel.confirmed()
            ledger.confirmed.update(batch)


async def consume(broker: Broker, ledger: QueueLedger, queue: str) -> None:
    """Acknowledge whatever comes, for as long as the broker lives."""
    async with connect(broker.url) as connection:
        channel = await connection.channel(prefetch=PREFETCH)
        consumer = channel.consume(queue)
        while True:
            batch = await consumer.batch()
            ledger.acked.update(name_of(message.body) for message in batch)
            await batch[-1].ack(multiple=True)


async def load_until_killed(broker: Broker, ledger: Ledger, chance: random.Random) -> None:
    """Run all clients, kill the broker at a random instant under load, and see everybody off."""
    clients = [
        asyncio.create_task(until_killed(publish(broker, ledger, publisher)))
        for publisher in range(len(BATCH_MAX))
    ]
    clients.append(
        asyncio.create_task(until_killed(consume(broker, ledger.queues[CONSUMED], CONSUMED)))
    )
    enough = len(ledger.confirmed) + chance.randint(20, 1500)
    while len(ledger.confirmed) < enough and not any(client.done() for client in clients):
        await asyncio.sleep(0.001)
    await asyncio.sleep(chance.uniform(0, 0.02))
    await asyncio.to_thread(broker.kill)
    await asyncio.gather(*clients)


async def forget(broker: Broker, ledger: QueueLedger, queue: str, count: int) -> None:
    """Acknowledge the first `count` messages of a queue, so that they can't come back.

    The confirm that follows the acks in the same journal says that these are safe.
    """
    async with connect(broker.url) as connection, connection.channel(confirms=True) as channel:
        names = await _ack_all(channel, queue, count)
        probe = (await channel.declare_queue("probe", durable=True)).name
        await channel.publish(b"", routing_key=probe, properties=PERSISTENT)
        await channel.purge_queue(probe)
        ledger.gone |= names


async def _ack_all(channel: Channel, queue: str, count: int) -> set[Name]:
    await channel.qos(count)
    consumer = channel.consume(queue)
    names: set[Name] = set()
    while len(names) < count:
        batch = await consumer.batch(count - len(names))
        names.update(name_of(message.body) for message in batch)
        await batch[-1].ack(multiple=True)
    return names
