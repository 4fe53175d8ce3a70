"""A cluster of real processes: three primaries and a secondary, killed, stopped and paused.

The tests share one cluster, which each of them finds whole. Times are printed; what is asserted of
them leaves room for a slow machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from rhizome.client import Channel, Message, Properties, connect
from rhizome.errors import PreconditionFailed
from rhizome.testing.broker_process import BrokerProcess, wait_until
from rhizome.testing.cluster_process import ClusterProcess
from tests.process.helpers import PERSISTENT, TRANSIENT, run, take

STANDSTILLS = 4
STANDSTILL_SECONDS = 1.2
PRIMARIES = ("b1", "b2", "b3")
ANSWER_SECONDS_MAX = 120.0
RESTART_SECONDS_MAX = 400.0

# A busy machine takes most of a minute to start brokers, which is none of a test's business.
pytestmark = pytest.mark.timeout(600)

Unique = Callable[[str], str]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    cluster = ClusterProcess(tmp_path_factory.mktemp("cluster"), primaries=3, secondaries=1)
    cluster.start()
    yield cluster
    cluster.make_whole()
    assert cluster.stop() == [0] * 4, cluster.printed()


@pytest.fixture
def cluster(started: ClusterProcess) -> ClusterProcess:
    started.make_whole()
    return started


@contextlib.asynccontextmanager
async def channel_to(
    cluster: ClusterProcess, name: str, *, confirms: bool = True
) -> AsyncIterator[Channel]:
    """A channel on a connection of its own to that broker."""
    async with (
        connect(cluster.brokers[name].url, name=f"test at {name}") as connection,
        connection.channel(confirms=confirms, prefetch=1000) as channel,
    ):
        yield channel


def at_home(name: str) -> dict[str, object]:
    """Arguments of a queue that has its home at that broker."""
    return {"x-group": name}


def others(root: str) -> list[str]:
    return [name for name in PRIMARIES if name != root]


async def settled(messages: list[Message]) -> list[bytes]:
    for message in messages:
        await message.ack()
    return [message.body for message in messages]


class Stream:
    """Publishes numbers to an exchange, one after another, until it is told to stop."""

    def __init__(self, channel: Channel, exchange: str) -> None:
        self._channel = channel
        self._exchange = exchange
        self._stopping = False
        self.sent = 0

    def stop(self) -> None:
        self._stopping = True

    async def run(self) -> None:
        for number in itertools.count():
            if self._stopping:
                return
            await self._channel.publish(b"%d" % number, exchange=self._exchange)
            self.sent = number + 1
            await asyncio.sleep(0.005)


async def numbers(channel: Channel, queue: str, into: list[int]) -> None:
    """Take numbers out of a queue until cancelled."""
    async with channel.consume(queue, no_ack=True) as consumer:
        async for message in consumer:
            into.append(int(message.body))


# --- one virtual broker


def test_each_step_may_go_through_another_broker(cluster: ClusterProcess, unique: Unique) -> None:
    async def scenario(exchange: str, queue: str) -> None:
        async with (
            channel_to(cluster, "b1") as one,
            channel_to(cluster, "b2") as two,
            channel_to(cluster, "b3") as three,
            channel_to(cluster, "s1") as four,
        ):
            await one.declare_exchange(exchange, "topic", durable=True)
            await four.declare_queue(queue, durable=True, arguments=at_home("b2"))
            await three.bind_queue(queue, exchange, "a.*")
            for number in range(30):
                publisher = (one, two, three, four)[number % 4]
                await publisher.publish(
                    b"%d" % number, exchange=exchange, routing_key="a.b", mandatory=True
                )
            assert (await three.declare_queue(queue, passive=True)).message_count == 30
            bodies = []
            for number in range(20):
                message = await (one, two, three, four)[number % 4].get(queue)
                assert message is not None
                await message.ack()
                bodies.append(message.body)
            bodies += await settled(await take(four, queue, 10))
            assert bodies == [b"%d" % number for number in range(30)]
            assert await three.delete_queue(queue) == 0

    run(scenario(unique("exchange"), unique("queue")))


def test_private_queues_hear_every_broker_once(cluster: ClusterProcess, unique: Unique) -> None:
    async def scenario(exchange: str) -> None:
        async with contextlib.AsyncExitStack() as stack:
            channels = {
                name: await stack.enter_async_context(channel_to(cluster, name))
                for name in cluster.brokers
            }
            await channels["b1"].declare_exchange(exchange, "fanout")
            queues = {}
            for name, channel in channels.items():
                queues[name] = (await channel.declare_queue("", exclusive=True)).name
                await channel.bind_queue(queues[name], exchange)
            for name, channel in channels.items():
                for number in range(10):
                    await channel.publish(f"{name} {number}".encode(), exchange=exchange)
            for name, channel in channels.items():
                bodies = await settled(await take(channel, queues[name], 40))
                for origin in channels:
                    heard = [body for body in bodies if body.startswith(origin.encode())]
                    assert heard == [f"{origin} {number}".encode() for number in range(10)]
                assert await channel.get(queues[name]) is None

    run(scenario(unique("exchange")))


@pytest.mark.parametrize(("asker", "answerer"), [("s1", "b2"), ("b3", "s1"), ("b1", "b1")])
def test_direct_reply_to_works_between_any_two_brokers(
    cluster: ClusterProcess, unique: Unique, asker: str, answerer: str
) -> None:
    async def scenario(service: str) -> None:
        async with channel_to(cluster, asker) as client, channel_to(cluster, answerer) as server:
            await server.declare_queue(service, exclusive=True)
            replies = client.consume("amq.rabbitmq.reply-to", no_ack=True)
            await replies.subscribe()
            properties = Properties(reply_to="amq.rabbitmq.reply-to", correlation_id="7")
            await client.publish(b"question", routing_key=service, properties=properties)
            (request,) = await take(server, service, 1)
            await server.publish(
                b"answer",
                routing_key=request.properties.reply_to or "",
                properties=Properties(correlation_id=request.properties.correlation_id),
                mandatory=True,
            )
            (reply,) = await replies.batch(1)
            assert (reply.body, reply.properties.correlation_id) == (b"answer", "7")

    run(scenario(unique("service")))


# --- what resource managers ask


def asked(broker: BrokerProcess, probe: str) -> tuple[int, str]:
    """The status of a health probe, and the reason if it isn't 200."""
    connection = HTTPConnection(broker.host, broker.http_port, timeout=ANSWER_SECONDS_MAX)
    login = b64encode(f"{broker.user}:{broker.password}".encode()).decode()
    connection.request("GET", f"/api/health/{probe}", headers={"Authorization": f"Basic {login}"})
    answer = connection.getresponse()
    document = json.load(answer)
    connection.close()
    return answer.status, document.get("reason", "")


def test_one_broker_says_that_it_is_the_root_and_the_others_name_it(
    cluster: ClusterProcess, unique: Unique
) -> None:
    """So does the home of a queue (H20)."""
    root = cluster.wait_for_root()
    said = {name: asked(broker, "root") for name, broker in cluster.brokers.items()}
    assert said.pop(root) == (200, "")
    assert said == dict.fromkeys(said, (503, f"the root is {root}"))
    assert len(said) == 3

    queue = unique("queue")

    async def declare() -> None:
        async with channel_to(cluster, "b1") as channel:
            await channel.declare_queue(queue, durable=True, arguments=at_home("b2"))

    run(declare())
    probe = f"home/%2F/{queue}"
    assert asked(cluster.brokers["b2"], probe) == (200, "")
    assert asked(cluster.brokers["b1"], probe) == (503, "its home is b2")
    assert asked(cluster.brokers["s1"], probe) == (503, "its home is b2")


# --- the root dies


def test_killed_root_is_replaced_and_the_others_go_on(
    cluster: ClusterProcess, unique: Unique
) -> None:
    """What was declared is there; a subscriber on a surviving broker misses nothing from a
    surviving publisher; the old root returns as a follower, with the messages that it held."""
    root = cluster.wait_for_root()
    first, second = others(root)

    async def scenario(exchange: str, kept: str, alive: str) -> None:
        async with channel_to(cluster, first) as one, channel_to(cluster, second) as two:
            await one.declare_exchange(exchange, "fanout", durable=True)
            await one.declare_queue(kept, durable=True, arguments=at_home(root))
            await one.declare_queue(alive, durable=True, arguments=at_home(second))
            for number in range(20):
                await two.publish(b"%d" % number, routing_key=kept, properties=PERSISTENT)
            private = (await two.declare_queue("", exclusive=True)).name
            await two.bind_queue(private, exchange)
            heard: list[int] = []
            listening = asyncio.create_task(numbers(two, private, heard))
            stream = Stream(one, exchange)
            streaming = asyncio.create_task(stream.run())
            await until(lambda: len(heard) >= 20)

            cluster.brokers[root].kill()
            new, seconds = await asyncio.to_thread(cluster.wait_for_new_root, root)
            print(f"\n{root} was killed; {new} is root after {seconds:.2f} s")
            assert new in (first, second)

            late = unique("late")
            await two.declare_queue(late, durable=True, arguments=at_home(first))
            await one.publish(b"late", routing_key=late, mandatory=True)
            await one.publish(b"alive", routing_key=alive, mandatory=True)
            assert await settled(await take(two, alive, 1)) == [b"alive"]
            await two.declare_exchange(exchange, "fanout", passive=True)
            stream.stop()
            await streaming
            await until(lambda: len(heard) >= stream.sent)
            assert heard == list(range(stream.sent))
            listening.cancel()

            await asyncio.to_thread(cluster.brokers[root].start)
            await asyncio.to_thread(cluster.wait_until_whole)
            assert cluster.wait_for_root() == new
            async with channel_to(cluster, root) as back:
                bodies = await settled(await take(back, kept, 20))
                assert bodies == [b"%d" % number for number in range(20)]
                assert (await back.declare_queue(late, passive=True)).message_count == 1

    run(scenario(unique("exchange"), unique("kept"), unique("alive")), RESTART_SECONDS_MAX)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(ANSWER_SECONDS_MAX):
        while not condition():
            await asyncio.sleep(0.01)


def test_terminated_root_hands_over(cluster: ClusterProcess, unique: Unique) -> None:
    """It says that it goes, so nobody waits for its lease."""
    root = cluster.wait_for_root()
    begun = time.monotonic()
    assert cluster.brokers[root].stop() == 0, cluster.brokers[root].printed()
    new = cluster.wait_for_root(but=root)
    print(f"\n{root} was stopped; {new} is root after {time.monotonic() - begun:.2f} s")

    async def scenario(queue: str) -> None:
        async with channel_to(cluster, others(root)[0]) as channel:
            await channel.declare_queue(queue, arguments=at_home(others(root)[1]))
            await channel.publish(b"on", routing_key=queue, mandatory=True)
            await channel.delete_queue(queue)

    run(scenario(unique("queue")))


def test_brokers_that_stand_still_together_keep_their_root(cluster: ClusterProcess) -> None:
    """As on a host without a free processor: nobody's silence is anybody's fault.

    Roots that resigned for having stood still longer than their lease cost a term each time.
    """
    root = cluster.wait_for_root()
    term = cluster.status(root)["cluster"]["term"]
    for _ in range(STANDSTILLS):
        for name in cluster.brokers:
            cluster.pause(name)
        threading.Event().wait(STANDSTILL_SECONDS)
        for name in cluster.brokers:
            cluster.resume(name)
        cluster.wait_until_whole()
    after = cluster.status(root)["cluster"]["term"]
    print(f"\n{after - term} elections after {STANDSTILLS} times of standing still")
    assert after - term < STANDSTILLS - 1


def test_paused_root_is_replaced_and_follows_when_it_goes_on(
    cluster: ClusterProcess, unique: Unique
) -> None:
    """Its sockets stay open and its clock runs on: only its silence tells."""
    root = cluster.wait_for_root()
    first, second = others(root)
    cluster.pause(root)
    new, seconds = cluster.wait_for_new_root(but=root)
    print(f"\n{root} was paused; {new} is root after {seconds:.2f} s")

    async def meanwhile(queue: str) -> None:
        async with channel_to(cluster, first) as channel:
            await channel.declare_queue(queue, durable=True, arguments=at_home(second))

    queue = unique("queue")
    run(meanwhile(queue))
    cluster.resume(root)
    cluster.wait_until_whole()
    assert cluster.wait_for_root() == new

    async def afterwards() -> None:
        async with channel_to(cluster, root) as channel:
            await channel.publish(b"seen", routing_key=queue, mandatory=True)
            assert await settled(await take(channel, queue, 1)) == [b"seen"]

    run(afterwards())


# --- a minority


def test_minority_is_isolated_says_so_and_heals(cluster: ClusterProcess, unique: Unique) -> None:
    """One of three primaries: it refuses changes, holds publishers up with the reason, and goes on
    by itself when the others return."""
    queue = unique("queue")

    async def scenario() -> None:
        blocked: list[str | None] = []
        url = cluster.brokers["b2"].url
        async with (
            connect(url, on_blocked=blocked.append) as connection,
            connection.channel(confirms=True) as channel,
        ):
            await channel.declare_queue(queue, durable=True, arguments=at_home("b2"))
            cluster.brokers["b1"].kill()
            cluster.brokers["b3"].kill()
            await asyncio.to_thread(cluster.wait_for_status, "b2", "isolated")
            held = asyncio.create_task(
                channel.publish(b"held", routing_key=queue, properties=TRANSIENT)
            )
            await until(lambda: blocked)
            assert "b2" in str(blocked[0])
            assert "isolated" in str(blocked[0])
            async with channel_to(cluster, "b2") as refused:
                with pytest.raises(PreconditionFailed, match="isolated") as error:
                    await refused.declare_queue(unique("never"), durable=True)
            print(f"\nblocked: {blocked[0]}\nrefused: {error.value}")
            assert not held.done()

            await asyncio.to_thread(cluster.make_whole)
            await held
            assert blocked[-1] is None
            (message,) = await take(channel, queue, 1)
            assert message.body == b"held"
            await message.ack()
            await channel.delete_queue(queue)

    run(scenario(), RESTART_SECONDS_MAX)


def test_who_is_left_of_two_is_made_root_by_a_person(tmp_path: Path) -> None:
    """Half of the primaries without the root elect nobody: they wait for a person, whose command
    shows what it does, and after whom changes are made again (O21)."""
    cluster = ClusterProcess(tmp_path, primaries=2)
    cluster.start()
    root = cluster.wait_for_root()
    (left,) = (name for name in cluster.brokers if name != root)
    before = cluster.status(left)["cluster"]["uuid"]

    async def put(queue: str, body: bytes) -> None:
        async with channel_to(cluster, left) as channel:
            await channel.declare_queue(queue, durable=True, arguments=at_home(left))
            await channel.publish(body, routing_key=queue, properties=PERSISTENT)

    async def taken(queue: str, count: int) -> list[bytes]:
        async with channel_to(cluster, left) as channel:
            return await settled(await take(channel, queue, count))

    def force(how: str) -> subprocess.CompletedProcess[str]:
        address = f"127.0.0.1:{cluster.brokers[left].http_port}"
        command = [sys.executable, "-m", "rhizome", "cluster", "force-root", "--http", address, how]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=ANSWER_SECONDS_MAX, check=False
        )

    try:
        run(put("kept", b"before"))
        refused = force("--yes")
        assert refused.returncode != 0
        assert f"the cluster has a root, {root}" in refused.stderr

        cluster.brokers[root].kill()
        cluster.wait_for_status(left, "isolated")
        with pytest.raises(PreconditionFailed, match="isolated"):
            run(put("never", b"refused"))
        wait_until(
            lambda: not cluster.root() and force("--dry-run").returncode == 0,
            f"{left} to have no root",
            ANSWER_SECONDS_MAX,
        )
        assert cluster.broker_status(left) == "isolated", "what is only shown is not done"

        forced = force("--yes")
        assert forced.returncode == 0, forced.stderr
        assert f"make sure that {root} is stopped" in forced.stdout
        assert f"{left} is the root of a new cluster" in forced.stdout
        assert cluster.wait_for_root() == left
        assert cluster.status(left)["cluster"]["uuid"] != before
        cluster.wait_for_status(left, "active", "ready")
        run(put("new", b"new"))
        run(put("kept", b"after"))
        assert run(taken("new", 1)) == [b"new"]
        assert run(taken("kept", 2)) == [b"before", b"after"]
    finally:
        cluster.kill()


# --- who doesn't belong


def stranger(cluster: ClusterProcess, directory: Path, name: str) -> BrokerProcess:
    """A secondary of this cluster, not started yet."""
    broker = BrokerProcess(directory / name)
    broker.add_arguments(cluster.arguments(name, "secondary"))
    return broker


def test_broker_with_another_key_stays_outside(cluster: ClusterProcess, tmp_path: Path) -> None:
    broker = stranger(cluster, tmp_path, "s7")
    key = tmp_path / "other.key"
    key.write_text("quite another key, of the same length as most")
    key.chmod(0o600)
    broker.add_arguments(["--cluster-key-file", str(key)])
    broker.launch()
    try:
        wait_until(lambda: "cluster key" in broker.printed(), "the refusal", ANSWER_SECONDS_MAX)
        known = [each["name"] for each in cluster.status("b1")["brokers"]]
        assert "s7" not in known
        assert key.read_text() not in broker.printed() + cluster.printed()
    finally:
        broker.kill()


def test_store_of_another_cluster_is_refused_with_both_named(
    cluster: ClusterProcess, tmp_path: Path
) -> None:
    elsewhere = ClusterProcess(tmp_path / "elsewhere", primaries=1)
    elsewhere.start()
    theirs = elsewhere.status("b1")["cluster"]["uuid"]
    elsewhere.stop()
    broker = stranger(cluster, tmp_path, "s8")
    elsewhere.brokers["b1"].data.rename(broker.data)
    ours = cluster.status("b1")["cluster"]["uuid"]
    broker.launch()
    try:
        wait_until(
            lambda: theirs in broker.printed() and ours in broker.printed(),
            "the refusal",
            ANSWER_SECONDS_MAX,
        )
        assert "s8" not in [each["name"] for each in cluster.status("b1")["brokers"]]
    finally:
        broker.kill()
