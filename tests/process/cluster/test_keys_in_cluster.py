"""The home of a keyed queue is killed: keys keep their order, each with one consumer at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pika.exceptions import AMQPError

from rhizome.testing.cluster_process import ClusterProcess
from tests.process.cluster.test_takeover import groups, wait_for_copies

KEYS = 5
MESSAGES = 200
SECONDS_MAX = 180.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    cluster = ClusterProcess(tmp_path, primaries=3, seed=4)
    cluster.start()
    yield cluster
    cluster.kill()


class Worker:
    """A consumer at one broker. ``held`` is what it has and has not acked: tag, key and number."""

    def __init__(self, cluster: ClusterProcess, at: str, queue: str, prefetch: int) -> None:
        self.connection = pika.BlockingConnection(pika.URLParameters(cluster.brokers[at].url))
        self.channel = self.connection.channel()
        self.channel.basic_qos(prefetch_count=prefetch)
        self.held: list[tuple[int, str, int]] = []
        self.channel.basic_consume(queue, self._got)

    def _got(self, _channel: object, method: object, properties: object, body: bytes) -> None:
        key, number = body.decode().split(":")
        self.held.append((method.delivery_tag, key, int(number)))  # type: ignore[attr-defined]

    def hear(self) -> None:
        self.connection.process_data_events(0.01)

    def hear_the_end(self) -> None:
        """Until its dead broker's socket is found closed."""
        while True:
            self.hear()

    def ack_first(self) -> tuple[str, int] | None:
        if not self.held:
            return None
        tag, key, number = self.held.pop(0)
        self.channel.basic_ack(tag)
        return key, number


def publish(cluster: ClusterProcess, at: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(cluster.brokers[at].url))
    channel = connection.channel()
    channel.confirm_delivery()
    for number in range(MESSAGES):
        key = f"k{number % KEYS}"
        properties = pika.BasicProperties(delivery_mode=2, headers={"customer": key})
        channel.basic_publish("", "keyed", f"{key}:{number // KEYS}".encode(), properties)
    connection.close()


def test_keys_stay_in_order_when_their_home_is_killed(cluster: ClusterProcess) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(cluster.brokers["b1"].url))
    arguments = {"x-queue-type": "quorum", "x-group-key": "customer"}
    connection.channel().queue_declare("keyed", durable=True, arguments=arguments)
    connection.close()
    wait_for_copies(cluster)
    home = next(str(each["home"]) for each in groups(cluster, "b1") if each["queues"])
    safe = [name for name in cluster.brokers if name != home]
    doomed = Worker(cluster, home, "keyed", 2)
    publish(cluster, safe[0])
    deadline = time.monotonic() + SECONDS_MAX
    while len(doomed.held) < 2:
        assert time.monotonic() < deadline
        doomed.hear()
    lost = {key for _, key, _ in doomed.held}
    workers = [Worker(cluster, at, "keyed", 3) for at in safe]
    done: dict[str, list[int]] = {f"k{number}": [] for number in range(KEYS)}
    killed = False
    while sum(len(each) for each in done.values()) < MESSAGES:
        assert time.monotonic() < deadline, done
        for worker in workers:
            worker.hear()
            keys = {key for _, key, _ in worker.held}
            others = {key for other in workers if other is not worker for _, key, _ in other.held}
            assert not keys & others, "a key has two consumers"
            assert killed or not keys & lost, "a key that another consumer holds"
            if (acked := worker.ack_first()) is not None:
                done[acked[0]].append(acked[1])
        if not killed and sum(len(each) for each in done.values()) > MESSAGES // 4:
            cluster.brokers[home].kill()
            killed = True
    assert killed
    assert all(each == list(range(MESSAGES // KEYS)) for each in done.values()), done
    for worker in workers:
        worker.connection.close()
    with pytest.raises(AMQPError):
        doomed.hear_the_end()
