"""Unmodified clients at work on shared queues while brokers come and go, and what they were told.

Publishers publish persistent messages one by one and wait for each confirm; consumers ack what they
get. Whoever loses its broker goes to another one, and a publisher sends again what was not
confirmed. Everything is noted in a `History`, which knows afterwards what went wrong:

- a confirmed message that never came to a consumer is lost;
- a message that came twice is a duplicate, unless its publisher sent it twice because it had lost
  its own broker, or the consumer that had it first lost its own before it acked;
- messages of a publisher that a consumer got out of order, duplicates aside, are disordered.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, NackError, UnroutableError

from rhizome.testing.clusterprocess import ClusterProcess
from rhizome.testing.processes import wait_until

PAUSE_SECONDS = 0.05
PREFETCH = 20
GONE = (AMQPError, OSError)


@dataclass
class Delivery:
    """One message as one connection of a consumer got it."""

    body: str
    consumer: str
    redelivered: bool
    acked: bool = False
    broken: bool = False
    """The connection ended before the ack was sent, or with it."""


@dataclass
class History:
    """``confirmed``: when each message was. ``sent``: how often, if more than once."""

    confirmed: dict[str, float] = field(default_factory=dict)
    resent: dict[str, int] = field(default_factory=dict)
    deliveries: list[Delivery] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    pauses: list[tuple[float, float]] = field(default_factory=list)
    """When publishes were confirmed that had waited long, and for how long."""

    progress: dict[str, int] = field(default_factory=dict)
    """How many messages of each publisher are confirmed."""

    def lost(self) -> list[str]:
        # Others go on adding meanwhile.
        came = {each.body for each in list(self.deliveries)}
        return sorted(body for body in list(self.confirmed) if body not in came)

    def duplicates(self) -> list[str]:
        seen: dict[str, list[Delivery]] = {}
        for each in self.deliveries:
            seen.setdefault(each.body, []).append(each)
        found = []
        for body, times in seen.items():
            unexcused = [each for each in times if not each.broken]
            if len(unexcused) > 1 + self.resent.get(body, 0):
                found.append(f"{body}: {[each.consumer for each in times]}")
        return found

    def disordered(self) -> list[str]:
        last: dict[tuple[str, str], int] = {}
        found = []
        for each in self.deliveries:
            publisher, number = each.body.rsplit(" ", 1)
            if each.redelivered or self.resent.get(each.body):
                continue
            key = (each.consumer, publisher)
            if int(number) < last.get(key, -1):
                found.append(f"{each.consumer}: {each.body} after {last[key]}")
            last[key] = max(int(number), last.get(key, -1))
        return found


class Workers:
    """Publishers and consumers of some queues, each in a thread of its own."""

    def __init__(self, cluster: ClusterProcess, queues: list[str], seed: int) -> None:
        self.cluster = cluster
        self.queues = queues
        self.history = History()
        self.publishing = True
        self.consuming = True
        self._chance = Random(seed)
        self._threads: list[threading.Thread] = []
        self._lives = 0

    def declare(self) -> None:
        channel, connection = self._channel("")
        for queue in self.queues:
            channel.queue_declare(queue, durable=True)
        connection.close()

    def start(self, publishers: int, consumers: int, stay: str = "") -> None:
        """``stay``: a broker that all of them use as long as it lives."""
        for number in range(publishers):
            self._begin(self._publish, f"p{number}", self.queues[number % len(self.queues)], stay)
        for number in range(consumers):
            self._begin(self._consume, f"c{number}", self.queues[number % len(self.queues)], stay)

    def _begin(
        self, work: Callable[[str, str, str], None], name: str, queue: str, stay: str
    ) -> None:
        thread = threading.Thread(target=self._guarded, args=(work, name, queue, stay), daemon=True)
        thread.start()
        self._threads.append(thread)

    def _guarded(
        self, work: Callable[[str, str, str], None], name: str, queue: str, stay: str
    ) -> None:
        try:
            work(name, queue, stay)
        except Exception as error:
            self.history.errors.append(f"{name}: {error!r}")

    def finish(self, seconds_max: float) -> None:
        """Stop publishing, let consumers empty the queues, and stop."""
        self.publishing = False
        deadline = time.monotonic() + seconds_max
        while self.history.lost() and time.monotonic() < deadline:
            time.sleep(PAUSE_SECONDS)
        # What might still come twice gets its chance.
        time.sleep(1)
        self.consuming = False
        for thread in self._threads:
            thread.join(seconds_max)
            assert not thread.is_alive(), "a client does not come to an end"

    def _channel(self, stay: str) -> tuple[BlockingChannel, pika.BlockingConnection]:
        while True:
            names = self.cluster.names()
            at = stay if stay in names else self._chance.choice(names)
            broker = self.cluster.brokers[at]
            try:
                connection = pika.BlockingConnection(
                    pika.ConnectionParameters(
                        broker.host,
                        broker.port,
                        socket_timeout=5,
                        blocked_connection_timeout=60,
                        heartbeat=5,
                    )
                )
                return connection.channel(), connection
            except GONE:
                time.sleep(PAUSE_SECONDS)

    def wait_for_progress(self, count: int, seconds_max: float) -> None:
        """Wait until every publisher has had so many more messages confirmed."""
        before = self.history.progress.copy()

        def went_on() -> bool:
            now = self.history.progress
            return all(now[name] >= done + count for name, done in before.items())

        wait_until(went_on, "all publishers to go on", seconds_max)

    # --- publishers

    def _publish(self, name: str, queue: str, stay: str) -> None:
        number = 0
        tried = False
        while self.publishing:
            channel, connection = self._channel(stay)
            try:
                channel.confirm_delivery()
                while self.publishing:
                    body = f"{name} {number}"
                    if tried:
                        self.history.resent[body] = self.history.resent.get(body, 0) + 1
                    tried = True
                    begun = time.monotonic()
                    channel.basic_publish(
                        "", queue, body.encode(), pika.BasicProperties(delivery_mode=2)
                    )
                    now = time.monotonic()
                    if now - begun > 0.2:
                        self.history.pauses.append((now, now - begun))
                    self.history.confirmed[body] = now
                    self.history.progress[name] = number + 1
                    number += 1
                    tried = False
                connection.close()
            except (NackError, UnroutableError):
                raise
            except GONE:
                time.sleep(PAUSE_SECONDS)

    # --- consumers

    def _consume(self, name: str, queue: str, stay: str) -> None:
        while self.consuming:
            channel, connection = self._channel(stay)
            self._lives += 1
            life = f"{name}/{self._lives}"
            held: list[Delivery] = []
            try:
                channel.basic_qos(prefetch_count=PREFETCH)
                for method, _, body in channel.consume(queue, inactivity_timeout=0.1):
                    if method is not None:
                        delivery = Delivery(body.decode(), life, method.redelivered)
                        held.append(delivery)
                        self.history.deliveries.append(delivery)
                        channel.basic_ack(method.delivery_tag)
                        connection.process_data_events(0)
                        delivery.acked = True
                    if not self.consuming:
                        break
                connection.close()
            except GONE:
                # What was acked last may not have got out of this process, or of its broker.
                for delivery in held[-2 * PREFETCH :]:
                    delivery.broken = True
                time.sleep(PAUSE_SECONDS)
