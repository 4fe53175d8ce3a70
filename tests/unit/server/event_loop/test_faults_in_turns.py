"""Whatever one part of a turn raises, the rest of the turn is done, and the fault is told."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from mypy_extensions import i64

from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import BasicAck, BasicConsume, QueueDeclare
from rhizome.amqp.properties import Properties
from rhizome.broker.cluster_port import Cluster, Waiter
from rhizome.broker.metadata.metadata_commands import Command
from rhizome.broker.queue.pager import SegmentReader
from rhizome.server.clustered_broker.link_driver import LinkDriver
from rhizome.server.event_loop.broker_driver import ClientProtocol, Shell, TurnPart
from rhizome.server.event_loop.busy_poll import BusyPoll
from rhizome.testing.in_memory_broker import Core, CoreClient, make_core

PERSISTENT = Properties(delivery_mode=2)


class Odd(Exception):
    """Something that nobody expected."""


class Loop:
    """Keeps what is to be called."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def run(self) -> None:
        while self.calls:
            self.calls.pop(0)()


class FaultyPart(TurnPart):
    def __init__(self, *faulty: str) -> None:
        super().__init__()
        self.faulty = faulty
        self.done: list[str] = []

    def _do(self, name: str) -> None:
        self.done.append(name)
        if name in self.faulty:
            raise Odd(name)

    def turn_ending(self) -> None:
        self._do("ending")

    def turn_ended(self) -> None:
        self._do("ended")

    def ticked(self) -> None:
        self._do("ticked")


class FaultyReader(SegmentReader):
    """A bug where a backlog is read."""

    def read(self, segment: i64, offset: i64, length: i64) -> bytes:
        raise Odd("read")


class FaultyCluster(Cluster):
    def propose(self, command: Command, waiter: Waiter | None) -> None:
        raise Odd("propose")


class FaultyStore:
    """A store whose batches get lost."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def pending(self) -> bool:
        return True

    def submit(self, now_ms: int) -> int:
        raise Odd("submit")

    def congested(self) -> bool:
        return False


def make_shell(core: Core, store: Any = None) -> Shell:
    loop = Loop()
    never = BusyPoll(cast(Any, loop), 0, time.monotonic_ns, os.sched_yield)
    broker = core.broker
    return Shell(broker, broker.cluster, store or core.store, loop, lambda: core.now_ms, never)


def end_turns(shell: Shell) -> None:
    shell.begin_turn()
    shell.loop.run()


def publisher(core: Core) -> CoreClient:
    client = core.connect()
    client.declare("other", durable=True)
    client.confirm()
    return client


def publish_in_turn(core: Core, shell: Shell, client: CoreClient) -> None:
    """Publish in a turn that the shell ends, and sync it."""
    client.connection.receive(client.published("", "other", b"x", PERSISTENT))
    end_turns(shell)
    # The store writes at once; it tells so in the next turn.
    core._run_synced()
    end_turns(shell)
    client.flush()


def is_confirmed(client: CoreClient) -> bool:
    return any(isinstance(event, BasicAck) for event in client.take())


@pytest.mark.parametrize("faulty", [("ending",), ("ended",), ("ending", "ended")])
def test_a_fault_of_the_links_keeps_nobody_from_the_disk(faulty: tuple[str, ...]) -> None:
    core = make_core()
    client = publisher(core)
    shell = make_shell(core)
    part = FaultyPart(*faulty)
    shell.links = part
    publish_in_turn(core, shell, client)
    assert is_confirmed(client)
    assert part.done[:2] == ["ending", "ended"]
    assert core.broker.faults.count("turn") >= len(faulty)
    assert core.broker.disabled == ""


def test_a_fault_in_one_queue_keeps_no_other_from_its_turn() -> None:
    core = make_core()
    core.broker.pager.budget_bytes = 0
    client = publisher(core)
    client.declare("backlog", durable=True)
    client.publish("", "backlog", b"x", PERSISTENT)
    client.take()
    shell = make_shell(core)
    core.broker.pager.reader = FaultyReader()
    consumer = core.connect()
    consumer.connection.receive(method_frame(1, BasicConsume("backlog", "tag", no_ack=True)))
    publish_in_turn(core, shell, client)
    assert is_confirmed(client)
    assert core.broker.faults.count("queue") >= 1
    core.observer.bugs.clear()


def test_a_socket_that_fails_ends_its_own_connection_only() -> None:
    core = make_core()
    client = publisher(core)
    shell = make_shell(core)

    def write(data: bytes) -> None:
        raise Odd("write")

    aborted: list[bool] = []
    transport = SimpleNamespace(write=write, writelines=write, abort=lambda: aborted.append(True))
    broken = ClientProtocol(shell, "x", False, cast(Any, None))
    broken.transport = transport
    broken.connection = core.connect().connection
    broken.connection.port = broken
    broken.connection.receive(method_frame(1, QueueDeclare("theirs")))
    publish_in_turn(core, shell, client)
    assert is_confirmed(client)
    assert aborted
    assert core.broker.faults.count("connection") >= 1
    core.observer.bugs.clear()


def test_a_batch_that_may_be_lost_is_never_confirmed() -> None:
    core = make_core()
    client = publisher(core)
    shell = make_shell(core, FaultyStore(core.store))
    publish_in_turn(core, shell, client)
    assert "the hand-over to the disk" in core.broker.disabled
    shell.store = core.store
    publish_in_turn(core, shell, client)
    core.broker.isolate("")
    core.broker.end_turn()
    client.flush()
    assert not is_confirmed(client)
    assert core.broker.isolation == core.broker.disabled
    core.observer.bugs.clear()


def test_a_fault_in_one_timer_keeps_no_other_from_its_turn() -> None:
    core = make_core()
    client = core.connect()
    client.declare("unused", **{"x-expires": 1000})
    client.declare("brief", **{"x-message-ttl": 1000})
    client.publish("", "brief", b"x")
    core.broker.cluster = FaultyCluster()
    shell = make_shell(core)
    part = FaultyPart("ticked")
    shell.links = part
    core.now_ms += 5_000
    shell.tick()
    shell.loop.run()
    assert core.queue("brief").ready == 0
    assert part.done[0] == "ticked"
    assert core.broker.faults.count("queue") == 1
    assert core.broker.faults.count("timer") == 1
    core.observer.bugs.clear()


def test_a_link_that_cannot_be_flushed_is_lost_and_the_others_are_flushed() -> None:
    core = make_core()
    told: list[str] = []

    class FakeLink:
        def __init__(self, name: str, faulty: bool) -> None:
            self.name, self.faulty, self.port, self.marked = name, faulty, None, True

        def flushed(self) -> None:
            if self.faulty:
                raise Odd(self.name)
            told.append(f"{self.name} flushed")

        def lost(self, reason: str) -> None:
            told.append(f"{self.name} lost")

    touched = [[FakeLink("b2", True), FakeLink("b3", False)], []]
    driver = LinkDriver.__new__(LinkDriver)
    driver.links = cast(Any, SimpleNamespace(take_touched=lambda: touched.pop(0)))
    driver.shell = make_shell(core)
    driver.satiated = []
    driver.turn_ended()
    assert told == ["b2 lost", "b3 flushed"]
    assert core.broker.faults.count("link") == 1
    core.observer.bugs.clear()
