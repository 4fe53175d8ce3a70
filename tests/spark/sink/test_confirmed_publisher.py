"""The publisher of the sink against real brokers, without a Spark session."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyarrow as pa
import pytest

from rhizome.client.blocking import Connection
from rhizome.errors import LoginRefused
from rhizome.spark.amqp_socket import addresses_of
from rhizome.spark.sink.confirmed_publisher import (
    WINDOW,
    NotConfirmedError,
    Publisher,
    UnroutableError,
)
from rhizome.spark.sink.publish_frames import Addressing, FrameBatch, Framer, Producer
from rhizome.testing.broker_process import Broker, BrokerProcess, wait_until
from rhizome.testing.free_ports import free_port

Unique = Callable[[str], str]


def publisher(uri: str, patience_s: float = 30) -> Publisher:
    return Publisher(addresses_of(uri), "test", patience_s)


def batch(queue: str, first: int, count: int, mandatory: bool = True) -> FrameBatch:
    framer = Framer(Addressing("", queue, mandatory, persistent=True), 131_072)
    rows = pa.record_batch({"value": pa.array([b"%d" % n for n in range(first, first + count)])})
    return framer.frames(rows, Producer(f"test:{queue}", first))


def declare(uri: str, queue: str, arguments: dict[str, object] | None = None) -> None:
    with Connection(uri) as connection:
        connection.channel().declare_queue(queue, durable=True, arguments=arguments)


def send(sending: Publisher, *batches: FrameBatch) -> int:
    for each in batches:
        sending.publish(each)
    return sending.finish()


def drain(uri: str, queue: str) -> list[int]:
    """Everything in the queue, and nothing is left."""
    with Connection(uri) as connection:
        channel = connection.channel()
        size = channel.declare_queue(queue, passive=True).message_count
        consumer = channel.consume(queue, no_ack=True, timeout_s=30)
        found = [int(next(consumer).body) for _ in range(size)]
        assert channel.declare_queue(queue, passive=True).message_count == 0
        return found


def test_messages_arrive_in_order_and_are_confirmed(broker: Broker, unique: Unique) -> None:
    queue = unique("plain")
    declare(broker.url, queue)
    total = 3 * WINDOW
    batches = [batch(queue, first, 512) for first in range(0, total, 512)]
    assert send(publisher(broker.url), *batches) == total
    assert drain(broker.url, queue) == list(range(total))


def test_what_is_sent_again_is_not_stored_again(broker: Broker, unique: Unique) -> None:
    queue = unique("again")
    declare(broker.url, queue)
    for _ in range(3):
        assert send(publisher(broker.url), batch(queue, 0, 1000)) == 1000
    assert drain(broker.url, queue) == list(range(1000))


def test_nothing_is_lost_or_doubled_when_the_broker_is_killed(own_broker: BrokerProcess) -> None:
    declare(own_broker.url, "kills")
    total = 20_000
    sent = [0]

    def kill_and_restart() -> None:
        for place in (total // 4, total // 2):
            wait_until(lambda place=place: sent[0] > place, "progress", 60)
            own_broker.kill()
            own_broker.start()

    killer = threading.Thread(target=kill_and_restart)
    killer.start()
    sending = publisher(own_broker.url)
    for first in range(0, total, 500):
        sending.publish(batch("kills", first, 500))
        sent[0] = first
    assert sending.finish() == total
    killer.join()
    assert drain(own_broker.url, "kills") == list(range(total))


def test_refused_messages_are_sent_again_until_they_fit(broker: Broker, unique: Unique) -> None:
    queue = unique("full")
    declare(broker.url, queue, {"x-max-length": 200, "x-overflow": "reject-publish"})
    got: list[int] = []
    total = 1000

    def consume() -> None:
        with Connection(broker.url) as connection:
            channel = connection.channel(prefetch=50)
            for message in channel.consume(queue, timeout_s=30):
                got.append(int(message.body))
                message.ack()
                if len(got) == total:
                    return

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert send(publisher(broker.url), batch(queue, 0, total)) == total
    consumer.join()
    assert sorted(got) == list(range(total))


def test_publisher_gives_up_when_nothing_is_confirmed(broker: Broker, unique: Unique) -> None:
    queue = unique("stuck")
    declare(broker.url, queue, {"x-max-length": 10, "x-overflow": "reject-publish"})
    sending = publisher(broker.url, patience_s=1)
    with pytest.raises(NotConfirmedError, match=r"10 messages were not confirmed.*refuses"):
        send(sending, batch(queue, 0, 10), batch(queue, 10, 10))
    sending.drop()


def test_message_that_no_queue_takes_is_an_error(broker: Broker, unique: Unique) -> None:
    sending = publisher(broker.url)
    with pytest.raises(UnroutableError, match=r"no queue took a message to exchange '' with key"):
        send(sending, batch(unique("nowhere"), 0, 1))
    sending.drop()
    assert send(publisher(broker.url), batch(unique("nowhere"), 0, 1, mandatory=False)) == 1


def test_next_broker_of_the_list_is_taken(broker: Broker, unique: Unique) -> None:
    queue = unique("second")
    declare(broker.url, queue)
    uri = f"amqp://guest:guest@127.0.0.1:{free_port()},127.0.0.1:{broker.port}/"
    assert send(publisher(uri), batch(queue, 0, 10)) == 10


def test_wrong_password_is_told_at_once(broker: Broker) -> None:
    uri = f"amqp://guest:hunter2@127.0.0.1:{broker.port}/"
    with pytest.raises(LoginRefused) as caught:
        publisher(uri, patience_s=30)
    assert "hunter2" not in repr(caught.value)
