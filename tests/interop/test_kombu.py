"""kombu, and py-amqp below it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import amqp
import kombu
import pytest
from amqp import exceptions

from rhizome.testing.broker_process import Broker, wait_until

from .conftest import PATIENCE_SECONDS, patterned_body

Unique = Callable[[str], str]


@pytest.fixture
def connection(broker: Broker) -> Iterator[kombu.Connection]:
    # py-amqp joins the path of the URL as the vhost: "//" is the vhost "/".
    with kombu.Connection(f"{broker.url}/", connect_timeout=PATIENCE_SECONDS) as opened:
        yield opened


@pytest.fixture
def raw(broker: Broker) -> Iterator[amqp.Connection]:
    connection = amqp.Connection(
        f"{broker.host}:{broker.port}", broker.user, broker.password, confirm_publish=True
    )
    connection.connect()
    yield connection
    if connection.connected:
        connection.close()


def drain_until(
    connection: kombu.Connection, reached: Callable[[], bool], events_max: int = 1000
) -> None:
    for _ in range(events_max):
        if reached():
            return
        connection.drain_events(timeout=PATIENCE_SECONDS)
    raise AssertionError("the messages did not come")


def test_a_producer_and_a_consumer_exchange_json(
    connection: kombu.Connection, unique: Unique
) -> None:
    exchange = kombu.Exchange(unique("exchange"), type="direct", auto_delete=True)
    queue = kombu.Queue(unique("queue"), exchange, routing_key="k", auto_delete=True)
    got: list[Any] = []

    def received(body: Any, message: kombu.Message) -> None:
        got.append((body, message.headers["tries"], message.properties["correlation_id"]))
        message.ack()

    with connection.Consumer(queue, callbacks=[received]):
        producer = connection.Producer(serializer="json")
        producer.publish(
            {"hello": ["wörld", 1, None]},
            exchange=exchange,
            routing_key="k",
            declare=[queue],
            headers={"tries": 3},
            correlation_id="c",
        )
        drain_until(connection, lambda: bool(got))
    assert got == [({"hello": ["wörld", 1, None]}, 3, "c")]


def test_simple_queues_hand_messages_over_in_order(
    connection: kombu.Connection, unique: Unique
) -> None:
    options = {"auto_delete": True}
    queue = connection.SimpleQueue(unique("simple"), queue_opts=options, exchange_opts=options)
    for number in range(20):
        queue.put({"n": number})
    assert queue.qsize() == 20
    got = []
    for _ in range(20):
        message = queue.get(timeout=PATIENCE_SECONDS)
        got.append(message.payload["n"])
        message.ack()
    queue.close()
    assert got == list(range(20))


def test_priorities_come_first(connection: kombu.Connection, unique: Unique) -> None:
    queue = kombu.Queue(unique("priorities"), max_priority=10, auto_delete=True)
    bound = queue(connection.default_channel)
    bound.declare()
    producer = connection.Producer()
    for priority in (0, 9, 5):
        producer.publish(str(priority), routing_key=queue.name, priority=priority)
    got = []
    for _ in range(3):
        message = bound.get(no_ack=True)
        got.append(message.decode())
    bound.delete()
    assert got == ["9", "5", "0"]


def test_a_rejected_message_is_dead_lettered(connection: kombu.Connection, unique: Unique) -> None:
    channel = connection.default_channel
    dead = kombu.Queue(unique("dead"), exclusive=True)(channel)
    dead.declare()
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead.name}
    alive = kombu.Queue(unique("alive"), exclusive=True, queue_arguments=arguments)(channel)
    alive.declare()
    connection.Producer().publish("x", routing_key=alive.name)
    alive.get().reject()
    message = wait_until(lambda: dead.get(no_ack=True), "the dead letter")
    assert message.headers["x-death"][0]["reason"] == "rejected"
    assert message.headers["x-first-death-queue"] == alive.name


def test_publishing_recovers_with_ensure_after_the_channel_was_closed(
    connection: kombu.Connection, unique: Unique
) -> None:
    producer = connection.Producer()
    name = unique("late")
    with pytest.raises(exceptions.NotFound):
        kombu.Queue(name)(connection.default_channel).queue_declare(passive=True)
    connection.SimpleQueue(name, queue_opts={"expires": 60}).put("x")
    producer.publish("y", routing_key=name, retry=True)


def test_py_amqp_sees_the_error_classes_of_each_reply_code(
    raw: amqp.Connection, unique: Unique
) -> None:
    name = unique("thing")
    with pytest.raises(exceptions.NotFound) as missing:
        raw.channel().queue_declare(name, passive=True)
    assert missing.value.method_name == "Queue.declare"
    with pytest.raises(exceptions.AccessRefused):
        raw.channel().exchange_declare("amq.nope", "direct")
    raw.channel().exchange_declare(name, "direct", auto_delete=True)
    with pytest.raises(exceptions.PreconditionFailed):
        raw.channel().exchange_declare(name, "fanout", auto_delete=True)
    assert raw.connected


def test_py_amqp_is_told_that_immediate_is_not_implemented(raw: amqp.Connection) -> None:
    channel = raw.channel()
    with pytest.raises(exceptions.AMQPNotImplementedError) as refused:
        channel.basic_publish_confirm(amqp.Message("x"), routing_key="q", immediate=True)
    assert (refused.value.reply_code, refused.value.method_name) == (540, "Basic.publish")


def test_py_amqp_transactions(raw: amqp.Connection, broker: Broker) -> None:
    plain = amqp.Connection(f"{broker.host}:{broker.port}", broker.user, broker.password)
    plain.connect()
    channel = plain.channel()
    queue = channel.queue_declare("", exclusive=True).queue
    channel.tx_select()
    channel.basic_publish(amqp.Message("undone"), routing_key=queue)
    channel.tx_rollback()
    channel.basic_publish(amqp.Message("done"), routing_key=queue)
    assert channel.basic_get(queue) is None
    channel.tx_commit()
    assert channel.basic_get(queue).body == "done"
    plain.close()


@pytest.mark.parametrize("size", [131_065, 10_000_000])
def test_py_amqp_moves_large_bodies(raw: amqp.Connection, size: int) -> None:
    channel = raw.channel()
    queue = channel.queue_declare("", exclusive=True).queue
    body = patterned_body(size)
    channel.basic_publish(amqp.Message(body), routing_key=queue)
    assert channel.basic_get(queue, no_ack=True).body == body


def test_py_amqp_heartbeats_are_answered(broker: Broker) -> None:
    connection = amqp.Connection(
        f"{broker.host}:{broker.port}", broker.user, broker.password, heartbeat=4
    )
    connection.connect()
    assert connection.heartbeat == 4
    sent, received = connection.bytes_sent, connection.bytes_recv

    def beat() -> bool:
        try:
            connection.drain_events(timeout=0.5)
        except TimeoutError:
            pass
        connection.heartbeat_tick(rate=2)
        return connection.bytes_sent > sent and connection.bytes_recv > received

    wait_until(beat, "heartbeats of both sides", PATIENCE_SECONDS)
    assert connection.channel().is_open
    connection.close()
