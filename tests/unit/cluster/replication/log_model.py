"""A group's log and what it amounts to, as simply as can be."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from rhizome.cluster.replication.group_copy import GroupCopy
from rhizome.journal.dedup_state import DedupIdentity
from rhizome.journal.records import (
    FLAG_DURABLE,
    FLAG_REFUSED,
    dequeue_record,
    drop_queue_record,
    enqueue_record,
    number_record,
    purge_record,
    requeue_record,
    shown_record,
    tx_record,
)
from tests.unit.cluster.replication.broker_disk import GROUP, Place


@dataclass(frozen=True)
class Body:
    priority: int
    content: bytes
    durable: bool


@dataclass
class Content:
    """What some records amount to."""

    queues: dict[int, dict[int, Body]] = field(default_factory=dict)
    counts: dict[int, dict[int, int]] = field(default_factory=dict)
    origins: dict[int, int] = field(default_factory=dict)
    refused: dict[int, list[int]] = field(default_factory=dict)
    seen: dict[tuple[int, bytes], int] = field(default_factory=dict)
    shown: dict[int, dict[int, int]] = field(default_factory=dict)

    def number(self, origin: int, number: int, refused: bool) -> None:
        """The last number of an origin, 0: nothing is known of it any more."""
        if number:
            self.origins[origin] = number
        else:
            self.origins.pop(origin, None)
            self.refused.pop(origin, None)
        if refused:
            self.refused.setdefault(origin, []).append(number)

    def live(self) -> dict[int, dict[int, Body]]:
        return {queue: bodies for queue, bodies in self.queues.items() if bodies}

    def known_counts(self) -> dict[int, dict[int, int]]:
        return {queue: counts for queue, counts in self.counts.items() if counts}

    def remove(self, queue: int, indexes: list[int]) -> None:
        for index in indexes:
            self.queues.get(queue, {}).pop(index, None)
            self.counts.get(queue, {}).pop(index, None)


class Log:
    """The home's side: makes records and knows what they amount to.

    `all` is what a copy has that got everything, `kept` what the durable records alone amount to.
    """

    def __init__(self, epoch: int = 1, start: int = 1) -> None:
        self.epoch = epoch
        self.next_index = start
        self.all = Content()
        self.kept = Content()
        self.parts: list[bytes] = []

    def fork(self) -> Log:
        return copy.deepcopy(self)

    def take(self) -> bytes:
        data = b"".join(self.parts)
        self.parts = []
        return data

    def checkpointed(self) -> None:
        """A checkpoint holds all but messages and their counts, whichever record it came with."""
        for queue in self.all.queues:
            self.kept.queues.setdefault(queue, {})
        self.kept.origins = dict(self.all.origins)
        self.kept.refused = copy.deepcopy(self.all.refused)
        self.kept.seen = dict(self.all.seen)
        self.kept.shown = copy.deepcopy(self.all.shown)

    def _contents(self, durable: bool) -> list[Content]:
        return [self.all, self.kept] if durable else [self.all]

    def _next(self) -> int:
        self.next_index += 1
        return self.next_index - 1

    def enqueue(
        self,
        queues: list[int],
        content: bytes,
        durable: bool,
        priority: int = 0,
        origin: int = 0,
        producer: bytes = b"",
    ) -> bytes:
        index = self._next()
        number = self.all.origins.get(origin, 0) + 1 if origin else 0
        body = Body(priority, content, durable)
        for each in self._contents(durable):
            for queue in queues:
                each.queues.setdefault(queue, {})[index] = body
                if producer:
                    each.seen[(queue, producer)] = index
            if origin:
                each.origins[origin] = number
        flags = FLAG_DURABLE if durable else 0
        identity = DedupIdentity(producer, index, b"").packed() if producer else b""
        record = enqueue_record(
            *(GROUP, self.epoch, index, queues, b"\0\0", 1, -1, priority, flags, content),
            *(origin, number, identity),
        )
        self.parts.append(record)
        return record

    def dequeue(self, queue: int, indexes: list[int]) -> None:
        live = self.all.queues.get(queue, {})
        durable = any(live[index].durable for index in indexes)
        for each in self._contents(durable):
            each.remove(queue, indexes)
        flags = FLAG_DURABLE if durable else 0
        self.parts.append(
            dequeue_record(GROUP, self.epoch, self._next(), queue, sorted(indexes), flags)
        )

    def requeue(self, queue: int, index: int, count: int) -> None:
        durable = self.all.queues[queue][index].durable
        for each in self._contents(durable):
            each.counts.setdefault(queue, {})[index] = count
        flags = FLAG_DURABLE if durable else 0
        self.parts.append(
            requeue_record(GROUP, self.epoch, self._next(), queue, index, count, flags)
        )

    def purge(self, queue: int, up_to: int) -> None:
        for each in self._contents(True):
            each.remove(queue, [i for i in each.queues.get(queue, {}) if i <= up_to])
        self.parts.append(purge_record(GROUP, self.epoch, self._next(), queue, up_to, FLAG_DURABLE))

    def drop(self, queue: int) -> None:
        for each in self._contents(True):
            each.queues.pop(queue, None)
            each.counts.pop(queue, None)
            each.shown.pop(queue, None)
            each.seen = {k: v for k, v in each.seen.items() if k[0] != queue}
        self.parts.append(drop_queue_record(GROUP, self.epoch, self._next(), queue, FLAG_DURABLE))

    def number(self, origin: int, forget: bool = False, refuse: bool = False) -> None:
        number = 0 if forget else self.all.origins.get(origin, 0) + 1
        for each in self._contents(True):
            each.number(origin, number, refuse)
        flags = FLAG_DURABLE | (FLAG_REFUSED if refuse else 0)
        self.parts.append(number_record(GROUP, self.epoch, self._next(), origin, number, flags))

    def show(self, queue: int, priority: int, up_to: int) -> None:
        for each in self._contents(True):
            if queue in each.queues:
                each.shown.setdefault(queue, {})[priority] = up_to
        self.parts.append(
            shown_record(GROUP, self.epoch, self._next(), queue, priority, up_to, FLAG_DURABLE)
        )

    def transaction(self, steps: list[tuple[int, int, int]]) -> None:
        """Make one record of the records that some steps make."""
        before = self.parts
        self.parts = []
        for step in steps:
            self.step(*step)
        inner, self.parts = self.parts, before
        if inner:
            durable = any(record[9] & FLAG_DURABLE for record in inner)
            flags = FLAG_DURABLE if durable else 0
            self.parts.append(tx_record(GROUP, self.epoch, self._next(), flags, inner))

    def step(self, kind: int, a: int, b: int) -> None:
        """Any decision that a home could make now, chosen by three numbers."""
        queue = a % 3 + 1
        live = sorted(self.all.queues.get(queue, {}))
        if kind < 10 or not live:
            several = [1, 2, 3][: b % 3 + 1] if b % 5 == 0 else [queue]
            content = b"%d " % self.next_index * (a * b % 60)
            origin, producer = (0, 0xA, 0xB)[b % 3], (b"", b"", b"p", b"r")[a % 4]
            self.enqueue(several, content, kind % 2 == 0, kind % 3, origin, producer)
        elif kind < 15:
            first = a % len(live)
            self.dequeue(queue, live[first : first + b % 7 + 1 : 1 + kind % 2])
        elif kind == 15:
            self.requeue(queue, live[b % len(live)], a + 1)
        elif kind == 16 and b % 4 == 0:
            self.purge(queue, live[a % len(live)])
        elif kind == 17 and b % 6 == 0:
            self.drop(queue)
        elif kind == 18:
            self.show(queue, b % 3, live[a % len(live)])
        else:
            self.number((0xA, 0xB, 0xC)[a % 3], forget=b % 5 == 0, refuse=b % 5 == 1)


def check(found: GroupCopy, place: Place, expected: Content) -> None:
    """The copy has exactly that, and every message can be read."""
    live: dict[int, dict[int, Body]] = {}
    for queue_id, queue in found.queues.items():
        bodies: dict[int, Body] = {}
        for priority, level in queue.levels.items():
            for index, position in level.positions():
                message = place.message(position)
                assert (message.index, message.priority) == (index, priority)
                bodies[index] = Body(priority, message.content, message.flags & 1 == 1)
        if bodies:
            live[queue_id] = bodies
    assert live == expected.live(), "other messages"
    counts = {q: dict(queue.delivery_counts) for q, queue in found.queues.items()}
    assert {q: c for q, c in counts.items() if c} == expected.known_counts(), "other counts"
    assert found.origins == expected.origins, "other numbers of origins"
    refused = {origin: numbers for origin, numbers in found.known.refused.items() if numbers}
    assert refused == expected.refused, "other refusals"
    seen = {
        (queue_id, name): int(mark.last)
        for queue_id, queue in found.queues.items()
        if queue.seen is not None
        for name, mark in queue.seen.producers.items()
    }
    assert seen == expected.seen, "other watermarks"
    shown = {q: queue.shown for q, queue in found.queues.items() if queue.shown}
    assert shown == expected.shown, "other marks of what was shown"
