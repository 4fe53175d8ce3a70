"""What Rhizome adds to RabbitMQ's dialect, and what survives the process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from rhizome.amqp import methods as m
from rhizome.amqp.properties import Properties
from rhizome.testing.broker_process import BrokerProcess
from tests.conformance.wire_driver import Channel, Connection

from .conftest import Unique

pytestmark = pytest.mark.rhizome_only
PERSISTENT = Properties(delivery_mode=2)


def test_a_consumer_timeout_cancels_that_consumer_only(channel: Channel, unique: Unique) -> None:
    slow = channel.declare(unique("slow"), arguments={"x-consumer-timeout": 400})
    other = channel.declare()
    channel.consume(slow, "slow")
    channel.consume(other, "other")
    channel.publish("", slow, b"x")
    assert channel.delivery().method.consumer_tag == "slow"
    assert channel.expect(m.BasicCancel, 10).consumer_tag == "slow"
    channel.publish("", other, b"y")
    assert channel.delivery().method.consumer_tag == "other"
    assert channel.get_wait(slow).method.redelivered


def test_a_delayed_message_comes_when_its_time_has_come(channel: Channel, unique: Unique) -> None:
    exchange = channel.declare_exchange(
        unique("delayed"), "x-delayed-message", arguments={"x-delayed-type": "direct"}
    )
    queue = channel.declare()
    channel.bind(queue, exchange, "k")
    began = time.monotonic()
    for body, delay in ((b"late", 500), (b"early", 150)):
        channel.publish(exchange, "k", body, Properties(headers={"x-delay": delay}))
    channel.publish(exchange, "k", b"now")
    channel.consume(queue, no_ack=True)
    assert [channel.delivery().body for _ in range(3)] == [b"now", b"early", b"late"]
    assert time.monotonic() - began >= 0.5


def test_a_last_value_queue_keeps_the_last_of_each_key(channel: Channel) -> None:
    queue = channel.declare(arguments={"x-last-value-key": "symbol"})
    for symbol, body in (("a", b"1"), ("b", b"2"), ("a", b"3"), ("b", b"4"), ("c", b"5")):
        channel.publish("", queue, body, Properties(headers={"symbol": symbol}))
    assert sorted(channel.bodies(queue)) == [b"3", b"4", b"5"]


def test_the_messages_of_a_key_go_to_one_consumer_at_a_time(
    connection: Connection, channel: Channel, unique: Unique
) -> None:
    queue = channel.declare(unique("keyed"), arguments={"x-group-key": "customer"})
    other = connection.channel()
    for each in (channel, other):
        each.qos(1)
        each.consume(queue)
    for customer, body in (("a", b"a1"), ("a", b"a2"), ("b", b"b1"), ("a", b"a3")):
        channel.publish("", queue, body, Properties(headers={"customer": customer}))
    held = [channel.delivery(), other.delivery()]
    assert sorted(each.body for each in held) == [b"a1", b"b1"]
    holder, idle = (channel, other) if held[0].body == b"a1" else (other, channel)
    idle.send(m.BasicAck(next(each.tag for each in held if each.body == b"b1")))
    assert idle.is_quiet()
    holder.close()
    again = idle.delivery()
    assert (again.body, again.method.redelivered) == (b"a1", True)
    idle.send(m.BasicAck(again.tag))
    assert idle.delivery().body == b"a2"


def test_keys_take_turns_in_a_fair_queue(channel: Channel) -> None:
    queue = channel.declare(arguments={"x-group-key": "routing-key", "x-group-fair": True})
    exchange = "amq.topic"
    channel.bind(queue, exchange, "tenant.#")
    for key in ("tenant.a", "tenant.a", "tenant.a", "tenant.b", "tenant.c"):
        channel.publish(exchange, key, key[-1:].encode())
    assert channel.count(queue) == 5
    channel.consume(queue)
    assert [each.body for each in channel.deliveries(5)] == [b"a", b"b", b"c", b"a", b"a"]


def test_what_would_break_the_order_of_a_key_is_refused(
    connection: Connection, unique: Unique
) -> None:
    arguments = {"x-group-key": "customer"}
    name = unique("keyed")
    refused = connection.channel().fails(
        m.QueueDeclare(name, arguments={**arguments, "x-max-priority": 3})
    )
    assert refused.code == 406
    channel = connection.channel()
    channel.declare(name, arguments=arguments)
    assert channel.fails(m.BasicConsume(name, no_ack=True)).code == 406


def test_a_message_id_seen_before_is_confirmed_and_dropped(channel: Channel) -> None:
    queue = channel.declare(arguments={"x-dedup": "message-id"})
    channel.confirm()
    for message_id in ("a", "b", "a", "c", "b"):
        properties = Properties(message_id=message_id)
        channel.publish_confirmed("", queue, message_id.encode(), properties)
    assert channel.bodies(queue) == [b"a", b"b", b"c"]


# --- what survives


@pytest.fixture
def reconnect(own_broker: BrokerProcess) -> Iterator[Callable[[], Connection]]:
    """Connects to the broker of this test."""
    opened: list[Connection] = []

    def connect() -> Connection:
        opened.append(Connection(own_broker))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


Reconnect = Callable[[], Connection]


def fill(channel: Channel) -> None:
    """Durable and other things, by names that tell which."""
    channel.declare("kept", exclusive=False, durable=True, arguments={"x-max-length": 100})
    channel.declare("lost", exclusive=False)
    channel.declare_exchange("kept-x", "topic", durable=True, auto_delete=False)
    channel.declare_exchange("lost-x", "topic", auto_delete=False)
    channel.bind("kept", "kept-x", "a.#")
    channel.confirm()
    for number in range(20):
        channel.publish_confirmed("", "kept", str(number).encode(), PERSISTENT)
    channel.publish_confirmed("", "kept", b"transient")
    held = [channel.get("kept", no_ack=False) for _ in range(5)]
    for got in held[:3]:
        assert got is not None
        channel.send(m.BasicAck(got.tag))
    channel.qos(0)


def check_what_is_left(connection: Connection, first: range) -> None:
    """All that was confirmed and not acked is there, in order; it begins somewhere in `first`."""
    channel = connection.channel()
    numbers = [int(body) for body in channel.bodies("kept")]
    assert numbers[0] in first
    assert numbers == list(range(numbers[0], 20))
    channel.publish("kept-x", "a.b", b"still bound")
    assert channel.get_wait("kept").body == b"still bound"
    same = m.QueueDeclare("kept", durable=True, arguments={"x-max-length": 100})
    channel.call(same, m.QueueDeclareOk)
    for method in (
        m.QueueDeclare("lost", passive=True),
        m.ExchangeDeclare("lost-x", "topic", passive=True),
    ):
        assert connection.channel().fails(method).code == 404


def test_durable_things_survive_a_restart(own_broker: BrokerProcess, reconnect: Reconnect) -> None:
    fill(reconnect().channel())
    own_broker.restart()
    check_what_is_left(reconnect(), range(3, 4))


def test_durable_things_survive_a_crash(own_broker: BrokerProcess, reconnect: Reconnect) -> None:
    """Acks have no answer, so the last ones may be forgotten; nothing else may."""
    fill(reconnect().channel())
    own_broker.kill()
    own_broker.start()
    check_what_is_left(reconnect(), range(4))


def test_a_stopping_broker_says_so_to_its_clients(
    own_broker: BrokerProcess, reconnect: Reconnect
) -> None:
    connection = reconnect()
    connection.channel()
    assert own_broker.stop() == 0
    assert connection.expect(m.ConnectionClose).reply_code == 320


def test_a_committed_transaction_survives_a_crash_and_an_open_one_does_not(
    own_broker: BrokerProcess, reconnect: Reconnect
) -> None:
    channel = reconnect().channel()
    for queue in ("first", "second"):
        channel.declare(queue, exclusive=False, durable=True)
    channel.call(m.TxSelect(), m.TxSelectOk)
    for queue in ("first", "second"):
        channel.publish("", queue, b"committed", PERSISTENT)
    channel.call(m.TxCommit(), m.TxCommitOk)
    channel.publish("", "first", b"open", PERSISTENT)
    channel.qos(0)
    own_broker.kill()
    own_broker.start()
    channel = reconnect().channel()
    assert [channel.bodies(queue) for queue in ("first", "second")] == [[b"committed"]] * 2


def test_a_delayed_message_survives_a_crash(
    own_broker: BrokerProcess, reconnect: Reconnect
) -> None:
    channel = reconnect().channel()
    arguments: dict[str, object] = {"x-delayed-type": "fanout"}
    declare = m.ExchangeDeclare("later", "x-delayed-message", durable=True, arguments=arguments)
    channel.call(declare, m.ExchangeDeclareOk)
    channel.declare("target", exclusive=False, durable=True)
    channel.bind("target", "later")
    channel.confirm()
    properties = Properties(delivery_mode=2, headers={"x-delay": 1500})
    channel.publish_confirmed("later", "", b"delayed", properties)
    own_broker.kill()
    own_broker.start()
    assert reconnect().channel().get_wait("target").body == b"delayed"
