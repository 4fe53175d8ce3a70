"""Sessions of the client library on real brokers that are killed under them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rhizome.client import Failover, Session, connect, open_session
from rhizome.testing.clusterprocess import ClusterProcess
from rhizome.testing.processes import BrokerProcess

from .kit import call_api, run

SECONDS_MAX = 120.0
TROUBLE_EVERY = 1000
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
    def trouble() -> None:
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
    """The broker of the application is killed, again and again; the home of the queue isn't."""
    kills: list[str] = []

    async def scenario() -> tuple[list[int], str]:
        async with open_session(cluster.brokers["s1"].url, failover=UNTIRING) as session:

            def trouble() -> None:
                if session.broker != "b1":
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


def test_consumers_go_on_at_another_broker(cluster: ClusterProcess) -> None:
    async def scenario() -> tuple[list[int], set[int], str]:
        taken: list[int] = []
        again: set[int] = set()
        async with (
            open_session(cluster.brokers["b1"].url, failover=UNTIRING) as sender,
            open_session(cluster.brokers["s1"].url, failover=UNTIRING) as session,
        ):
            async with sender.channel() as channel:
                arguments: dict[str, object] = {"x-group": "b1"}
                await channel.declare_queue("taken", durable=True, arguments=arguments)
            async with sender.producer(routing_key="taken") as producer:
                for number in range(500):
                    await producer.send(b"%d" % number)
            async with session.queue("taken", declare=False, prefetch=20) as queue:
                async for message in queue:
                    number = int(message.body)
                    if message.redelivered:
                        again.add(number)
                    taken.append(number)
                    await message.ack()
                    if len(taken) == 200:
                        cluster.brokers["s1"].kill()
                    if len(set(taken)) == 500:
                        break
            return taken, again, session.broker

    taken, again, broker = run(scenario(), SECONDS_MAX)
    assert broker != "s1"
    assert set(taken) == set(range(500))
    twice = {number for number, times in Counter(taken).items() if times > 1}
    assert twice <= again, "what comes again is marked"
    assert len(twice) <= 20


def order(cluster: ClusterProcess, what: str, **details: object) -> None:
    """Have s1 drained, or not any more."""
    target = ("rhizome", "brokers", "s1", what)
    shown = call_api(cluster.brokers["b1"], "POST", *target, preview=True, **details)
    call_api(cluster.brokers["b1"], "POST", *target, basis=shown.get("basis", ""), **details)


def test_a_drained_broker_asks_sessions_to_go(cluster: ClusterProcess) -> None:
    async def scenario() -> str:
        async with open_session(cluster.brokers["s1"].url, failover=UNTIRING) as session:
            assert session.broker == "s1"
            assert set(session.failover_map.brokers) >= {"b1", "b2", "b3", "s1"}
            await asyncio.to_thread(order, cluster, "drain", grace_ms=1000)
            while session.broker == "s1" or session.state != "open":
                await asyncio.sleep(0.05)
            return session.broker

    try:
        assert run(scenario(), SECONDS_MAX) in ("b1", "b2", "b3")
    finally:
        order(cluster, "undrain")
