"""What somebody held when a broker ended comes back marked as redelivered.

After a clean stop nothing else is; after a crash everything is that may have been shown.
"""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import BasicAck
from rhizome.amqp.properties import Properties
from rhizome.broker.queue.message_browser import browse
from rhizome.broker.queue.redelivered_flag import QUIET_MS
from rhizome.journal.recovery import recover
from rhizome.server.alarms_and_compaction import Maintenance
from rhizome.testing.in_memory_broker import Content, Core, CoreClient, make_core

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


def maintenance_of(core: Core) -> Maintenance:
    maintenance = Maintenance.__new__(Maintenance)
    maintenance.broker = core.broker
    maintenance.store = core.store
    return maintenance


def stopped(core: Core) -> Core:
    """The core after a clean stop and a start."""
    core.store.close(maintenance_of(core).build_checkpoint())
    return core.restarted()


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
        core.store.checkpoint(maintenance_of(core).build_checkpoint())
        core.settle()
    again = core.restarted()
    assert flags(again.connect()) == [(b"2", True), (b"3", True), (b"4", True)]


def test_what_nobody_had_is_not_redelivered_after_a_clean_stop(
    core: Core, client: CoreClient
) -> None:
    queue = fill(client, b"1", b"2")
    assert client.get(queue, no_ack=False) is not None
    again = stopped(core).connect()
    assert flags(again) == [(b"1", True), (b"2", False)]


def test_what_was_shown_just_before_a_crash_is_redelivered(core: Core, client: CoreClient) -> None:
    """Its mark waits for something else to be written; a crash doesn't."""
    queue = fill(client, b"1", b"2", b"3")
    core.advance(QUIET_MS // 2)
    client.prefetch(2)
    client.consume(queue, "c")
    assert [event.body for event in client.take() if isinstance(event, Content)] == [b"1", b"2"]
    core.broker.delivered_marks.queues.clear()  # as if the broker had died before the record
    again = core.restarted()
    assert [redelivered for _, redelivered in flags(again.connect())] == [True] * 3
    fill(again.connect(), b"new")
    assert flags(again.connect()) == [(b"new", False)]


def test_what_was_acked_and_lost_with_its_ack_is_redelivered(
    core: Core, client: CoreClient
) -> None:
    queue = fill(client, b"1")
    files = core.files
    before = {segment: bytes(content) for segment, content in files.contents.items()}
    held = client.get(queue, no_ack=False)
    assert held is not None
    client.send(BasicAck(held.tag))
    for segment, content in before.items():
        files.contents[segment][:] = content
    assert flags(core.restarted().connect()) == [(b"1", True)]


def test_it_stays_so_over_a_clean_stop_after_a_crash(core: Core, client: CoreClient) -> None:
    fill(client, b"1")
    again = stopped(core.restarted())
    assert flags(again.connect()) == [(b"1", True)]


def test_it_is_written_along_with_the_next_record(core: Core, client: CoreClient) -> None:
    queue = fill(client, b"1")
    written = core.store.statistics().batches
    assert client.get(queue, no_ack=False) is not None
    assert core.store.statistics().batches == written, "it isn't worth a write of its own"
    client.publish("", queue, b"2", PERSISTENT)
    assert core.store.statistics().batches == written + 1
    assert shown_records(core) == [1]


def shown_records(core: Core) -> list[int]:
    """The indexes that the journal says messages were shown up to."""
    recovered = recover(core.files, core.store.uuid, repair=False)
    return [index for queue in recovered.queues.values() for index in queue.shown.values()]


def test_a_quiet_broker_writes_it_within_a_tenth_of_a_second(
    core: Core, client: CoreClient
) -> None:
    queue = fill(client, b"1")
    assert client.get(queue, no_ack=False) is not None
    assert shown_records(core) == []
    core.advance(QUIET_MS + 25)
    assert shown_records(core) == [1]
    assert QUIET_MS <= 100, "docs/operating/durability.md says so"


def test_each_priority_has_its_own_mark(core: Core, client: CoreClient) -> None:
    queue = fill(client, b"low")
    fill(client, b"high", b"higher", priority=2)
    assert client.get(queue, no_ack=False) is not None
    quiet(core)
    again = stopped(core).connect()
    assert flags(again) == [(b"high", True), (b"higher", False), (b"low", False)]


def test_it_is_remembered_over_several_restarts(core: Core, client: CoreClient) -> None:
    queue = fill(client, b"1", b"2", b"3")
    assert client.get(queue, no_ack=False) is not None
    again = stopped(stopped(core))
    client = again.connect()
    held = client.get(queue, no_ack=False)
    assert held is not None
    assert held.redelivered
    assert client.get(queue, no_ack=False) is not None
    found = flags(stopped(again).connect())
    assert found == [(b"1", True), (b"2", True), (b"3", False)]


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
