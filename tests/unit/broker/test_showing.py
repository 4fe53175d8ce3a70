"""What somebody held when a broker crashed comes back marked as redelivered."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import BasicAck
from rhizome.amqp.properties import Properties
from rhizome.broker.browsing import browse
from rhizome.broker.showing import QUIET_MS
from rhizome.server.maintenance import Maintenance
from rhizome.testing.core import Content, Core, CoreClient, make_core

PERSISTENT = Properties(delivery_mode=2)


@pytest.fixture
def core() -> Core:
    return make_core()


@pytest.fixture
def client(core: Core) -> CoreClient:
    return core.connect()


def fill(client: CoreClient, *bodies: bytes, priority: int | None = None) -> str:
    queue = client.declare("q", durable=True, x_max_priority=3)
    for body in bodies:
        client.publish("", queue, body, Properties(delivery_mode=2, priority=priority))
    return queue


def flags(client: CoreClient, queue: str = "q") -> list[tuple[bytes, bool]]:
    found = []
    while (message := client.get(queue)) is not None:
        found.append((message.body, message.redelivered))
    return found


def quiet(core: Core) -> None:
    """Let pass what a broker waits before it writes nothing but what it has shown."""
    core.advance(QUIET_MS + 100)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_what_a_consumer_held_is_redelivered(
    core: Core, client: CoreClient, checkpoint: bool
) -> None:
    queue = fill(client, b"1", b"2", b"3", b"4")
    client.prefetch(3)
    client.consume(queue, "c")
    held = [event for event in client.take() if isinstance(event, Content)]
    client.send(BasicAck(held[0].tag))
    quiet(core)
    if checkpoint:
        maintenance = Maintenance.__new__(Maintenance)
        maintenance.broker = core.broker
        maintenance.store = core.store
        core.store.checkpoint(maintenance.build_checkpoint())
        core.settle()
    again = core.restarted()
    assert flags(again.connect()) == [(b"2", True), (b"3", True), (b"4", True)]


def test_what_nobody_had_is_not_redelivered(core: Core, client: CoreClient) -> None:
    queue = fill(client, b"1", b"2")
    assert client.get(queue, no_ack=False) is not None
    quiet(core)
    again = core.restarted().connect()
    assert flags(again) == [(b"1", True), (b"2", False)]


def test_it_is_written_along_with_the_next_record(core: Core, client: CoreClient) -> None:
    queue = fill(client, b"1")
    written = core.store.statistics().batches
    assert client.get(queue, no_ack=False) is not None
    assert core.store.statistics().batches == written, "it isn't worth a write of its own"
    client.publish("", queue, b"2", PERSISTENT)
    assert core.store.statistics().batches == written + 1
    assert flags(core.restarted().connect()) == [(b"1", True), (b"2", False)]


def test_each_priority_has_its_own_mark(core: Core, client: CoreClient) -> None:
    queue = fill(client, b"low")
    fill(client, b"high", b"higher", priority=2)
    assert client.get(queue, no_ack=False) is not None
    quiet(core)
    again = core.restarted().connect()
    assert flags(again) == [(b"high", True), (b"higher", False), (b"low", False)]


def test_it_is_remembered_over_several_restarts(core: Core, client: CoreClient) -> None:
    queue = fill(client, b"1", b"2")
    assert client.get(queue, no_ack=False) is not None
    quiet(core)
    again = core.restarted().restarted()
    client = again.connect()
    held = client.get(queue, no_ack=False)
    assert held is not None
    assert held.redelivered
    assert client.get(queue, no_ack=False) is not None
    quiet(again)
    assert flags(again.restarted().connect()) == [(b"1", True), (b"2", True)]


def test_transient_messages_leave_no_mark(core: Core, client: CoreClient) -> None:
    queue = client.declare("q", durable=True)
    client.publish("", queue, b"transient")
    written = core.store.statistics().batches
    assert client.get(queue, no_ack=False) is not None
    quiet(core)
    assert core.store.statistics().batches == written


def test_the_index_of_a_transient_message_says_nothing_of_its_successor(
    core: Core, client: CoreClient
) -> None:
    """A restart gives indexes again that only transient messages had."""
    queue = fill(client, b"kept")
    client.publish("", queue, b"transient")
    client.consume(queue, "c")
    quiet(core)
    core = core.restarted()
    client = core.connect()
    fill(client, b"new")
    assert flags(client) == [(b"kept", True), (b"new", False)]


def test_what_a_transient_message_was_counted_for_is_forgotten_with_it() -> None:
    """Else its successor under the same index would be delivered less often than its limit. One
    that was paged out has a place on disk, too, and isn't in the journal for that."""
    core = make_core(resident_budget_bytes=1)
    client = core.connect()
    queue = fill(client, b"kept")
    for _ in range(3):
        client.publish("", queue, b"transient")
    for _ in range(4):
        assert client.get(queue, no_ack=False) is not None
    client.close_socket()
    core = core.restarted()
    fill(core.connect(), b"new", b"new", b"new")
    shown = browse(core.queue(queue), core.broker.pager, 0, 10).found
    assert [one.delivery_count for one in shown] == [1, 0, 0, 0]
