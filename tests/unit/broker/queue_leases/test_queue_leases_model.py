"""Leases, consumers, expiry and restarts in any order: no message lost, none given to two."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rhizome.amqp.methods import BasicAck, BasicNack
from rhizome.amqp.properties import Properties
from rhizome.server.alarms_and_compaction import Maintenance
from rhizome.testing.in_memory_broker import CoreClient, make_core
from rhizome.testing.queue_lease_client import LeaseClient

PERSISTENT = Properties(delivery_mode=2)
KEEP_MS = 60_000
NAMES = st.sampled_from(["one", "two"])


@dataclass
class Known:
    """A lease as it should be: what it holds, from position `base` on."""

    base: int = 0
    held: list[int] = field(default_factory=list)
    read: int = 0
    until_ms: int = 0
    expired: bool = False

    def end(self) -> int:
        return self.base + len(self.held)


class Leasing(RuleBasedStateMachine):
    """Messages are numbers, in the order of their publishing: the queue gives the lowest first."""

    @initialize()
    def begin(self) -> None:
        self.core = make_core(resident_budget_bytes=1)
        self.client: CoreClient = self.core.connect()
        self.client.declare("q", durable=True)
        self.published = 0
        self.ready: list[int] = []
        self.marked: dict[int, None] = {}
        self.doubtful: dict[int, None] = {}
        """After a crash all that was there counts as seen, but for what a lease knows better."""
        self.held: dict[int, int] = {}
        self.leases: dict[str, Known] = {}
        self.gone: dict[int, None] = {}

    def lease(self, name: str) -> LeaseClient:
        return LeaseClient(self.client, "q", name)

    def alive(self, name: str) -> Known | None:
        known = self.leases.get(name)
        return None if known is None or known.expired else known

    def refresh(self, name: str) -> None:
        known = self.alive(name)
        if known is not None:
            known.until_ms = self.core.now_ms + KEEP_MS

    def back(self, numbers: list[int], seen: int) -> None:
        for at, number in enumerate(numbers):
            self.ready.append(number)
            if at < seen:
                self.marked[number] = None
        self.ready.sort()

    def check_mark(self, number: int, redelivered: bool) -> None:
        if number not in self.doubtful:
            assert redelivered == (number in self.marked)

    @rule(count=st.integers(1, 6), large=st.booleans())
    def publish(self, count: int, large: bool) -> None:
        for _ in range(count):
            body = b"%d " % self.published + bytes(200_000 if large else 0)
            self.client.publish("", "q", body, PERSISTENT)
            self.ready.append(self.published)
            self.published += 1

    @rule(name=NAMES, count=st.integers(0, 8))
    def take(self, name: str, count: int) -> None:
        known = self.leases.get(name)
        start = 0 if known is None else known.end()
        if known is not None and known.expired:
            assert "has expired" in self.lease(name).error(take=count, **{"from": start})
            return
        told = self.lease(name).take(count, start, keep_ms=KEEP_MS)
        taken, self.ready = self.ready[:count], self.ready[count:]
        if known is None and taken:
            known = self.leases[name] = Known()
        if known is not None:
            known.held += taken
            self.refresh(name)
            assert told == (known.base, known.end())

    @rule(name=NAMES, data=st.data())
    def read(self, name: str, data: st.DataObject) -> None:
        known = self.alive(name)
        if known is None or not known.held:
            return
        start = data.draw(st.integers(known.base, known.end() - 1))
        until = data.draw(st.integers(start, known.end()))
        found = self.lease(name).read(start, until)
        assert [entry.position for entry in found] == list(range(start, until))
        numbers = [int(entry.body.split(b" ")[0]) for entry in found]
        assert numbers == known.held[start - known.base : until - known.base]
        for number, entry in zip(numbers, found, strict=True):
            self.check_mark(number, entry.redelivered)
        if until > start:
            known.read = max(known.read, until - known.base)
        self.refresh(name)

    @rule(name=NAMES, data=st.data())
    def settle(self, name: str, data: st.DataObject) -> None:
        known = self.alive(name)
        if known is None:
            return
        count = data.draw(st.integers(0, len(known.held)))
        self.lease(name).told(settle=known.base + count, keep_ms=KEEP_MS)
        for number in known.held[:count]:
            self.gone[number] = None
        del known.held[:count]
        known.base += count
        known.read = max(0, known.read - count)
        self.refresh(name)

    @rule(name=NAMES)
    def end(self, name: str) -> None:
        self.lease(name).told(end=True)
        known = self.leases.pop(name, None)
        if known is not None and not known.expired:
            self.back(known.held, known.read)

    @rule(ack=st.booleans())
    def get(self, ack: bool) -> None:
        message = self.client.get("q", no_ack=not ack)
        if not self.ready:
            assert message is None
            return
        assert message is not None
        number = int(message.body.split(b" ")[0])
        assert number == self.ready.pop(0)
        self.check_mark(number, message.redelivered)
        if ack:
            self.held[number] = message.tag
        else:
            self.gone[number] = None

    @precondition(lambda self: self.held)
    @rule(requeue=st.booleans())
    def settle_held(self, requeue: bool) -> None:
        number, tag = self.held.popitem()
        if requeue:
            self.client.send(BasicNack(tag, requeue=True))
            self.back([number], 1)
        else:
            self.client.send(BasicAck(tag))
            self.gone[number] = None

    @rule(seconds=st.sampled_from([10, 70]))
    def wait(self, seconds: int) -> None:
        self.core.advance(seconds * 1000)
        for name, known in list(self.leases.items()):
            if known.expired or self.core.now_ms < known.until_ms:
                continue
            self.back(known.held, known.read)
            if known.held:
                known.expired = True
            else:
                del self.leases[name]

    @rule(checkpoint=st.booleans())
    def restart(self, checkpoint: bool) -> None:
        if checkpoint:
            maintenance = Maintenance.__new__(Maintenance)
            maintenance.broker = self.core.broker
            maintenance.store = self.core.store
            self.core.store.checkpoint(maintenance.build_checkpoint())
            self.core.settle()
        # What was shown is noted along with something else, or after a while.
        self.core.advance(2000)
        self.core = self.core.restarted()
        self.client = self.core.connect()
        self.back(list(self.held), len(self.held))
        self.held = {}
        for number in range(self.published):
            if number not in self.marked:
                self.doubtful[number] = None
        for known in self.leases.values():
            if not known.expired:
                known.read = len(known.held)
                known.until_ms = self.core.now_ms + KEEP_MS

    @invariant()
    def each_message_is_in_one_place(self) -> None:
        if not hasattr(self, "core"):
            return
        leased = [
            each for known in self.leases.values() if not known.expired for each in known.held
        ]
        everywhere = [*self.ready, *self.held, *self.gone, *leased]
        assert sorted(everywhere) == list(range(self.published))
        queue = self.core.queue("q")
        assert (queue.ready, queue.unacked) == (len(self.ready), len(self.held) + len(leased))


TestLeasing = Leasing.TestCase
TestLeasing.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
