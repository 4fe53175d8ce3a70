"""Rates and totals: what the queues count, summed, and how fast it grows.

A light sampler notes the counters of all queues and connections every few seconds. A rate is the
growth since the older of the two latest samples, so over a window of one to two intervals.

The core keeps counters per queue only, and they go with their queue. So that totals never fall, the
last sample of a queue that has gone is kept in ``Rates.gone``; what it counted after that sample is
not in the totals. Publishes are counted by the log, which never forgets any that reached a queue.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from rhizome.broker.broker import Broker
from rhizome.broker.connection import Connection
from rhizome.broker.queue import Queue
from rhizome.management.pace import Pace

SAMPLE_SECONDS: Final = 5.0

# enqueued, delivered, acknowledged, redelivered
Counts = tuple[int, int, int, int]
NONE: Final[Counts] = (0, 0, 0, 0)
Row = dict[str, object]


@dataclass(slots=True)
class Totals:
    """All queues together, at one moment (or within a few milliseconds of it)."""

    queues: int = 0
    consumers: int = 0
    ready: int = 0
    unacked: int = 0
    ready_bytes: int = 0
    published: int = 0
    counts: Counts = NONE


@dataclass(slots=True)
class Sample:
    """The counters at one moment, by id."""

    at: float
    published: int = 0
    counts: Counts = NONE
    queues: dict[int, Counts] = field(default_factory=dict)
    octets: dict[int, tuple[int, int]] = field(default_factory=dict)


class Rates:
    """Invariant: ``samples`` has one or two entries, the older one first."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.gone = NONE
        self.samples = [Sample(monotonic())]

    def queues(self) -> list[Queue]:
        return [
            destination
            for vhost in self.broker.state.vhosts.values()
            for destination in vhost.destinations.values()
            if isinstance(destination, Queue)
        ]

    # ---- sampling -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            await self.sample()

    async def sample(self) -> None:
        pace = Pace()
        taken = Sample(monotonic(), self._published())
        for queue in self.queues():
            taken.queues[int(queue.id)] = counts_of(queue)
            if pace.is_due():
                await pace.rest()
        for connection in list(self.broker.connections.values()):
            taken.octets[int(connection.id)] = octets_of(connection)
            if pace.is_due():
                await pace.rest()
        before = self.samples[-1].queues
        for queue_id in before.keys() - taken.queues.keys():
            self.gone = added(self.gone, before[queue_id])
        taken.counts = self.gone
        for counts in taken.queues.values():
            taken.counts = added(taken.counts, counts)
        self.samples = [self.samples[-1], taken]

    async def totals(self) -> Totals:
        """The sums over all queues."""
        pace = Pace()
        totals = Totals(published=self._published(), counts=self.gone)
        seen: set[int] = set()
        for queue in self.queues():
            if queue.deleted:
                continue
            seen.add(int(queue.id))
            totals.queues += 1
            totals.consumers += int(queue.consumer_count)
            totals.ready += int(queue.ready)
            totals.unacked += int(queue.unacked)
            totals.ready_bytes += int(queue.ready_bytes)
            totals.counts = added(totals.counts, counts_of(queue))
            if pace.is_due():
                await pace.rest()
        latest = self.samples[-1].queues
        for queue_id in latest.keys() - seen:
            totals.counts = added(totals.counts, latest[queue_id])
        return totals

    def _published(self) -> int:
        return int(self.broker.published)

    # ---- what the rows show ---------------------------------------------------------------------

    def of_totals(self, totals: Totals) -> Row:
        """message_stats of the whole broker."""
        old = self.samples[0]
        seconds = max(monotonic() - old.at, 0.001)
        stats = _stats(totals.counts, old.counts, seconds)
        stats["publish"] = totals.published
        stats["publish_details"] = rate(totals.published - old.published, seconds)
        return stats

    def of_queue(self, queue: Queue) -> Row:
        """message_stats of one queue."""
        old = self.samples[0]
        counts = old.queues.get(int(queue.id), NONE)
        return _stats(counts_of(queue), counts, max(monotonic() - old.at, 0.001))

    def of_connection(self, connection: Connection) -> Row:
        """Octets in both directions."""
        old = self.samples[0]
        seconds = max(monotonic() - old.at, 0.001)
        received, sent = octets_of(connection)
        old_received, old_sent = old.octets.get(int(connection.id), (0, 0))
        return {
            "recv_oct": received,
            "recv_oct_details": rate(received - old_received, seconds),
            "send_oct": sent,
            "send_oct_details": rate(sent - old_sent, seconds),
        }


def counts_of(queue: Queue) -> Counts:
    return (int(queue.published), int(queue.delivered), int(queue.acked), int(queue.redelivered))


def octets_of(connection: Connection) -> tuple[int, int]:
    return (int(connection.received_bytes), int(connection.sent_bytes))


def added(one: Counts, other: Counts) -> Counts:
    return (one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3])


def rate(growth: int, seconds: float) -> Row:
    """A `..._details` object of RabbitMQ's."""
    return {"rate": round(max(growth, 0) / seconds, 2)}


def _stats(now: Counts, old: Counts, seconds: float) -> Row:
    stats: Row = {}
    for name, at in (("publish", 0), ("deliver_get", 1), ("deliver", 1), ("ack", 2)):
        stats[name] = now[at]
        stats[f"{name}_details"] = rate(now[at] - old[at], seconds)
    stats["redeliver"] = now[3]
    stats["redeliver_details"] = rate(now[3] - old[3], seconds)
    return stats
