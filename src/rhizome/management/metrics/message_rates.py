"""Message rates and totals: the sums of the queues' counters, and how fast they grow.

A light sampler notes the counters of all queues that are active here, and of all connections, every
few seconds. A rate is the growth since the older of the two latest samples, so over a window of one
to two intervals.

The core keeps counters per queue only, and they are gone with their queue. So that totals never
fall, the last sample of a queue that is gone is kept in ``Rates.gone``; what it counted after that
sample is not in the totals. A queue that has moved to another home may come back, and then
continues its old counters: its last sample waits in ``Rates.left``, or it would be counted twice.
Publishes are counted by the log, which never forgets any that reached a queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from rhizome.broker.broker import Broker
from rhizome.broker.connection.connection import Connection
from rhizome.broker.queue.queue import Queue
from rhizome.management.http.cooperative_yield import Pace
from rhizome.management.metrics.queue_history import AGE_UNKNOWN, ALL, History

SAMPLE_SECONDS: Final = 5.0
SECONDS_MIN: Final = 1.0
"""A broker that has just started has no meaningful rate yet."""

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

    def add(self, queue: Queue) -> None:
        self.queues += 1
        self.consumers += int(queue.consumer_count)
        self.ready += int(queue.ready)
        self.unacked += int(queue.unacked)
        self.ready_bytes += int(queue.ready_bytes)
        self.counts = added(self.counts, counts_of(queue))


@dataclass(slots=True)
class Share:
    """All queues, or some of them by id: their ``totals`` now. The other sums are those of the
    older sample, at ``at``. Invariant: ``ids`` is None for all queues."""

    at: float
    totals: Totals = field(default_factory=Totals)
    published: int = 0
    counts: Counts = NONE
    depth: tuple[int, int] = (0, 0)
    ids: list[int] | None = None

    def _seconds(self) -> float:
        return max(monotonic() - self.at, SECONDS_MIN)

    def message_stats(self) -> Row:
        """What was counted, and how fast."""
        totals, seconds = self.totals, self._seconds()
        stats = _stats(totals.counts, self.counts, seconds)
        stats["publish"] = totals.published
        stats["publish_details"] = rate(totals.published - self.published, seconds)
        return stats

    def depth_details(self) -> Row:
        """How fast the queues grow together or, below 0, shrink."""
        return depth_details(self.totals.ready, self.totals.unacked, self.depth, self._seconds())

    def per_second(self) -> Row:
        """Messages per second."""
        totals, seconds = self.totals, self._seconds()
        return {
            "published": round(max(totals.published - self.published, 0) / seconds, 2),
            "delivered": round(max(totals.counts[1] - self.counts[1], 0) / seconds, 2),
            "acked": round(max(totals.counts[2] - self.counts[2], 0) / seconds, 2),
        }


@dataclass(slots=True)
class Sample:
    """The counters at one moment, by id; ``depths`` has ready and unacked messages."""

    at: float
    published: int = 0
    counts: Counts = NONE
    depth: tuple[int, int] = (0, 0)
    queues: dict[int, Counts] = field(default_factory=dict)
    depths: dict[int, tuple[int, int]] = field(default_factory=dict)
    octets: dict[int, tuple[int, int]] = field(default_factory=dict)


def head_arrived_ms(queue: Queue) -> int | None:
    """When the next message arrived here; None if there is none, or it is on disk."""
    for lane in reversed(queue.lanes):
        message = lane.peek()
        if message is not None:
            return int(message.arrived_ms)
        if lane.paged_count:
            return None
    return None


class Rates:
    """Invariants: ``samples`` has one or two entries, the older one first; a queue is in one of
    ``left`` and the latest sample at most.
    """

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.gone = NONE
        self.left: dict[int, Counts] = {}
        self.history = History()
        self.samples = [Sample(monotonic())]

    def queues(self) -> Iterator[Queue]:
        """All queues that are active here, private ones included. Some may be gone by the time they
        are reached, if the caller yields in between."""
        for vhost in list(self.broker.state.vhosts.values()):
            for destination in list(vhost.destinations.values()):
                if isinstance(destination, Queue) and destination.away is None:
                    yield destination

    # ---- sampling -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            await self.sample()

    async def sample(self) -> None:
        pace = Pace()
        taken = Sample(monotonic(), self._published())
        before = self.samples[-1]
        self.history.begin(int(self.broker.turn.now_ms))
        ready, unacked = 0, 0
        for queue in self.queues():
            self._sample_queue(queue, before, taken)
            ready += int(queue.ready)
            unacked += int(queue.unacked)
            if pace.is_due():
                await pace.rest()
        for connection in list(self.broker.connections.values()):
            taken.octets[int(connection.id)] = octets_of(connection)
            if pace.is_due():
                await pace.rest()
        self._note_comings_and_goings(before, taken)
        taken.counts = self.gone
        for counts in (*self.left.values(), *taken.queues.values()):
            taken.counts = added(taken.counts, counts)
            if pace.is_due():
                await pace.rest()
        taken.depth = (ready, unacked)
        numbers = (ready, unacked, taken.published, taken.counts[1], taken.counts[2], 0)
        self.history.add(ALL, numbers, True)
        self.samples = [before, taken]

    def _note_comings_and_goings(self, before: Sample, taken: Sample) -> None:
        for queue_id in before.queues.keys() - taken.queues.keys():
            self.left[queue_id] = before.queues[queue_id]
            self.history.forget(queue_id)
        for queue_id in self.left.keys() & taken.queues.keys():
            before.queues[queue_id] = self.left.pop(queue_id)  # else its rate were its count
        for queue_id in [each for each in self.left if each not in self.broker.shared]:
            self.gone = added(self.gone, self.left.pop(queue_id))

    def _sample_queue(self, queue: Queue, before: Sample, taken: Sample) -> None:
        queue_id = int(queue.id)
        counts = counts_of(queue)
        depth = (int(queue.ready), int(queue.unacked))
        taken.queues[queue_id] = counts
        taken.depths[queue_id] = depth
        is_busy = depth != (0, 0) or counts != before.queues.get(queue_id, NONE)
        age_ms = self._age_ms(queue)
        numbers = (*depth, counts[0], counts[1], counts[2], age_ms)
        self.history.add(queue_id, numbers, is_busy)

    def _age_ms(self, queue: Queue) -> int:
        """How long the next message has waited; 0 if there is none."""
        arrived = head_arrived_ms(queue)
        if arrived is None:
            return AGE_UNKNOWN if queue.ready else 0
        return max(0, int(self.broker.turn.now_ms) - arrived)

    async def totals(self) -> Totals:
        """The sums over all queues that are active here."""
        pace = Pace()
        totals = Totals(published=self._published(), counts=self.gone)
        seen: set[int] = set()
        for queue in self.queues():
            if queue.deleted:
                continue
            seen.add(int(queue.id))
            totals.add(queue)
            if pace.is_due():
                await pace.rest()
        for counted in (self.samples[-1].queues, self.left):
            for queue_id in counted.keys() - seen:
                totals.counts = added(totals.counts, counted[queue_id])
        return totals

    async def everything(self) -> Share:
        """All queues that are active here."""
        totals = await self.totals()
        old = self.samples[0]
        return Share(old.at, totals, old.published, old.counts, old.depth)

    async def share(self, vhosts: Collection[str]) -> Share:
        """The queues of these vhosts that are active here. What they took counts as published,
        because the log, which counts the publishes, knows no vhosts."""
        pace = Pace()
        old = self.samples[0]
        share, ids = Share(old.at), list[int]()
        ready, unacked = 0, 0
        for queue in self.queues():
            if queue.vhost in vhosts and not queue.deleted:
                ids.append(int(queue.id))
                share.totals.add(queue)
                share.counts = added(share.counts, self._was(queue, old))
                depth = old.depths.get(int(queue.id), (0, 0))
                ready, unacked = ready + depth[0], unacked + depth[1]
            if pace.is_due():
                await pace.rest()
        share.ids, share.depth = ids, (ready, unacked)
        share.totals.published, share.published = share.totals.counts[0], share.counts[0]
        return share

    def _was(self, queue: Queue, old: Sample) -> Counts:
        queue_id = int(queue.id)
        return old.queues.get(queue_id) or self.left.get(queue_id, NONE)

    def _published(self) -> int:
        return int(self.broker.published)

    # ---- what the rows show ---------------------------------------------------------------------

    def of_queue(self, queue: Queue) -> Row:
        """message_stats of one queue."""
        old = self.samples[0]
        seconds = max(monotonic() - old.at, SECONDS_MIN)
        return _stats(counts_of(queue), self._was(queue, old), seconds)

    def of_depth(self, queue: Queue) -> Row:
        """How fast a queue grows or, below 0, shrinks."""
        old = self.samples[0]
        was = old.depths.get(int(queue.id), (0, 0))
        return depth_details(
            int(queue.ready), int(queue.unacked), was, max(monotonic() - old.at, SECONDS_MIN)
        )

    def of_connection(self, connection: Connection) -> Row:
        """Octets in both directions."""
        old = self.samples[0]
        seconds = max(monotonic() - old.at, SECONDS_MIN)
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


def depth_details(ready: int, unacked: int, was: tuple[int, int], seconds: float) -> Row:
    grown = (ready - was[0], unacked - was[1])
    return {
        "messages_details": {"rate": round(sum(grown) / seconds, 2)},
        "messages_ready_details": {"rate": round(grown[0] / seconds, 2)},
        "messages_unacknowledged_details": {"rate": round(grown[1] / seconds, 2)},
    }


def _stats(now: Counts, old: Counts, seconds: float) -> Row:
    stats: Row = {}
    for name, at in (("publish", 0), ("deliver_get", 1), ("deliver", 1), ("ack", 2)):
        stats[name] = now[at]
        stats[f"{name}_details"] = rate(now[at] - old[at], seconds)
    stats["redeliver"] = now[3]
    stats["redeliver_details"] = rate(now[3] - old[3], seconds)
    return stats
