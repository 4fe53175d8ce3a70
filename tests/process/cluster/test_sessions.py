"""Sessions of the client library on real brokers that are killed under them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rhizome.client import Failover, Message, Session, connect, open_session
from rhizome.testing.broker_process import BrokerProcess
from rhizome.testing.cluster_process import ClusterProcess
from tests.process.cluster.test_drain import wait_for_copies
from tests.process.helpers import call_api, run

SECONDS_MAX = 120.0
TROUBLE_EVERY = 1000
TROUBLE_EVERY_TAKEN = 150
UNTIRING = Failover(tries_max=0)

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "broker")
    process.start()
    yield process
    process.kill()


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    cluster = ClusterProcess(tmp_path_factory.mktemp("sessions"), primaries=3, secondaries=1)
    cluster.start()
    yield cluster
    cluster.kill()


@pytest.fixture
def cluster(started: ClusterProcess) -> ClusterProcess:
    started.make_whole()
    return started


async def publish_through(
    session: Session, queue: str, count: int, trouble: Callable[[], None]
) -> None:
    """Publish numbers, while now and then there is trouble."""
    troubles = []
    async with session.producer(routing_key=queue, window=100) as producer:
        for number in range(count):
            await producer.send(b"%d" % number)
            if number % TROUBLE_EVERY == TROUBLE_EVERY - 1:
                troubles.append(asyncio.create_task(asyncio.to_thread(trouble)))
        await asyncio.gather(*troubles)
        await producer.flush()


async def drained(url: str, queue: str) -> list[int]:
    """What is ready in a queue."""
    found: list[int] = []
    async with connect(url) as connection, connection.channel() as channel:
        while (message := await channel.get(queue, no_ack=True)) is not None:
            found.append(int(message.body))
    return found


def test_a_broker_that_crashes_and_comes_back_gets_each_message_once(
    broker: BrokerProcess,
) -> None:
    one_at_a_time = threading.Lock()

    def trouble() -> None:
        # A session may be back, and the next trouble due, before the start is seen to be complete.
        with one_at_a_time:
            broker.kill()
            broker.start()

    async def scenario() -> list[int]:
        async with open_session(broker.url, failover=UNTIRING) as session:
            async with session.channel() as channel:
                await channel.declare_queue("numbers", durable=True)
            await publish_through(session, "numbers", 3000, trouble)
            assert session.statistics().failovers >= 2
        return await drained(broker.url, "numbers")

    assert run(scenario(), SECONDS_MAX) == list(range(3000))


class Line:
    """A line to a broker whose answers may get lost before it breaks."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.port = 0
        self.mute = False
        self._broker = broker
        self._writers: list[asyncio.StreamWriter] = []

    async def open(self) -> asyncio.Server:
        server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    def cut(self) -> None:
        self.mute = False
        for writer in self._writers:
            writer.close()
        self._writers = []

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(self._broker.host, self._broker.port)
        self._writers += [writer, far_writer]
        await asyncio.gather(self._pass(reader, far_writer), self._hear(far_reader, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
        writer.close()

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                if not self.mute:
                    writer.write(data)
        writer.close()


async def stored(url: str, queue: str, count: int) -> None:
    """Wait until so many messages are in a queue."""
    async with connect(url) as connection, connection.channel() as channel:
        while (await channel.declare_queue(queue, passive=True)).message_count < count:
            await asyncio.sleep(0.01)


def test_what_was_taken_and_not_confirmed_is_taken_once(broker: BrokerProcess) -> None:
    """The confirms of a window are lost with the line, three times over."""

    async def scenario() -> list[int]:
        line = Line(broker)
        async with await line.open():
            uri = f"amqp://guest:guest@127.0.0.1:{line.port}/"
            async with open_session(uri, failover=UNTIRING) as session:
                async with session.channel() as channel:
                    await channel.declare_queue("once", durable=True)
                async with session.producer(routing_key="once") as producer:
                    for start in (0, 100, 200):
                        line.mute = True
                        for number in range(start, start + 100):
                            await producer.send(b"%d" % number)
                        await stored(broker.url, "once", start + 100)
                        line.cut()
                        await producer.flush()
                assert session.statistics().failovers == 3
        return await drained(broker.url, "once")

    assert run(scenario(), SECONDS_MAX) == list(range(300))


def test_a_session_goes_on_at_another_broker(cluster: ClusterProcess) -> None:
    """The broker of the application is killed, again and again; the home of the queue isn't, nor
    another primary, so that more than half are left."""
    kills: list[str] = []

    async def scenario() -> tuple[list[int], str]:
        async with open_session(cluster.brokers["s1"].url, failover=UNTIRING) as session:

            def trouble() -> None:
                if session.broker not in ("b1", "b3"):
                    kills.append(session.broker)
                    cluster.brokers[session.broker].kill()

            async with session.channel() as channel:
                arguments: dict[str, object] = {"x-group": "b1"}
                await channel.declare_queue("moving", durable=True, arguments=arguments)
            await publish_through(session, "moving", 3000, trouble)
            return await drained(cluster.brokers["b1"].url, "moving"), session.broker

    found, broker = run(scenario(), SECONDS_MAX)
    assert found == list(range(3000))
    assert kills
    assert broker not in kills


def test_the_home_is_killed_and_each_message_is_taken_once(cluster: ClusterProcess) -> None:
    """The broker that the application is on is the home of its queue, too. It takes a window of
    messages whose confirms get lost, then it is killed: its standby knows what it took."""

    async def scenario() -> tuple[list[int], str]:
        home = cluster.brokers["b2"]
        line = Line(home)
        async with await line.open():
            uri = f"amqp://guest:guest@127.0.0.1:{line.port}/"
            async with open_session(uri, failover=UNTIRING) as session:
                async with session.channel() as channel:
                    arguments: dict[str, object] = {"x-group": "b2"}
                    await channel.declare_queue("home", durable=True, arguments=arguments)
                async with session.producer(routing_key="home") as producer:
                    for number in range(100):
                        await producer.send(b"%d" % number)
                    await producer.flush()
                    line.mute = True
                    for number in range(100, 200):
                        await producer.send(b"%d" % number)
                    await stored(home.url, "home", 200)
                    await asyncio.to_thread(home.kill)
                    line.cut()
                    for number in range(200, 300):
                        await producer.send(b"%d" % number)
                    await producer.flush()
                    broker = session.broker
            return await drained(cluster.brokers[broker].url, "home"), broker

    found, broker = run(scenario(), SECONDS_MAX)
    assert broker != "b2"
    assert found == list(range(300))


async def consume_through(
    cluster: ClusterProcess, at: str, queue: str, count: int, trouble: Callable[[Session], None]
) -> tuple[list[int], set[int]]:
    """Take numbers, slowly settled, while there is trouble; all of them, and those marked as
    redelivered."""
    taken: list[int] = []
    again: set[int] = set()
    held: deque[Message] = deque()
    async with open_session(cluster.brokers["b1"].url, failover=UNTIRING) as sender:
        async with sender.channel() as channel:
            arguments: dict[str, object] = {"x-group": "b1"}
            await channel.declare_queue(queue, durable=True, arguments=arguments)
        async with sender.producer(routing_key=queue) as producer:
            for number in range(count):
                await producer.send(b"%d" % number)
    # Without a copy a queue would wait for the broker that is killed.
    await asyncio.to_thread(wait_for_copies, cluster, "b1")
    async with (
        open_session(cluster.brokers[at].url, failover=UNTIRING) as session,
        session.queue(queue, declare=False, prefetch=40) as messages,
    ):
        async for message in messages:
            taken.append(int(message.body))
            if message.redelivered:
                again.add(int(message.body))
            held.append(message)
            if len(held) > 20:
                await held.popleft().ack()
            if len(taken) % TROUBLE_EVERY_TAKEN == 0 and len(taken) < count:
                await asyncio.to_thread(trouble, session)
            if len(set(taken)) == count:
                break
        for message in held:
            await message.ack()
    return taken, again


@pytest.mark.parametrize("at", ["s1", "b1"])
def test_consumers_go_on_with_what_they_hold(cluster: ClusterProcess, at: str) -> None:
    """The broker of the application is killed; in one case it is the home of the queue, too."""
    killed: list[str] = []

    def trouble(session: Session) -> None:
        if not killed:
            killed.append(session.broker)
            cluster.brokers[session.broker].kill()

    name = f"taken-{at}"
    taken, _ = run(consume_through(cluster, at, name, 400, trouble), SECONDS_MAX)
    assert killed == [at]
    # What was on its way to the application when its broker died may be marked as redelivered.
    assert sorted(taken) == list(range(400)), "each number once"
    survivor = next(name for name in ("b1", "b2", "b3") if name not in killed)
    assert run(drained(cluster.brokers[survivor].url, name)) == [], "all of them were acked"


def test_consumers_go_on_when_the_home_moves(cluster: ClusterProcess) -> None:
    """The home of the queue is killed under a consumer that is on another broker."""

    def trouble(session: Session) -> None:
        if cluster.brokers["b1"].is_running():
            cluster.brokers["b1"].kill()

    taken, again = run(consume_through(cluster, "s1", "moved", 400, trouble), SECONDS_MAX)
    assert sorted(taken) == list(range(400))
    assert not again


def order(cluster: ClusterProcess, name: str, what: str, **details: object) -> None:
    """Have a broker drained, or not any more; another one is asked for it."""
    other = cluster.brokers["b2"]
    target = ("rhizome", "brokers", name, what)
    shown = call_api(other, "POST", *target, preview=True, **details)
    call_api(other, "POST", *target, basis=shown.get("basis", ""), **details)


def test_a_drained_broker_asks_sessions_to_go(cluster: ClusterProcess) -> None:
    async def scenario() -> str:
        async with open_session(cluster.brokers["s1"].url, failover=UNTIRING) as session:
            assert session.broker == "s1"
            assert set(session.failover_map.brokers) >= {"b1", "b2", "b3", "s1"}
            await asyncio.to_thread(order, cluster, "s1", "drain", grace_ms=1000)
            while session.broker == "s1" or session.state != "open":
                await asyncio.sleep(0.05)
            return session.broker

    try:
        assert run(scenario(), SECONDS_MAX) in ("b1", "b2", "b3")
    finally:
        order(cluster, "s1", "undrain")


class Traffic:
    """Numbers that go through a queue and come back in one session, until it is enough.

    Invariant: from HELD messages on, so many are unacked at every moment; ``total`` is known before
    the last number is sent.
    """

    PREFETCH = 40
    HELD = 20

    def __init__(self, session: Session, queue: str) -> None:
        self._session = session
        self._queue = queue
        self._enough = False
        self.total = 0
        self.taken: list[int] = []
        self.again: list[int] = []

    async def send(self) -> None:
        async with self._session.producer(routing_key=self._queue, window=100) as producer:
            for number in itertools.count():
                if self._enough:
                    self.total = number + 1
                await producer.send(b"%d" % number)
                if self.total:
                    return
                await asyncio.sleep(0.001)

    async def take(self) -> None:
        held: deque[Message] = deque()
        consuming = self._session.queue(self._queue, declare=False, prefetch=self.PREFETCH)
        async with consuming as messages:
            async for message in messages:
                self.taken.append(int(message.body))
                if message.redelivered:
                    self.again.append(int(message.body))
                held.append(message)
                if len(held) > self.HELD:
                    await held.popleft().ack()
                if len(set(self.taken)) == self.total:
                    break
            for message in held:
                await message.ack()

    def finish(self) -> None:
        self._enough = True

    async def until_taken(self, more: int) -> None:
        wanted = len(self.taken) + more
        while len(self.taken) < wanted:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("at", ["s1", "b1"])
def test_a_busy_session_leaves_a_drained_broker_and_takes_each_message_once(
    cluster: ClusterProcess, at: str
) -> None:
    """It publishes, and holds messages, at every moment; in one case the broker that is drained is
    the home of its queue, too (J15)."""
    queue = f"busy-{at}"

    async def scenario() -> tuple[Traffic, str]:
        async with open_session(cluster.brokers[at].url, failover=UNTIRING) as session:
            async with session.channel() as channel:
                arguments: dict[str, object] = {"x-group": "b1"}
                await channel.declare_queue(queue, durable=True, arguments=arguments)
            traffic = Traffic(session, queue)
            async with asyncio.TaskGroup() as group:
                group.create_task(traffic.send())
                group.create_task(traffic.take())
                await traffic.until_taken(200)
                assert session.broker == at
                await asyncio.to_thread(order, cluster, at, "drain", grace_ms=1000)
                while session.broker == at or session.state != "open":
                    await asyncio.sleep(0.01)
                await traffic.until_taken(200)
                traffic.finish()
            return traffic, session.broker

    try:
        traffic, broker = run(scenario(), SECONDS_MAX)
    finally:
        order(cluster, at, "undrain")
    assert broker != at
    assert sorted(traffic.taken) == list(range(traffic.total)), "each number once"
    assert not traffic.again, "none redelivered, not even what was on its way when it left"
    assert run(drained(cluster.brokers["b2"].url, queue)) == [], "all of them were acked"
