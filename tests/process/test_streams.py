"""Streams of real processes, killed while they are written."""

from __future__ import annotations

import random
import time

import pika
import pytest
from pika import exceptions
from pika.adapters.blocking_connection import BlockingChannel

from rhizome.testing.processes import BrokerProcess

STREAM = "kills"
ARGUMENTS = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 20_000}


def connect(broker: BrokerProcess) -> pika.BlockingConnection:
    credentials = pika.PlainCredentials(broker.user, broker.password)
    return pika.BlockingConnection(
        pika.ConnectionParameters(broker.host, broker.port, credentials=credentials)
    )


def publish_until_killed(broker: BrokerProcess, start: int, at_s: float) -> int:
    """Publish numbers one by one, each confirmed; returns the first that wasn't."""
    channel = connect(broker).channel()
    channel.queue_declare(STREAM, durable=True, arguments=ARGUMENTS)
    channel.confirm_delivery()
    deadline = time.monotonic() + at_s
    number = start
    try:
        while True:
            if time.monotonic() >= deadline:
                broker.kill()
            channel.basic_publish("", STREAM, b"%d" % number + b"." * 200)
            number += 1
    except (exceptions.AMQPError, OSError):
        return number


def read_all(channel: BlockingChannel, count: int) -> list[tuple[int, int]]:
    """(offset, number) of everything in the stream."""
    channel.basic_qos(prefetch_count=200)
    found: list[tuple[int, int]] = []

    def take(_: object, method: object, properties: pika.BasicProperties, body: bytes) -> None:
        offset = int((properties.headers or {})["x-stream-offset"])
        found.append((offset, int(body.rstrip(b"."))))
        channel.basic_ack(method.delivery_tag)  # type: ignore[attr-defined]

    channel.basic_consume(STREAM, take, arguments={"x-stream-offset": "first"})
    deadline = time.monotonic() + 30
    while len(found) < count and time.monotonic() < deadline:
        channel.connection.process_data_events(0.05)
    return found


@pytest.mark.timeout(180)
def test_what_was_confirmed_is_there_in_order_after_every_kill(own_broker: BrokerProcess) -> None:
    chance = random.Random(7)
    next_number = 0
    for _ in range(3):
        next_number = publish_until_killed(own_broker, next_number, 0.3 + chance.random())
        own_broker.start()
    connection = connect(own_broker)
    channel = connection.channel()
    count = channel.queue_declare(STREAM, passive=True).method.message_count
    found = read_all(channel, count)
    connection.close()
    assert [offset for offset, _ in found] == list(range(count))
    numbers = [number for _, number in found]
    # A number whose confirm was lost with its broker was published again: it may be there twice.
    assert sorted(set(numbers)) == list(range(next_number))
    assert numbers == sorted(numbers)
    assert count - next_number <= 3
