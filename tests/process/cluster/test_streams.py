"""Streams of real processes, killed while they are written."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika import exceptions
from pika.adapters.blocking_connection import BlockingChannel

from rhizome.cluster.state.groups_and_placement import STREAMS_FROM
from rhizome.testing.broker_process import BrokerProcess, wait_until
from rhizome.testing.cluster_process import ClusterProcess
from tests.process.helpers import call_api

PATIENCE_SECONDS = 120.0
STREAM = "kills"
ARGUMENTS = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 20_000}


def connect(broker: BrokerProcess, heartbeat: int | None = None) -> pika.BlockingConnection:
    credentials = pika.PlainCredentials(broker.user, broker.password)
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            broker.host, broker.port, credentials=credentials, heartbeat=heartbeat
        )
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


def read_all(
    channel: BlockingChannel, count: int, seconds: float, found: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Add (offset, number) of everything in the stream to what was found."""
    channel.basic_qos(prefetch_count=50)

    def take(_: object, method: object, properties: pika.BasicProperties, body: bytes) -> None:
        offset = int((properties.headers or {})["x-stream-offset"])
        found.append((offset, int(body.rstrip(b"."))))
        channel.basic_ack(method.delivery_tag)  # type: ignore[attr-defined]

    channel.basic_consume(STREAM, take, arguments={"x-stream-offset": "first"})
    deadline = time.monotonic() + seconds
    while len(found) < count and time.monotonic() < deadline:
        channel.connection.process_data_events(0.05)
    return found


@pytest.mark.timeout(600)
def test_what_was_confirmed_is_there_in_order_after_every_kill(own_broker: BrokerProcess) -> None:
    chance = random.Random(7)
    next_number = 0
    for _ in range(3):
        next_number = publish_until_killed(own_broker, next_number, 0.3 + chance.random())
        own_broker.start()
    connection = connect(own_broker)
    channel = connection.channel()
    count = channel.queue_declare(STREAM, passive=True).method.message_count
    found = read_all(channel, count, PATIENCE_SECONDS, [])
    connection.close()
    assert [offset for offset, _ in found] == list(range(count))
    numbers = [number for _, number in found]
    # A number whose confirm was lost with its broker was published again: it may be there twice.
    assert sorted(set(numbers)) == list(range(next_number))
    assert numbers == sorted(numbers)
    assert count - next_number <= 3


class Reader(threading.Thread):
    """Reads a stream at one broker until it has all of a number of messages, or something fails."""

    def __init__(self, broker: BrokerProcess, count: int) -> None:
        super().__init__(daemon=True)
        self.found: list[tuple[int, int]] = []
        self.error = ""
        self._broker = broker
        self._count = count
        self.start()

    def run(self) -> None:
        try:
            connection = connect(self._broker, heartbeat=0)
            self.found = read_all(connection.channel(), self._count, PATIENCE_SECONDS, self.found)
            connection.close()
        except Exception as error:
            self.error = repr(error)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    cluster = ClusterProcess(tmp_path, primaries=3, seed=4)
    cluster.start()
    yield cluster
    cluster.kill()


def home_and_copies(cluster: ClusterProcess, at: str) -> tuple[str, list[str]]:
    for group in cluster.status(at).get("groups", []):
        if group.get("queues") and int(str(group["id"])) >= STREAMS_FROM:
            return str(group["home"]), [str(each) for each in group["in_sync"]]
    return "", []


@pytest.mark.timeout(600)
def test_clients_of_surviving_brokers_do_not_notice_that_the_home_of_a_stream_dies(
    cluster: ClusterProcess,
) -> None:
    """They see a pause, and no error, no gap and no repetition."""
    connection = connect(cluster.brokers["b2"], heartbeat=0)
    channel = connection.channel()
    channel.queue_declare(STREAM, durable=True, arguments={**ARGUMENTS, "x-group": "b1"})
    wait_until(
        lambda: home_and_copies(cluster, "b2")[0] == "b1" and home_and_copies(cluster, "b2")[1],
        "a copy of the stream",
        PATIENCE_SECONDS,
    )
    readers = [Reader(cluster.brokers[name], 200) for name in ("b2", "b3")]
    channel.confirm_delivery()
    for number in range(200):
        if number == 80:
            wait_until(lambda: all(each.found for each in readers), "readers", PATIENCE_SECONDS)
            cluster.brokers["b1"].kill()
        # Returns when it is confirmed, raises when it is not.
        channel.basic_publish("", STREAM, b"%d" % number + b"." * 200)
    connection.close()
    for reader in readers:
        reader.join(PATIENCE_SECONDS)
        assert reader.error == ""
        assert reader.found == [(number, number) for number in range(200)]
    assert home_and_copies(cluster, "b2")[0] in ("b2", "b3")


def readers(broker: BrokerProcess) -> dict[str, tuple[int, int]]:
    """The next offset and the lag of each named reader, as any broker tells them."""
    rows = call_api(broker, "GET", "rhizome", "stream-readers")
    return {str(row["name"]): (int(row["next"]), int(row["lag"])) for row in rows}


def tell(broker: BrokerProcess, name: str, after: int) -> None:
    """Say how far a reader is, with the question where the stream begins and ends."""
    connection = connect(broker)
    channel = connection.channel()
    channel.basic_qos(prefetch_count=1)
    told: dict[str, Any] = {
        "x-stream-chunks": True,
        "x-stream-reader": name,
        "x-stream-reader-next": after,
        "x-stream-reader-keep": True,
    }
    method, _, _ = next(channel.consume(STREAM, arguments=told))
    channel.basic_ack(method.delivery_tag)
    channel.cancel()
    connection.close()


@pytest.mark.timeout(600)
def test_how_far_readers_are_is_known_when_the_home_of_their_stream_has_died(
    cluster: ClusterProcess,
) -> None:
    """A position that was written is there after the takeover; none is ever ahead."""
    asked = cluster.brokers["b2"]
    connection = connect(asked, heartbeat=0)
    channel = connection.channel()
    channel.queue_declare(STREAM, durable=True, arguments={**ARGUMENTS, "x-group": "b1"})
    wait_until(
        lambda: home_and_copies(cluster, "b2")[0] == "b1" and home_and_copies(cluster, "b2")[1],
        "a copy of the stream",
        PATIENCE_SECONDS,
    )
    channel.confirm_delivery()
    for number in range(20):
        channel.basic_publish("", STREAM, b"%d" % number)
    size = call_api(asked, "GET", "rhizome", "streams", "/", STREAM)["bytes"]
    tell(asked, "archive", 15)
    assert readers(asked) == {"archive": (15, 5)}
    wait_until(
        lambda: call_api(asked, "GET", "rhizome", "streams", "/", STREAM)["bytes"] > size,
        "the note in the log",
        PATIENCE_SECONDS,
    )
    # A confirm says that the copies have all that came before it.
    channel.basic_publish("", STREAM, b"20")
    connection.close()
    cluster.brokers["b1"].kill()
    wait_until(
        lambda: home_and_copies(cluster, "b2")[0] in ("b2", "b3"), "a new home", PATIENCE_SECONDS
    )
    wait_until(lambda: readers(asked) == {"archive": (15, 6)}, "the position", PATIENCE_SECONDS)
