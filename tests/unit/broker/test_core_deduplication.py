"""Nothing is accepted twice: sequences of producers and windows of message ids (L5)."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import (
    BasicAck,
    BasicNack,
    BasicReject,
    ChannelClose,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueBind,
    QueueBindOk,
    QueueDelete,
    QueueDeleteOk,
    TxCommit,
    TxCommitOk,
    TxSelect,
    TxSelectOk,
)
from rhizome.amqp.properties import Properties
from rhizome.broker.access.auth_interface import OpenIdentity
from rhizome.journal.dedup_state import SEQUENCE_WINDOW
from rhizome.server.alarms_and_compaction import Maintenance
from rhizome.testing.in_memory_broker import Core, CoreClient, make_core


@pytest.fixture
def core() -> Core:
    return make_core()


@pytest.fixture
def client(core: Core) -> CoreClient:
    return core.connect()


def numbered(sequence: int, producer: str = "p", **headers: object) -> Properties:
    named = {"x-producer": producer, "x-sequence": sequence, **headers}
    return Properties(headers=named, delivery_mode=2)


def send(client: CoreClient, queue: str, *sequences: int) -> None:
    for sequence in sequences:
        client.publish("", queue, b"%d" % sequence, numbered(sequence))


def as_user(client: CoreClient, user: str) -> CoreClient:
    client.connection.identity = OpenIdentity(user)
    return client


def drained(client: CoreClient, queue: str) -> list[bytes]:
    client.take()
    bodies = []
    while (message := client.get(queue)) is not None:
        bodies.append(message.body)
    return bodies


def acked(client: CoreClient) -> int:
    """The highest tag that was confirmed."""
    tags = [int(event.delivery_tag) for event in client.take() if isinstance(event, BasicAck)]
    return max(tags, default=0)


def test_each_sequence_of_a_producer_is_taken_once(client: CoreClient) -> None:
    queue = client.declare("q")
    client.confirm()
    send(client, queue, 1, 2, 2, 1, 3)
    assert acked(client) == 5
    client.publish("", queue, b"another's", numbered(3, "other"))
    assert drained(client, queue) == [b"1", b"2", b"3", b"another's"]


def test_each_queue_counts_for_itself(client: CoreClient) -> None:
    first, second = client.declare("first"), client.declare("second")
    send(client, first, 1)
    send(client, second, 1, 2)
    send(client, first, 2, 1)
    assert drained(client, first) == [b"1", b"2"]
    assert drained(client, second) == [b"1", b"2"]


def test_only_queues_that_have_not_accepted_it_take_a_message_again(client: CoreClient) -> None:
    client.call(ExchangeDeclare(exchange="all", type="fanout"), ExchangeDeclareOk)
    first = client.declare("first")
    client.call(QueueBind(first, "all", ""), QueueBindOk)
    client.publish("all", "", b"one", numbered(1))
    second = client.declare("second")
    client.call(QueueBind(second, "all", ""), QueueBindOk)
    client.publish("all", "", b"one", numbered(1))
    assert drained(client, first) == [b"one"]
    assert drained(client, second) == [b"one"]


def test_refused_sequence_is_acceptable_after_later_ones(client: CoreClient) -> None:
    queue = client.declare("q", x_max_length=2, x_overflow="reject-publish")
    client.confirm()
    send(client, queue, 1, 2, 3)
    assert any(isinstance(event, BasicNack) for event in client.take())
    assert drained(client, queue) == [b"1", b"2"]
    send(client, queue, 4, 3, 3, 2)
    assert acked(client) == 7
    assert drained(client, queue) == [b"4", b"3"]


def test_what_is_older_than_the_window_counts_as_a_duplicate(client: CoreClient) -> None:
    queue = client.declare("q")
    send(client, queue, 5, 5 + SEQUENCE_WINDOW, 6, 4)
    assert drained(client, queue) == [b"5", b"%d" % (5 + SEQUENCE_WINDOW), b"6"]


def test_a_duplicate_is_confirmed_with_its_original_and_not_before(
    core: Core, client: CoreClient
) -> None:
    queue = client.declare("q", durable=True)
    other = core.connect()
    for each in (client, other):
        each.confirm()
    core.hold_syncs = True
    send(client, queue, 1)
    send(other, queue, 1)
    assert (acked(client), acked(other)) == (0, 0)
    core.sync()
    assert (acked(client), acked(other)) == (1, 1)
    send(other, queue, 1)
    assert acked(other) == 2, "nothing new has to be synced"


def test_a_duplicate_by_message_id_waits_for_its_original_too(
    core: Core, client: CoreClient
) -> None:
    queue = client.declare("q", durable=True, x_dedup="message-id")
    client.confirm()
    core.hold_syncs = True
    for _ in range(2):
        client.publish("", queue, b"", Properties(message_id="same", delivery_mode=2))
    assert acked(client) == 0
    core.sync()
    assert acked(client) == 2


@pytest.mark.parametrize("checkpoint", [False, True])
def test_watermarks_survive_a_restart(core: Core, client: CoreClient, checkpoint: bool) -> None:
    queue = client.declare("q", durable=True)
    send(client, queue, 1, 2, 4)
    assert drained(client, queue) == [b"1", b"2", b"4"]
    if checkpoint:
        write_checkpoint(core)
    again = core.restarted().connect()
    again.confirm()
    send(again, queue, 1, 2, 3, 4, 5)
    assert acked(again) == 5
    assert drained(again, queue) == [b"3", b"5"]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_window_of_ids_survives_a_restart(
    core: Core, client: CoreClient, checkpoint: bool
) -> None:
    queue = client.declare("q", durable=True, x_dedup="message-id", x_dedup_window=2)
    for name in "abc":
        properties = Properties(message_id=name, delivery_mode=2)
        client.publish("", queue, name.encode(), properties)
    assert drained(client, queue) == [b"a", b"b", b"c"]
    if checkpoint:
        write_checkpoint(core)
    again = core.restarted().connect()
    for name in "cba":
        again.publish("", queue, name.encode(), Properties(message_id=name, delivery_mode=2))
    assert drained(again, queue) == [b"a"]


def test_what_a_crash_lost_is_no_duplicate_afterwards(core: Core, client: CoreClient) -> None:
    queue = client.declare("q", durable=True)
    transient = numbered(1)
    transient.delivery_mode = 1
    client.publish("", queue, b"1", transient)
    send(client, queue, 2)
    again = core.restarted().connect()
    again.publish("", queue, b"1", transient)
    send(again, queue, 2)
    assert drained(again, queue) == [b"2", b"1"]


def test_a_transaction_counts_at_its_commit(core: Core, client: CoreClient) -> None:
    queue = client.declare("q", durable=True)
    client.call(TxSelect(), TxSelectOk)
    send(client, queue, 1, 2, 1)
    send(core.connect(), queue, 2)
    client.call(TxCommit(), TxCommitOk)
    assert drained(core.connect(), queue) == [b"2", b"1"]
    again = core.restarted().connect()
    send(again, queue, 1, 2)
    assert drained(again, queue) == [], "both were acked, and neither comes back"


def test_a_queue_of_the_same_name_begins_anew(client: CoreClient) -> None:
    queue = client.declare("q", durable=True)
    send(client, queue, 1)
    client.call(QueueDelete(queue), QueueDeleteOk)
    client.declare("q", durable=True)
    send(client, queue, 1)
    assert drained(client, queue) == [b"1"]


def test_a_rejected_message_that_comes_back_is_no_duplicate(core: Core, client: CoreClient) -> None:
    queue = client.declare(
        "q",
        x_dedup="message-id",
        x_dead_letter_exchange="",
        x_dead_letter_routing_key="again",
    )
    client.declare(
        "again", x_dead_letter_exchange="", x_dead_letter_routing_key="q", x_message_ttl=0
    )
    properties = numbered(1)
    properties.message_id = "same"
    client.publish("", queue, b"one", properties)
    held = client.get(queue, no_ack=False)
    assert held is not None
    client.send(BasicReject(held.tag, False))
    core.advance(50)
    assert drained(client, queue) == [b"one"]


def test_a_delayed_message_is_held_once_and_arrives_though_others_overtook_it(
    core: Core, client: CoreClient
) -> None:
    arguments = {"x-delayed-type": "direct"}
    client.call(
        ExchangeDeclare(exchange="later", type="x-delayed-message", arguments=arguments),
        ExchangeDeclareOk,
    )
    queue = client.declare("q")
    client.call(QueueBind(queue, "later", "key"), QueueBindOk)
    for sequence in (1, 1):
        client.publish("later", "key", b"slow", numbered(sequence, **{"x-delay": 1000}))
    client.publish("", queue, b"quick", numbered(2 + SEQUENCE_WINDOW))
    core.advance(2000)
    assert drained(client, queue) == [b"quick", b"slow"]


@pytest.mark.parametrize(
    "headers",
    [
        {"x-producer": "", "x-sequence": 1},
        {"x-producer": 7, "x-sequence": 1},
        {"x-producer": "p" * 256, "x-sequence": 1},
        {"x-producer": "\0p", "x-sequence": 1},
        {"x-producer": "p", "x-sequence": -1},
        {"x-producer": "p", "x-sequence": "1"},
        {"x-producer": "p", "x-sequence": True},
    ],
)
def test_an_identity_that_is_none_closes_the_channel(
    client: CoreClient, headers: dict[str, object]
) -> None:
    queue = client.declare("q")
    client.publish("", queue, b"", Properties(headers=headers))
    closed = [event for event in client.take() if isinstance(event, ChannelClose)]
    assert [int(close.reply_code) for close in closed] == [406]
    assert "expected" in closed[0].reply_text


def test_one_header_alone_means_nothing(client: CoreClient) -> None:
    queue = client.declare("q")
    for headers in ({"x-sequence": 1}, {"x-producer": "p"}):
        for _ in range(2):
            client.publish("", queue, b"", Properties(headers=headers))
    assert len(drained(client, queue)) == 4


def write_checkpoint(core: Core) -> None:
    maintenance = Maintenance.__new__(Maintenance)
    maintenance.broker = core.broker
    maintenance.store = core.store
    core.store.checkpoint(maintenance.build_checkpoint())
    core.settle()


# ---- users --------------------------------------------------------------------------------------


def test_nobody_can_use_up_the_sequences_of_another_users_producer(core: Core) -> None:
    victim = as_user(core.connect(), "victim")
    attacker = as_user(core.connect(), "attacker")
    victim.declare("q", durable=True)
    victim.confirm()
    send(victim, "q", 1)
    send(attacker, "q", 1 << 62)
    send(victim, "q", 2, 3, 4, 5)
    assert drained(victim, "q") == [b"1", b"%d" % (1 << 62), b"2", b"3", b"4", b"5"]


def test_a_user_is_known_again_on_another_connection(core: Core) -> None:
    first = as_user(core.connect(), "alice")
    first.declare("q", durable=True)
    send(first, "q", 1, 2)
    second = as_user(core.connect(), "alice")
    send(second, "q", 1, 2, 3)
    assert drained(second, "q") == [b"1", b"2", b"3"]


def test_consumers_see_the_producer_that_was_sent(client: CoreClient) -> None:
    client.declare("q")
    send(client, "q", 1)
    taken = client.get("q")
    assert taken is not None
    assert taken.headers == {"x-producer": "p", "x-sequence": 1}
