"""Messages that expire behind others: each at its time, and at no cost for other queues."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import (
    BasicAck,
    BasicNack,
    QueueBind,
    QueueBindOk,
    QueuePurge,
    QueuePurgeOk,
)
from rhizome.amqp.properties import Properties
from rhizome.broker.metadata.metadata_commands import PutPolicy
from rhizome.broker.queue import due_heap
from rhizome.build_info import is_compiled
from rhizome.testing.in_memory_broker import Core, CoreClient, make_core

# Patching doesn't work on compiled code; the suite of interpreted code runs these.
changes_constants = pytest.mark.skipif(is_compiled(), reason="constants are compiled in")


@pytest.fixture
def core() -> Core:
    return make_core()


@pytest.fixture
def client(core: Core) -> CoreClient:
    return core.connect()


def publish(client: CoreClient, queue: str, body: bytes, ttl_ms: int | None = None) -> None:
    expiration = None if ttl_ms is None else str(ttl_ms)
    client.publish("", queue, body, Properties(expiration=expiration, delivery_mode=2))


def drained(client: CoreClient, queue: str) -> list[bytes]:
    found = []
    while (message := client.get(queue)) is not None:
        found.append(message.body)
    return found


def with_graves(client: CoreClient, **arguments: object) -> str:
    client.declare("dead")
    client.call(QueueBind("dead", "amq.fanout", ""), QueueBindOk)
    return client.declare("q", durable=True, x_dead_letter_exchange="amq.fanout", **arguments)


def test_a_message_expires_behind_one_that_stays(core: Core, client: CoreClient) -> None:
    queue = with_graves(client)
    publish(client, queue, b"stays")
    publish(client, queue, b"longer", 2_000)
    publish(client, queue, b"short", 300)
    publish(client, queue, b"shorter", 100)
    core.advance(200)
    assert drained(client, "dead") == [b"shorter"]
    core.advance(300)
    assert drained(client, "dead") == [b"short"]
    assert core.queue(queue).ready == 2
    core.advance(1_600)
    assert drained(client, "dead") == [b"longer"]
    assert drained(client, queue) == [b"stays"]


def test_what_expired_behind_the_head_stays_away_after_a_crash(
    core: Core, client: CoreClient
) -> None:
    queue = client.declare("q", durable=True)
    for number in range(20):
        publish(client, queue, b"%d" % number, 100 if number % 2 else None)
    core.advance(300)
    assert core.queue(queue).ready == 10
    again = core.restarted()
    assert again.queue(queue).ready == 10
    assert drained(again.connect(), queue) == [b"%d" % number for number in range(0, 20, 2)]


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_messages_on_disk_expire_too(kind: str) -> None:
    core = make_core(resident_budget_bytes=1 << 16)
    client = core.connect()
    queue = client.declare("q", durable=True, x_queue_type=kind)
    body = b"x" * 1_000
    for number in range(400):
        publish(client, queue, body, 500 if number % 4 == 3 else None)
    assert core.queue(queue).lane.paged_count > 100
    core.advance(1_000)
    core.advance(1_000)
    assert core.queue(queue).ready == 300
    assert len(drained(client, queue)) == 300


def test_priorities_and_queue_ttl_count(core: Core, client: CoreClient) -> None:
    queue = client.declare("q", x_max_priority=3, x_message_ttl=1_000)
    client.publish("", queue, b"high", Properties(priority=3))
    client.publish("", queue, b"low", Properties(priority=0))
    client.publish("", queue, b"low, short", Properties(priority=0, expiration="100"))
    client.publish("", queue, b"high, short", Properties(priority=3, expiration="200"))
    core.advance(300)
    assert core.queue(queue).ready == 2
    core.advance(900)
    assert core.queue(queue).ready == 0


def test_a_message_that_comes_back_keeps_its_time(core: Core, client: CoreClient) -> None:
    queue = client.declare("q")
    publish(client, queue, b"stays")
    publish(client, queue, b"short", 500)
    client.consume(queue)
    first, second = client.deliveries()
    client.send(BasicNack(second.tag, False, True))
    core.advance(100)
    other = core.connect()
    client.close_socket()
    core.settle()
    assert core.queue(queue).ready == 2
    core.advance(600)
    assert first.body == b"stays"
    assert drained(other, queue) == [b"stays"]


def test_a_message_is_seen_behind_one_that_came_back(core: Core, client: CoreClient) -> None:
    queue = client.declare("q")
    publish(client, queue, b"held")
    held = client.get(queue, no_ack=False)
    assert held is not None
    publish(client, queue, b"short", 300)
    client.send(BasicNack(held.tag, False, True))
    core.advance(500)
    assert drained(client, queue) == [b"held"]


def test_what_is_unacked_does_not_expire(core: Core, client: CoreClient) -> None:
    queue = client.declare("q")
    publish(client, queue, b"stays")
    publish(client, queue, b"short", 100)
    assert client.get(queue) is not None
    held = client.get(queue, no_ack=False)
    core.advance(500)
    assert held is not None
    client.send(BasicAck(held.tag))
    assert (core.queue(queue).ready, core.queue(queue).unacked) == (0, 0)


def test_a_policy_that_gives_more_time_counts(core: Core, client: CoreClient) -> None:
    core.broker.cluster.propose(PutPolicy("/", "p", "^q$", {"message-ttl": 300}, "queues"), None)
    queue = client.declare("q")
    publish(client, queue, b"own", 5_000)
    publish(client, queue, b"also", 4_000)
    core.broker.cluster.propose(PutPolicy("/", "p", "^q$", {"message-ttl": 90_000}, "queues"), None)
    core.advance(1_000)
    assert core.queue(queue).ready == 2
    for _ in range(5):
        core.advance(1_000)
    assert core.queue(queue).ready == 0


def test_queues_without_times_of_their_own_have_no_index(core: Core, client: CoreClient) -> None:
    plain, timed = client.declare("plain"), client.declare("timed", x_message_ttl=1_000)
    for _ in range(5):
        publish(client, plain, b"m")
        publish(client, timed, b"m")
    assert core.queue(plain).expiries is None
    assert core.queue(timed).expiries is None


def test_messages_that_expire_in_order_are_not_indexed(core: Core, client: CoreClient) -> None:
    queue = client.declare("q")
    for _ in range(100):
        publish(client, queue, b"m", 1_000)
    found = core.queue(queue).expiries
    assert found is not None
    assert len(found.due) == 0
    core.advance(1_500)
    assert core.queue(queue).ready == 0


@changes_constants
def test_entries_of_what_was_consumed_do_not_pile_up(
    core: Core, client: CoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due_heap, "SWEPT_MIN", 10)
    queue = client.declare("q")
    publish(client, queue, b"first", 900_000)
    for number in range(300):
        publish(client, queue, b"m", 600_000 - number)
        if number >= 10:
            assert client.get(queue) is not None
        if number % 20 == 0:
            core.advance(50)
    core.advance(50)
    found = core.queue(queue).expiries
    assert found is not None
    assert len(found.due) + len(found.old) < 60


def test_what_was_held_while_the_rest_was_purged_keeps_its_time(
    core: Core, client: CoreClient
) -> None:
    queue = with_graves(client)
    for body, ttl_ms in ((b"stays", None), (b"short", 300), (b"purged", 300)):
        publish(client, queue, body, ttl_ms)
    stays, short = (client.get(queue, no_ack=False) for _ in range(2))
    assert stays is not None
    assert short is not None
    client.call(QueuePurge(queue), QueuePurgeOk)
    client.send(BasicNack(short.tag, False, True), BasicNack(stays.tag, False, True))
    core.advance(500)
    assert drained(client, "dead") == [b"short"]
    assert drained(client, queue) == [b"stays"]
