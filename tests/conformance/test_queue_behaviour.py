"""Queues: declaration, life, limits, priorities, single active consumer, delivery limit."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from rhizome.amqp import methods as m
from rhizome.amqp.properties import Properties
from rhizome.testing.broker_process import wait_until
from tests.conformance.wire_driver import Channel, Closed, Connection

from . import differences
from .conftest import Connect, Unique

IN_CLUSTER = bool(os.environ.get("RHIZOME_TEST_CLUSTER"))


def exists(connection: Connection, queue: str) -> bool:
    code = code_of(connection, queue)
    assert code in (0, 404)
    return code == 0


def code_of(connection: Connection, queue: str) -> int:
    """What a passive declare is answered with; 0 if the queue is there."""
    code = 0
    probe = connection.channel()
    try:
        probe.call(m.QueueDeclare(queue, passive=True), m.QueueDeclareOk)
        probe.close()
    except Closed as closed:
        code = closed.code
    return code


def goes(connection: Connection, queue: str) -> bool:
    """Whether a private queue is gone. Other brokers of a cluster hear of it a moment later; until
    then they say 405."""
    if IN_CLUSTER:
        wait_until(lambda: code_of(connection, queue) != 405, f"queue {queue} to go")
    return not exists(connection, queue)


@pytest.fixture
def quorum_queue(channel: Channel, unique: Unique) -> Iterator[str]:
    queue = unique("quorum")
    yield queue
    channel.connection.channel().call(m.QueueDelete(queue), m.QueueDeleteOk)


# --- declaration


def test_a_server_named_queue_has_a_name_of_its_own(channel: Channel) -> None:
    first, second = channel.declare(), channel.declare()
    assert first != second
    assert first.startswith("amq.gen-")
    assert second.startswith("amq.gen-")


def test_declare_ok_counts_messages_and_consumers(channel: Channel, unique: Unique) -> None:
    queue = channel.declare(unique("counted"))
    channel.confirm()
    for _ in range(3):
        channel.publish_confirmed("", queue)
    declared = channel.call(m.QueueDeclare(queue, exclusive=True), m.QueueDeclareOk)
    assert (declared.queue, declared.message_count, declared.consumer_count) == (queue, 3, 0)
    channel.qos(1)
    channel.consume(queue)
    channel.delivery()
    declared = channel.call(m.QueueDeclare(queue, passive=True), m.QueueDeclareOk)
    assert (declared.message_count, declared.consumer_count) == (2, 1)


def test_an_empty_name_means_the_last_declared_queue(channel: Channel) -> None:
    channel.declare()
    queue = channel.declare()
    channel.publish("", queue, b"x")
    got = channel.get("")
    assert got is not None
    assert got.body == b"x"
    channel.publish("", queue, b"y")
    assert channel.call(m.QueuePurge(""), m.QueuePurgeOk).message_count == 1
    tag = channel.consume("")
    channel.call(m.BasicCancel(tag), m.BasicCancelOk)
    channel.call(m.QueueDelete(""), m.QueueDeleteOk)
    assert not exists(channel.connection, queue)


def test_a_passive_declaration_also_sets_the_last_queue(channel: Channel) -> None:
    first, second = channel.declare(), channel.declare()
    assert first != second
    channel.call(m.QueueDeclare(first, passive=True), m.QueueDeclareOk)
    channel.publish("", first, b"x")
    assert channel.get("") is not None


def test_an_equal_declaration_succeeds_again(channel: Channel, unique: Unique) -> None:
    arguments: dict[str, object] = {
        "x-message-ttl": 60000,
        "x-expires": 120000,
        "x-max-length": 10,
        "x-max-length-bytes": 1000,
        "x-overflow": "reject-publish",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead",
        "x-max-priority": 5,
        "x-single-active-consumer": True,
        "x-queue-mode": "lazy",
    }
    name = unique("same")
    for _ in range(2):
        channel.declare(name, durable=True, auto_delete=True, arguments=arguments)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-message-ttl", 0),
        ("x-message-ttl", 2**32),
        ("x-expires", 2**32),
        ("x-max-length", 0),
        ("x-max-length-bytes", 0),
        ("x-overflow", "drop-head"),
        ("x-overflow", "reject-publish"),
        ("x-overflow", "reject-publish-dlx"),
        ("x-max-priority", 0),
        ("x-queue-mode", "default"),
        ("x-queue-mode", "lazy"),
        ("x-queue-type", "classic"),
        pytest.param("x-queue-version", 1, marks=differences.QUEUE_VERSION),
        ("x-queue-version", 2),
        pytest.param("x-consumer-timeout", 1000, marks=differences.CONSUMER_TIMEOUT),
        ("x-single-active-consumer", False),
        pytest.param("x-queue-master-locator", "min-masters", marks=differences.MASTER_LOCATOR),
        ("x-dead-letter-exchange", "no-such-exchange"),
        ("x-unknown", "whatever"),
        ("no-x-at-all", [1, {"a": None}]),
    ],
)
def test_arguments_that_are_accepted(channel: Channel, name: str, value: object) -> None:
    queue = channel.declare(arguments={name: value})
    channel.call(m.QueueDelete(queue), m.QueueDeleteOk)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-delivery-limit", 5),
        ("x-message-ttl", 1000),
        ("x-expires", 60000),
        ("x-max-length", 5),
        ("x-overflow", "reject-publish"),
        ("x-single-active-consumer", True),
        ("x-dead-letter-strategy", "at-most-once"),
        ("x-quorum-initial-group-size", 1),
        ("x-max-in-memory-length", 1),
        ("x-unknown", "whatever"),
    ],
)
def test_arguments_that_quorum_queues_accept(
    channel: Channel, quorum_queue: str, name: str, value: object
) -> None:
    arguments = {"x-queue-type": "quorum", name: value}
    assert channel.declare(quorum_queue, exclusive=False, durable=True, arguments=arguments)


# --- life


def test_delete_tells_how_many_messages_went(channel: Channel) -> None:
    queue = channel.declare()
    for _ in range(7):
        channel.publish("", queue)
    assert channel.call(m.QueueDelete(queue), m.QueueDeleteOk).message_count == 7


def test_purge_leaves_unacked_messages_alone(channel: Channel) -> None:
    queue = channel.declare()
    for number in range(5):
        channel.publish("", queue, str(number).encode())
    held = channel.get(queue, no_ack=False)
    assert held is not None
    assert channel.call(m.QueuePurge(queue), m.QueuePurgeOk).message_count == 4
    channel.send(m.BasicReject(held.tag, True))
    assert channel.get_wait(queue).body == b"0"


def test_delete_if_empty_and_if_unused_delete_what_is_both(channel: Channel) -> None:
    queue = channel.declare()
    channel.call(m.QueueDelete(queue, if_unused=True, if_empty=True), m.QueueDeleteOk)
    assert not exists(channel.connection, queue)


def test_an_exclusive_queue_goes_with_its_connection(
    connect: Connect, channel: Channel, unique: Unique
) -> None:
    owner = connect()
    queue = owner.channel().declare(unique("mine"))
    owner.close_politely()
    assert goes(channel.connection, queue)


def test_an_exclusive_queue_can_be_published_to_by_anyone(channel: Channel, other: Channel) -> None:
    queue = channel.declare()
    other.publish("", queue, b"hello")
    assert channel.get_wait(queue).body == b"hello"


def test_an_exclusive_queue_serves_all_channels_of_its_connection(channel: Channel) -> None:
    queue = channel.declare()
    second = channel.connection.channel()
    second.publish("", queue, b"x")
    assert second.get_wait(queue).body == b"x"


def test_an_auto_deleted_queue_goes_with_its_last_consumer(
    channel: Channel, unique: Unique
) -> None:
    queue = channel.declare(unique("auto"), exclusive=False, auto_delete=True)
    first, second = channel.consume(queue), channel.consume(queue)
    channel.call(m.BasicCancel(first), m.BasicCancelOk)
    assert exists(channel.connection, queue)
    channel.call(m.BasicCancel(second), m.BasicCancelOk)
    wait_until(lambda: not exists(channel.connection, queue), "the queue to go")


def test_an_auto_deleted_queue_stays_while_it_never_had_a_consumer(
    connect: Connect, channel: Channel, unique: Unique
) -> None:
    owner = connect()
    queue = owner.channel().declare(unique("auto"), exclusive=False, auto_delete=True)
    owner.close_politely()
    assert exists(channel.connection, queue)
    channel.call(m.QueueDelete(queue), m.QueueDeleteOk)


def test_an_auto_deleted_queue_goes_when_its_consumers_channel_closes(
    channel: Channel, unique: Unique
) -> None:
    queue = channel.declare(unique("auto"), exclusive=False, auto_delete=True)
    second = channel.connection.channel()
    second.consume(queue)
    second.close()
    wait_until(lambda: not exists(channel.connection, queue), "the queue to go")


def test_an_unused_queue_expires(channel: Channel, unique: Unique) -> None:
    queue = channel.declare(unique("expires"), exclusive=False, arguments={"x-expires": 300})
    channel.publish("", queue, b"does not keep it")
    began = time.monotonic()
    watcher = channel.connection
    # Asking for it passively would count as use; so watch for the first refusal after its time.
    time_up = began + 0.9
    wait_until(lambda: time.monotonic() > time_up, "its time to pass")
    assert not exists(watcher, queue)


def test_use_postpones_expiry(channel: Channel, unique: Unique) -> None:
    queue = channel.declare(unique("expires"), exclusive=False, arguments={"x-expires": 500})
    until = time.monotonic() + 1.2
    while time.monotonic() < until:
        assert channel.get(queue) is None
        assert channel.is_quiet(0.1)
    assert exists(channel.connection, queue)


def test_a_consumer_keeps_a_queue_from_expiring(channel: Channel, unique: Unique) -> None:
    queue = channel.declare(unique("expires"), exclusive=False, arguments={"x-expires": 200})
    tag = channel.consume(queue)
    assert channel.is_quiet(0.7)
    assert exists(channel.connection, queue)
    channel.call(m.BasicCancel(tag), m.BasicCancelOk)
    assert channel.is_quiet(0.7)
    assert not exists(channel.connection, queue)


# --- time to live


def test_messages_expire_after_the_ttl_of_the_queue(channel: Channel) -> None:
    queue = channel.declare(arguments={"x-message-ttl": 200})
    channel.confirm()
    channel.publish_confirmed("", queue, b"x")
    assert channel.count(queue) == 1
    wait_until(lambda: channel.count(queue) == 0, "the message to expire")
    assert channel.get(queue) is None


def test_a_ttl_of_zero_expires_what_cannot_be_delivered_at_once(channel: Channel) -> None:
    queue = channel.declare(arguments={"x-message-ttl": 0})
    channel.publish("", queue, b"nobody there")
    assert channel.get(queue) is None
    channel.consume(queue, no_ack=True)
    channel.publish("", queue, b"somebody there")
    assert channel.delivery().body == b"somebody there"


def test_messages_expire_after_a_ttl_of_their_own(channel: Channel) -> None:
    queue = channel.declare()
    channel.publish("", queue, b"short", Properties(expiration="100"))
    wait_until(lambda: channel.count(queue) == 0, "the message to expire")


def test_the_lower_ttl_counts(channel: Channel) -> None:
    queue = channel.declare(arguments={"x-message-ttl": 150})
    channel.publish("", queue, b"x", Properties(expiration="60000"))
    wait_until(lambda: channel.count(queue) == 0, "the message to expire", 5)
    slow = channel.declare(arguments={"x-message-ttl": 60000})
    channel.publish("", slow, b"x", Properties(expiration="150"))
    wait_until(lambda: channel.count(slow) == 0, "the message to expire", 5)


def test_an_expired_message_behind_a_living_one_is_never_delivered(channel: Channel) -> None:
    queue = channel.declare()
    channel.publish("", queue, b"long", Properties(expiration="60000"))
    channel.publish("", queue, b"short", Properties(expiration="100"))
    channel.publish("", queue, b"none")
    assert channel.is_quiet(0.4)
    assert channel.bodies(queue) == [b"long", b"none"]


def test_expiration_does_not_touch_what_a_consumer_holds(channel: Channel) -> None:
    queue = channel.declare(arguments={"x-message-ttl": 150})
    channel.publish("", queue, b"held")
    held = channel.get(queue, no_ack=False)
    assert held is not None
    assert channel.is_quiet(0.4)
    channel.send(m.BasicAck(held.tag))
    channel.qos(1)


def test_a_requeued_message_keeps_its_expiry(channel: Channel) -> None:
    queue = channel.declare(arguments={"x-message-ttl": 300})
    channel.publish("", queue, b"x")
    held = channel.get(queue, no_ack=False)
    assert held is not None
    assert channel.is_quiet(0.5)
    channel.send(m.BasicReject(held.tag, True))
    wait_until(lambda: channel.count(queue) == 0, "the message to expire", 5)


# --- length


def test_a_full_queue_drops_its_head(channel: Channel) -> None:
    queue = channel.declare(arguments={"x-max-length": 3})
    for number in range(6):
        channel.publish("", queue, str(number).encode())
    assert channel.bodies(queue) == [b"3", b"4", b"5"]


def test_length_in_bytes_counts_bodies_only(channel: Channel) -> None:
    queue = channel.declare(arguments={"x-max-length-bytes": 20})
    headers = Properties(headers={"large": "x" * 100})
    for number in range(4):
        channel.publish("", queue, str(number).encode() * 10, headers)
    assert channel.bodies(queue) == [b"2" * 10, b"3" * 10]


def test_a_body_larger_than_the_limit_never_stays(channel: Channel) -> None:
    queue = channel.declare(arguments={"x-max-length-bytes": 20})
    channel.publish("", queue, b"x" * 21)
    assert channel.get(queue) is None


def test_a_length_of_zero_keeps_nothing(channel: Channel) -> None:
    queue = channel.declare(arguments={"x-max-length": 0})
    channel.publish("", queue, b"x")
    assert channel.get(queue) is None


def test_unacked_messages_do_not_count(channel: Channel) -> None:
    queue = channel.declare(arguments={"x-max-length": 2})
    for number in range(2):
        channel.publish("", queue, str(number).encode())
    held = [channel.get(queue, no_ack=False) for _ in range(2)]
    for number in range(2, 4):
        channel.publish("", queue, str(number).encode())
    wait_until(lambda: channel.count(queue) == 2, "both to be there")
    last = held[-1]
    assert last is not None
    channel.send(m.BasicAck(last.tag, True))
    assert channel.bodies(queue) == [b"2", b"3"]


def test_dropped_messages_are_confirmed_all_the_same(channel: Channel) -> None:
    queue = channel.declare(arguments={"x-max-length": 1})
    channel.confirm()
    for number in range(3):
        channel.publish_confirmed("", queue, str(number).encode())


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_a_full_queue_that_rejects_nacks_and_keeps_its_head(
    channel: Channel, overflow: str
) -> None:
    queue = channel.declare(arguments={"x-max-length": 2, "x-overflow": overflow})
    channel.confirm()
    for number in range(2):
        channel.publish_confirmed("", queue, str(number).encode())
    for number in range(2):
        channel.publish("", queue, b"too many")
        assert channel.expect(m.BasicNack).delivery_tag == 3 + number
    assert channel.bodies(queue) == [b"0", b"1"]
    channel.publish_confirmed("", queue, b"room again")


def test_a_message_for_two_queues_is_nacked_if_one_of_them_rejects_it(
    channel: Channel, unique: Unique
) -> None:
    exchange = channel.declare_exchange(unique("both"), "fanout")
    full = channel.declare(arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    roomy = channel.declare()
    for queue in (full, roomy):
        channel.bind(queue, exchange)
    channel.confirm()
    channel.publish(exchange, "", b"x")
    channel.expect(m.BasicNack)
    assert channel.bodies(roomy) == [b"x"]


def test_rejection_without_confirms_is_silent(channel: Channel) -> None:
    queue = channel.declare(arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    for number in range(3):
        channel.publish("", queue, str(number).encode())
    assert channel.bodies(queue) == [b"0"]


# --- priorities


def test_higher_priorities_come_first_and_equal_ones_in_order(channel: Channel) -> None:
    queue = channel.declare(arguments={"x-max-priority": 9})
    for body, priority in ((b"a", 1), (b"b", 5), (b"c", None), (b"d", 5), (b"e", 9), (b"f", 1)):
        channel.publish("", queue, body, Properties(priority=priority))
    assert channel.bodies(queue) == [b"e", b"b", b"d", b"a", b"f", b"c"]


def test_priorities_above_the_maximum_count_as_the_maximum(channel: Channel) -> None:
    queue = channel.declare(arguments={"x-max-priority": 3})
    for body, priority in ((b"a", 3), (b"b", 200), (b"c", 4), (b"d", 2)):
        channel.publish("", queue, body, Properties(priority=priority))
    assert channel.bodies(queue) == [b"a", b"b", b"c", b"d"]


def test_priorities_are_ignored_where_none_were_asked_for(channel: Channel) -> None:
    queue = channel.declare()
    for body, priority in ((b"a", 1), (b"b", 9)):
        channel.publish("", queue, body, Properties(priority=priority))
    assert channel.bodies(queue) == [b"a", b"b"]


def test_a_requeued_message_goes_back_to_its_place_in_its_priority(channel: Channel) -> None:
    queue = channel.declare(arguments={"x-max-priority": 9})
    for body, priority in ((b"a", 5), (b"b", 5), (b"c", 9)):
        channel.publish("", queue, body, Properties(priority=priority))
    held = [channel.get(queue, no_ack=False) for _ in range(2)]
    assert [one.body for one in held if one] == [b"c", b"a"]
    channel.send(m.BasicNack(0, True, True))
    assert channel.bodies(queue) == [b"c", b"a", b"b"]


def test_a_full_priority_queue_drops_its_head_which_is_the_highest(channel: Channel) -> None:
    queue = channel.declare(arguments={"x-max-priority": 9, "x-max-length": 2})
    for body, priority in ((b"high", 9), (b"low", 1), (b"middle", 5)):
        channel.publish("", queue, body, Properties(priority=priority))
    assert channel.bodies(queue) == [b"middle", b"low"]


# --- single active consumer


def test_only_one_consumer_is_active_and_the_next_takes_over(channel: Channel) -> None:
    queue = channel.declare(arguments={"x-single-active-consumer": True})
    first, second = channel.consume(queue, "first"), channel.consume(queue, "second")
    for number in range(4):
        channel.publish("", queue, str(number).encode())
    got = channel.deliveries(4)
    assert {one.method.consumer_tag for one in got} == {first}
    channel.send(m.BasicAck(got[-1].tag, True))
    channel.call(m.BasicCancel(first), m.BasicCancelOk)
    channel.publish("", queue, b"next")
    assert channel.delivery().method.consumer_tag == second


def test_the_next_consumer_gets_what_a_closed_channel_held(channel: Channel) -> None:
    queue = channel.declare(arguments={"x-single-active-consumer": True})
    first, second = channel.connection.channel(), channel.connection.channel()
    first.consume(queue)
    second.consume(queue)
    channel.publish("", queue, b"x")
    assert not first.delivery().method.redelivered
    first.close()
    assert second.delivery().method.redelivered


# --- delivery limit


@differences.DELIVERY_COUNT
def test_a_quorum_queue_counts_deliveries_and_drops_at_its_limit(
    channel: Channel, quorum_queue: str
) -> None:
    dead = channel.declare()
    arguments: dict[str, object] = {
        "x-queue-type": "quorum",
        "x-delivery-limit": 2,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead,
    }
    channel.declare(quorum_queue, exclusive=False, durable=True, arguments=arguments)
    channel.confirm()
    channel.publish_confirmed("", quorum_queue, b"poison")
    channel.qos(1)
    channel.consume(quorum_queue)
    counts = []
    for _ in range(3):
        got = channel.delivery()
        counts.append((got.headers.get("x-delivery-count"), got.method.redelivered))
        channel.send(m.BasicNack(got.tag, False, True))
    assert counts == [(None, False), (1, True), (2, True)]
    letter = channel.get_wait(dead)
    assert letter.headers["x-death"][0]["reason"] == "delivery_limit"
    assert letter.headers["x-first-death-queue"] == quorum_queue


def test_a_quorum_queue_with_a_limit_returns_messages_to_its_head(
    channel: Channel, quorum_queue: str
) -> None:
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": 5}
    channel.declare(quorum_queue, exclusive=False, durable=True, arguments=arguments)
    channel.confirm()
    for body in (b"a", b"b"):
        channel.publish_confirmed("", quorum_queue, body)
    got = channel.get_wait(quorum_queue, no_ack=False)
    assert got.body == b"a"
    channel.send(m.BasicReject(got.tag, True))
    assert channel.get_wait(quorum_queue).body == b"a"
    assert channel.get_wait(quorum_queue).body == b"b"
