"""Streams as pika's users know them from RabbitMQ."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from pika import exceptions
from pika.adapters.blocking_connection import BlockingChannel

from .conftest import PATIENCE_SECONDS, Connect, wait_for_events

Unique = Callable[[str], str]
Delivery = tuple[Any, pika.BasicProperties, bytes]


@pytest.fixture
def stream(channel: BlockingChannel, unique: Unique) -> Iterator[str]:
    name = unique("stream")
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
    yield name
    if channel.is_open:
        channel.queue_delete(name)


def fill(connect: Connect, stream: str, count: int, start: int = 0) -> None:
    """Publish with confirms."""
    connection = connect()
    channel = connection.channel()
    channel.confirm_delivery()
    for number in range(start, start + count):
        channel.basic_publish("", stream, b"m%d" % number)
    connection.close()


def read(
    connect: Connect,
    stream: str,
    offset: object,
    count: int,
    prefetch: int = 100,
    ack: bool = True,
    seconds: float = PATIENCE_SECONDS,
    idle_seconds: float = 0.0,
) -> list[Delivery]:
    """The deliveries from an offset on: as many as asked for, or as come in this time; and, if it
    idles after that, also what comes meanwhile."""
    connection = connect()
    channel = connection.channel()
    channel.basic_qos(prefetch_count=prefetch)
    found: list[Delivery] = []

    def take(_: object, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        found.append((method, properties, body))
        if ack:
            channel.basic_ack(method.delivery_tag)

    channel.basic_consume(stream, take, arguments={"x-stream-offset": offset})
    deadline = time.monotonic() + seconds
    while len(found) < count and time.monotonic() < deadline:
        connection.process_data_events(0.05)
    if idle_seconds > 0.0:
        connection.sleep(idle_seconds)
        count = len(found)
    connection.close()
    return found[:count]


def offsets(deliveries: list[Delivery]) -> list[int]:
    return [int((properties.headers or {})["x-stream-offset"]) for _, properties, _ in deliveries]


def test_everything_is_read_again_and_again(pika_connect: Connect, stream: str) -> None:
    fill(pika_connect, stream, 20)
    for _ in range(2):
        found = read(pika_connect, stream, "first", 20)
        assert offsets(found) == list(range(20))
        assert [body for _, _, body in found] == [b"m%d" % number for number in range(20)]
        assert not any(method.redelivered for method, _, _ in found)


@pytest.mark.parametrize(
    ("offset", "expected"),
    [(7, [7, 8, 9]), ("last", [9]), (0, list(range(10))), ("1h", list(range(10)))],
)
def test_an_offset_says_where_to_begin(
    pika_connect: Connect, stream: str, offset: object, expected: list[int]
) -> None:
    fill(pika_connect, stream, 10)
    assert offsets(read(pika_connect, stream, offset, len(expected))) == expected


def test_a_timestamp_says_where_to_begin(pika_connect: Connect, stream: str) -> None:
    fill(pika_connect, stream, 3)
    past = dt.datetime.now(dt.UTC) - dt.timedelta(hours=1)
    assert offsets(read(pika_connect, stream, past, 3)) == [0, 1, 2]
    future = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    assert read(pika_connect, stream, future, 1, seconds=1) == []


def test_next_is_what_comes_from_now_on(pika_connect: Connect, stream: str) -> None:
    fill(pika_connect, stream, 5)
    connection = pika_connect()
    channel = connection.channel()
    channel.basic_qos(prefetch_count=10)
    found: list[bytes] = []
    channel.basic_consume(
        stream, lambda *got: found.append(got[3]), arguments={"x-stream-offset": "next"}
    )
    fill(pika_connect, stream, 2, start=5)
    wait_for_events(connection, lambda: len(found) >= 2)
    assert found == [b"m5", b"m6"]


def test_acks_are_credit(pika_connect: Connect, stream: str) -> None:
    fill(pika_connect, stream, 20)
    first = read(pika_connect, stream, "first", 5, prefetch=5, ack=False, idle_seconds=2.0)
    assert offsets(first) == [0, 1, 2, 3, 4], "no more without an ack"
    assert len(read(pika_connect, stream, "first", 20, prefetch=5)) == 20


def test_many_read_at_once(pika_connect: Connect, stream: str) -> None:
    fill(pika_connect, stream, 50)
    found: list[list[int]] = []

    def reader() -> None:
        found.append(offsets(read(pika_connect, stream, "first", 50, prefetch=7)))

    threads = [threading.Thread(target=reader) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [list(range(50))] * 4


def test_headers_stay_beside_the_offset(
    pika_connect: Connect, channel: BlockingChannel, stream: str
) -> None:
    channel.confirm_delivery()
    headers = {"a": 1, "x-stream-offset": "somebody else's"}
    channel.basic_publish("", stream, b"x", pika.BasicProperties(headers=headers))
    ((_, properties, _),) = read(pika_connect, stream, "first", 1)
    assert properties.headers == {"a": 1, "x-stream-offset": 0}


def refusal(connect: Connect, act: Callable[[BlockingChannel], object]) -> tuple[int, str]:
    """What closes the channel or the connection."""
    try:
        act(connect().channel())
    except (exceptions.ChannelClosedByBroker, exceptions.ConnectionClosedByBroker) as error:
        return error.reply_code, error.reply_text
    raise AssertionError("nothing was refused")


def test_what_streams_cannot_do_is_told_in_the_same_words(
    pika_connect: Connect, stream: str
) -> None:
    where = f"queue '{stream}' in vhost '/'"
    assert refusal(pika_connect, lambda channel: channel.basic_get(stream)) == (
        540,
        f"NOT_IMPLEMENTED - basic.get not supported by stream queues {where}",
    )
    assert refusal(pika_connect, lambda channel: channel.queue_purge(stream)) == (
        540,
        f"NOT_IMPLEMENTED - queue.purge not supported by stream queues {where}",
    )

    def ignore(*_: object) -> None:
        pass

    assert refusal(pika_connect, lambda channel: channel.basic_consume(stream, ignore)) == (
        406,
        f"PRECONDITION_FAILED - consumer prefetch count is not set for '{where}'",
    )

    def consume(channel: BlockingChannel, **options: Any) -> None:
        channel.basic_qos(prefetch_count=10)
        channel.basic_consume(stream, ignore, **options)

    assert refusal(pika_connect, lambda channel: consume(channel, auto_ack=True)) == (
        540,
        f"NOT_IMPLEMENTED - automatic acknowledgement not supported by stream queues {where}",
    )
    wrong = {"x-stream-offset": "3x"}
    assert refusal(pika_connect, lambda channel: consume(channel, arguments=wrong)) == (
        406,
        f"PRECONDITION_FAILED - invalid arg 'x-stream-offset' for {where}: "
        '{invalid_stream_offset_arg,{longstr,<<"3x">>}}',
    )


def test_a_rejected_delivery_is_an_error(pika_connect: Connect, stream: str) -> None:
    fill(pika_connect, stream, 1)

    def reject(channel: BlockingChannel) -> None:
        channel.basic_qos(prefetch_count=10)
        tags: list[int] = []
        channel.basic_consume(
            stream,
            lambda *got: tags.append(got[1].delivery_tag),
            arguments={"x-stream-offset": "first"},
        )
        wait_for_events(channel.connection, lambda: bool(tags))
        channel.basic_nack(tags[0], requeue=True)
        # A nack has no answer: that it was refused is told some time later.
        wait_for_events(channel.connection, lambda: channel.is_closed)

    assert refusal(pika_connect, reject) == (
        540,
        "NOT_IMPLEMENTED - basic.nack and basic.reject not supported by stream queues "
        f"queue '{stream}' in vhost '/'",
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"durable": False}, "invalid property 'non-durable' for queue '{}' in vhost '/'"),
        ({"exclusive": True}, "invalid property 'exclusive-owner' for queue '{}' in vhost '/'"),
        ({"auto_delete": True}, "invalid property 'auto-delete' for queue '{}' in vhost '/'"),
    ],
)
def test_a_stream_is_durable_and_shared(
    pika_connect: Connect, unique: Unique, options: dict[str, bool], text: str
) -> None:
    name = unique("stream")
    given: dict[str, Any] = {"durable": True, **options}
    arguments = {"x-queue-type": "stream"}
    found = refusal(
        pika_connect, lambda channel: channel.queue_declare(name, arguments=arguments, **given)
    )
    assert found == (406, "PRECONDITION_FAILED - " + text.format(name))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("x-message-ttl", 5),
        ("x-expires", 5000),
        ("x-dead-letter-exchange", "x"),
        ("x-max-length", 5),
        ("x-overflow", "drop-head"),
        ("x-single-active-consumer", True),
        ("x-max-priority", 5),
    ],
)
def test_arguments_of_other_queues_are_refused(
    pika_connect: Connect, unique: Unique, key: str, value: object
) -> None:
    name = unique("stream")
    arguments = {"x-queue-type": "stream", key: value}
    found = refusal(
        pika_connect, lambda channel: channel.queue_declare(name, durable=True, arguments=arguments)
    )
    text = f"invalid arg '{key}' for queue '{name}' in vhost '/' of queue type rabbit_stream_queue"
    assert found == (406, f"PRECONDITION_FAILED - {text}")


@pytest.mark.rhizome_only
def test_what_a_cancelled_consumer_holds_may_be_given_back(
    pika_connect: Connect, stream: str
) -> None:
    """Clients do that; RabbitMQ closes the connection."""
    fill(pika_connect, stream, 5)
    channel = pika_connect().channel()
    channel.basic_qos(prefetch_count=10)
    tags: list[int] = []
    consumer = channel.basic_consume(
        stream,
        lambda *got: tags.append(got[1].delivery_tag),
        arguments={"x-stream-offset": "first"},
    )
    wait_for_events(channel.connection, lambda: len(tags) == 5)
    channel.basic_cancel(consumer)
    channel.basic_nack(tags[-1], multiple=True, requeue=True)
    assert channel.queue_declare(stream, passive=True).method.message_count == 5


@pytest.mark.rhizome_only
@pytest.mark.lone_only("an ack through one broker may come after a consumer through another")
def test_progress_of_a_name_is_remembered(pika_connect: Connect, stream: str) -> None:
    fill(pika_connect, stream, 20)

    def take(count: int) -> list[int]:
        connection = pika_connect()
        channel = connection.channel()
        channel.basic_qos(prefetch_count=count)
        arguments = {"x-stream-offset": "first", "x-stream-consumer-name": "app"}
        found: list[Delivery] = []
        channel.basic_consume(stream, lambda *got: found.append(got[1:]), arguments=arguments)
        wait_for_events(connection, lambda: len(found) >= count)
        channel.basic_ack(found[count - 1][0].delivery_tag, multiple=True)
        connection.close()
        return offsets(found[:count])

    assert take(5) == [0, 1, 2, 3, 4]
    assert take(3) == [5, 6, 7]


@pytest.mark.rhizome_only
def test_the_count_of_a_stream_is_what_it_holds(
    pika_connect: Connect, channel: BlockingChannel, stream: str
) -> None:
    fill(pika_connect, stream, 7)
    assert channel.queue_declare(stream, passive=True).method.message_count == 7
