"""Unmodified clients at work on shared queues while brokers come and go, and what they were told.

Publishers publish persistent messages one by one and wait for each confirm; consumers ack what they
get. Whoever loses its broker goes to another one, and a publisher sends again what was not
confirmed. Everything is noted in a `History`, which knows afterwards what went wrong:

- a confirmed message that never came to a consumer is lost;
- a message that came twice is a duplicate, unless its publisher sent it twice because it had lost
  its own broker, or the consumer that had it first lost its own before it acked, or was at a broker
  that was cut off just then, which could tell nobody of the ack;
- messages of a publisher that a consumer got out of order, duplicates aside, are disordered;
- a session that has its queue to itself gets them in order whatever happens, redelivered or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, NackError, UnroutableError

from rhizome.client import Failover, Session, open_session
from rhizome.testing.broker_process import wait_until
from rhizome.testing.cluster_process import ClusterProcess
from tests.process.helpers import call_api

NODE_WORKER = Path(__file__).with_name("node_worker.js")
PAUSE_SECONDS = 0.05
PREFETCH = 20
UNHEARD_SECONDS = 1.0
RECENT_SECONDS = 10.0
UNTIRING = Failover(tries_max=0)
SESSION_BATCH = 10
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
    address: str = ""
    """Of the broker that it came from."""
    when: float = field(default_factory=time.monotonic)


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

    cut_off: list[tuple[str, float, float]] = field(default_factory=list)
    """The address of a broker, and from when until when nobody heard of it."""

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
            if len(times) <= 1 + self.resent.get(body, 0):
                continue
            unexcused = [each for each in times if not each.broken and not self._unheard(each)]
            if len(unexcused) > 1 + self.resent.get(body, 0):
                found.append(f"{body}: {', '.join(self._told(each) for each in times)}")
        return found

    def _told(self, delivery: Delivery) -> str:
        """Who got it where, and how long before the next time that broker was cut off."""
        begins = [begin for address, begin, end in self.cut_off if address == delivery.address]
        later = [begin - delivery.when for begin in begins if begin > delivery.when]
        before = f", {min(later):.1f} s before it was cut off" if later else ""
        clock = time.strftime(
            "%H:%M:%S", time.localtime(time.time() - time.monotonic() + delivery.when)
        )
        again = " again" if delivery.redelivered else ""
        return f"{delivery.consumer} at {delivery.address or 'any'}, {clock}{again}{before}"

    def _unheard(self, delivery: Delivery) -> bool:
        """Whether it came from a broker that was cut off before the ack can have reached others."""
        for address, begin, end in self.cut_off:
            if address == delivery.address and begin - self._slow_s(begin) < delivery.when < end:
                return True
        return False

    def _slow_s(self, when: float) -> float:
        """How long an ack can have been under way at a time: as long as confirms have taken in the
        seconds before."""
        recent = [length for end, length in self.pauses if when - RECENT_SECONDS < end < when]
        return max([UNHEARD_SECONDS, *recent])

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

    def count(self, consumer: str) -> int:
        """How many messages a consumer has got, in all its lives."""
        return sum(each.consumer.split("/")[0] == consumer for each in list(self.deliveries))

    def out_of_turn(self, consumer: str) -> list[str]:
        """What a consumer that has its queue to itself got after something younger. Only an earlier
        life of its own, at a broker that was cut off, can have held a message back; a session has
        one life. To be sent twice is an excuse, too."""
        last: dict[tuple[str, str], int] = {}
        found = []
        for each in self.deliveries:
            publisher, number = each.body.rsplit(" ", 1)
            if each.consumer.split("/")[0] != consumer or self.resent.get(each.body):
                continue
            if each.redelivered and "/" in each.consumer:
                continue
            key = (each.consumer, publisher)
            if int(number) <= last.get(key, -1):
                found.append(f"{each.consumer}: {each.body} after {last[key]}")
            last[key] = max(int(number), last.get(key, -1))
        return found


def address_of(connection: pika.BlockingConnection) -> str:
    parameters = connection._impl.params
    return f"{parameters.host}:{parameters.port}"


class Workers:
    """Publishers and consumers of some queues, each in a thread of its own.

    ``pace_s``: between two publishes, for tests whose brokers need the processor more."""

    def __init__(
        self, cluster: ClusterProcess, queues: list[str], seed: int, pace_s: float = 0.0
    ) -> None:
        self.cluster = cluster
        self.pace_s = pace_s
        self.queues = queues
        self.history = History()
        self.publishing = True
        self.consuming = True
        self._chance = Random(seed)
        self._threads: list[threading.Thread] = []
        self._lives = 0
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._sessions: dict[str, Session] = {}

    def kill(self) -> None:
        """For when a test has failed: what runs in processes of its own must end."""
        for process in self._nodes.values():
            process.kill()

    def declare(self, *more: str) -> None:
        channel, connection = self._channel("")
        for queue in (*self.queues, *more):
            channel.queue_declare(queue, durable=True)
        connection.close()

    def start(self, publishers: int, consumers: int, stay: str = "") -> None:
        """``stay``: a broker that all of them use as long as it lives."""
        for number in range(publishers):
            self._begin(self._publish, f"p{number}", self.queues[number % len(self.queues)], stay)
        for number in range(consumers):
            self._begin(self._consume, f"c{number}", self.queues[number % len(self.queues)], stay)

    def start_node(self, modules: Path, publishers: int, consumers: int) -> None:
        """The same with amqplib; ``modules`` has it."""
        brokers = [f"{each.host}:{each.port}" for each in self.cluster.brokers.values()]
        environment = {**os.environ, "NODE_PATH": str(modules)}
        for role, count in (("publish", publishers), ("consume", consumers)):
            for number in range(count):
                name = f"node-{role[0]}{number}"
                queue = self.queues[number % len(self.queues)]
                order = self._chance.sample(brokers, len(brokers))
                process = subprocess.Popen(
                    ["node", str(NODE_WORKER), role, name, queue, *order],
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
                self._nodes[name] = process
                self._start_thread(self._follow, name, process)

    def start_sessions(self, publishers: int, consumers: int) -> None:
        """The same with sessions of the Rhizome client. They find other brokers and send again by
        themselves, so each message comes once, unless their broker was cut off with the ack."""
        brokers = [each.url for each in self.cluster.brokers.values()]
        for number in range(publishers):
            order = self._chance.sample(brokers, len(brokers))
            queue = self.queues[number % len(self.queues)]
            self._start_thread(self._publish_in_session, f"session-p{number}", queue, order)
        for number in range(consumers):
            order = self._chance.sample(brokers, len(brokers))
            queue = self.queues[number % len(self.queues)]
            self._start_thread(self._consume_in_session, f"session-c{number}", queue, order)

    def start_alone(self, client_queue: str, session_queue: str) -> tuple[str, str]:
        """One publisher and one consumer of a queue of their own, with pika and in a session; the
        names of the consumers. Whoever else reads one of these queues spoils their order."""
        brokers = [each.url for each in self.cluster.brokers.values()]
        self._begin(self._publish, "alone-p", client_queue, "")
        self._begin(self._consume, "alone-c", client_queue, "")
        self._start_thread(self._publish_in_session, "alone-sp", session_queue, brokers)
        self._start_thread(self._consume_in_session, "alone-sc", session_queue, brokers)
        return "alone-c", "alone-sc"

    def _publish_in_session(self, name: str, queue: str, brokers: list[str]) -> None:
        async def work() -> None:
            number = 0
            async with (
                open_session(brokers, failover=UNTIRING) as session,
                session.producer(routing_key=queue) as producer,
            ):
                while self.publishing:
                    bodies = [f"{name} {number + more}" for more in range(SESSION_BATCH)]
                    for body in bodies:
                        await producer.send(body.encode())
                    await producer.flush()
                    self.history.confirmed |= dict.fromkeys(bodies, time.monotonic())
                    number += SESSION_BATCH
                    self.history.progress[name] = number
                    await asyncio.sleep(self.pace_s)

        asyncio.run(work())

    def _consume_in_session(self, name: str, queue: str, brokers: list[str]) -> None:
        async def take() -> None:
            async with (
                open_session(brokers, failover=UNTIRING) as session,
                session.queue(queue, declare=False, prefetch=PREFETCH) as messages,
            ):
                self._sessions[name] = session
                async for message in messages:
                    at = self.cluster.brokers.get(session.broker)
                    address = f"{at.host}:{at.port}" if at is not None else ""
                    delivery = Delivery(
                        message.body.decode(), name, message.redelivered, address=address
                    )
                    self.history.deliveries.append(delivery)
                    await message.ack()

        async def work() -> None:
            taking = asyncio.create_task(take())
            while self.consuming and not taking.done():
                await asyncio.sleep(PAUSE_SECONDS)
            taking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await taking

        asyncio.run(work())

    def _follow(self, name: str, process: subprocess.Popen[bytes]) -> None:
        """Note what a node process tells until it ends."""
        lives: dict[str, list[Delivery]] = {}
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._note(name, json.loads(line), lives)
        code = process.wait()
        if code != 0:
            self.history.errors.append(f"{name} ended with {code}")

    def _note(self, name: str, told: dict[str, Any], lives: dict[str, list[Delivery]]) -> None:
        history = self.history
        if "confirmed" in told:
            history.confirmed[told["confirmed"]] = time.monotonic()
            history.progress[name] = history.progress.get(name, 0) + 1
        elif "resent" in told:
            body = told["resent"]
            history.resent[body] = history.resent.get(body, 0) + 1
        elif "got" in told:
            life = told["life"]
            delivery = Delivery(told["got"], life, told["redelivered"], address=told["at"])
            lives.setdefault(life, []).append(delivery)
            history.deliveries.append(delivery)
        elif "broken" in told:
            for delivery in lives.pop(told["broken"], [])[-2 * PREFETCH :]:
                delivery.broken = True
        else:
            history.errors.append(told["error"])

    def _end_nodes(self, role: str) -> None:
        for name, process in self._nodes.items():
            if name.startswith(f"node-{role}") and process.stdin is not None:
                process.stdin.close()

    def _begin(
        self, work: Callable[[str, str, str], None], name: str, queue: str, stay: str
    ) -> None:
        self._start_thread(work, name, queue, stay)

    def _start_thread(self, work: Callable[..., None], name: str, *rest: object) -> None:
        def guarded() -> None:
            try:
                work(name, *rest)
            except Exception as error:
                self.history.errors.append(f"{name}: {error!r}")

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        self._threads.append(thread)

    def finish(self, seconds_max: float) -> None:
        """Stop publishing, let consumers empty the queues as long as they get something, stop."""
        self.publishing = False
        self._end_nodes("p")
        came = 0
        deadline = time.monotonic() + seconds_max
        while self.history.lost() and time.monotonic() < deadline:
            if len(self.history.deliveries) > came:
                came = len(self.history.deliveries)
                deadline = time.monotonic() + seconds_max
            time.sleep(PAUSE_SECONDS)
        # What might still come twice gets its chance.
        time.sleep(1)
        self.consuming = False
        self._end_nodes("c")
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
        now = self.history.progress

        def stuck() -> list[str]:
            return [name for name, done in before.items() if now[name] < done + count]

        try:
            wait_until(lambda: not stuck(), "all publishers to go on", seconds_max)
        except TimeoutError as error:
            raise AssertionError(f"{error}; stuck: {stuck()}; {self.history.errors}") from None

    def wait_for_deliveries(self, consumers: Iterable[str], seconds_max: float) -> None:
        """Wait until each of these has got something more."""
        for consumer in consumers:
            before = self.history.count(consumer)
            try:
                wait_until(
                    lambda: self.history.count(consumer) > before,  # noqa: B023
                    f"a message for {consumer}",
                    seconds_max,
                )
            except TimeoutError as error:
                raise AssertionError(f"{error}; {self._picture()}; {self.history.errors}") from None

    def _picture(self) -> str:
        """What brokers and sessions say of themselves, to go with a failure."""
        told = [f"{name}: {session.statistics()}" for name, session in self._sessions.items()]
        for name in self.cluster.names():
            broker = self.cluster.brokers[name]
            for what in ("queues", "consumers", "rhizome/cluster"):
                try:
                    told.append(f"{name} {what}: {call_api(broker, 'GET', *what.split('/'))}")
                except (OSError, AssertionError) as error:
                    told.append(f"{name} {what}: {error}")
        return "\n".join(told)

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
                    time.sleep(self.pace_s)
                connection.close()
            except (NackError, UnroutableError):
                raise
            except GONE:
                time.sleep(PAUSE_SECONDS)

    # --- consumers

    def _consume(self, name: str, queue: str, stay: str) -> None:
        while self.consuming:
            channel, connection = self._channel(stay)
            at = address_of(connection)
            self._lives += 1
            life = f"{name}/{self._lives}"
            held: list[Delivery] = []
            try:
                channel.basic_qos(prefetch_count=PREFETCH)
                for method, _, body in channel.consume(queue, inactivity_timeout=0.1):
                    if method is not None:
                        delivery = Delivery(body.decode(), life, method.redelivered, address=at)
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
