"""Bridges between real brokers, with either side and the bridge itself killed on the way."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final, cast

import pytest

from rhizome.amqp.properties import encode_header
from rhizome.client import ClientError, Properties, connect
from rhizome.errors import AmqpError
from rhizome.testing.broker_process import BrokerProcess, wait_until
from rhizome.testing.free_ports import free_ports
from tests.process.helpers import broker_with, contents, run

pytestmark = pytest.mark.timeout(120)

EXTERNAL_AMQP: Final = os.environ.get("RHIZOME_TEST_AMQP", "")
SECONDS_MAX: Final = 30.0
STOP_SECONDS_MAX: Final = 40.0
KILLS: Final = 5
QUEUES: Final = (
    *("orders", "from", "to", "other", "events", "late", "dead", "all", "there", "q"),
    *("bridge.ev", "bridge.pair", "bridge.amq.fanout", "bridge.odd"),
)
DEDUP: Final[dict[str, object]] = {"x-dedup": "message-id"}


class BridgeProcess:
    """One `rhizome bridge --json`, with its events read back from the file that it prints to."""

    def __init__(self, output: Path, *arguments: str, environment: dict[str, str] | None = None):
        self._output = output
        self._arguments = arguments
        self._environment = environment or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._start = 0

    def start(self) -> None:
        """Start it, and return at once."""
        command = [sys.executable, "-m", "rhizome", "bridge", "--json", *self._arguments]
        with self._output.open("ab") as output:
            self._start = output.tell()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._environment},
            )

    def start_and_run(self) -> None:
        self.start()
        self.until("ready")

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._process = None

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.exit_code()

    def exit_code(self) -> int:
        code = self.process.wait(STOP_SECONDS_MAX)
        self._process = None
        return code

    def end(self) -> None:
        if self._process is not None:
            self.kill()

    def printed(self) -> str:
        with self._output.open("rb") as output:
            output.seek(self._start)
            return output.read().decode()

    def events(self, name: str) -> list[dict[str, Any]]:
        """Events of one name since the last start."""
        lines = [line for line in self.printed().splitlines(keepends=True) if line.endswith("\n")]
        parsed = [json.loads(line) for line in lines if line.startswith("{")]
        return [event for event in parsed if event["event"] == name]

    def until(self, name: str, count: int = 1) -> dict[str, Any]:
        """Wait for an event; returns the latest of its name."""

        def enough() -> bool:
            ended = self._process is not None and self._process.poll() is not None
            assert not ended or len(self.events(name)) >= count, self.printed()
            return len(self.events(name)) >= count

        wait_until(enough, f"event {name} of {self.printed()}", SECONDS_MAX)
        return self.events(name)[-1]


class Site:
    """Two brokers and the bridges between them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.a = broker_with(directory / "a", cluster_name="alpha")
        self.b = broker_with(directory / "b", cluster_name="beta")
        self.bridges: list[BridgeProcess] = []

    def bridge(self, *arguments: str, reverse: bool = False) -> BridgeProcess:
        source, destination = (self.b, self.a) if reverse else (self.a, self.b)
        ends = ("--from", source.url, "--to", destination.url, "--retry-max", "0.5")
        return self.any_bridge(*ends, *arguments)

    def any_bridge(self, *arguments: str, **options: Any) -> BridgeProcess:
        output = self.directory / f"bridge-{len(self.bridges)}.txt"
        bridge = BridgeProcess(output, *arguments, **options)
        self.bridges.append(bridge)
        return bridge

    def end(self) -> None:
        for bridge in self.bridges:
            bridge.end()
        for broker in (self.a, self.b):
            if broker.is_running():
                broker.kill()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Brokers of the test's own, to kill."""
    made = Site(tmp_path)
    made.a.start()
    made.b.start()
    yield made
    made.end()


@pytest.fixture(scope="module")
def calm_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("calm"))
    made.a.start()
    made.b.start()
    yield made
    made.end()


@pytest.fixture
def calm(calm_brokers: Site, tmp_path: Path) -> Iterator[Site]:
    """Brokers that the tests share and leave alive; the queues go with the test."""
    made = Site(tmp_path)
    made.a, made.b = calm_brokers.a, calm_brokers.b
    yield made
    for bridge in made.bridges:
        bridge.end()
    for broker in (made.a, made.b):
        run(_delete(broker, QUEUES))


async def _delete(broker: BrokerProcess, queues: tuple[str, ...]) -> None:
    async with connect(broker.url) as connection, connection.channel() as channel:
        for queue in queues:
            await channel.delete_queue(queue)


def body(number: int) -> bytes:
    return b"%d:" % number + b"x" * (number % 300)


def number_of(content: bytes) -> int:
    number = int(content.split(b":")[0])
    assert content == body(number)
    return number


def properties(number: int) -> Properties:
    return Properties(delivery_mode=2, message_id=f"m{number}")


def declare(broker: BrokerProcess, queue: str, arguments: dict[str, object] | None = None) -> None:
    async def scenario() -> None:
        async with connect(broker.url) as connection, connection.channel() as channel:
            await channel.declare_queue(queue, durable=True, arguments=arguments)

    run(scenario())


def publish(
    broker: BrokerProcess,
    numbers: range,
    *,
    exchange: str = "",
    key: str,
    made: Callable[[int], Properties] = properties,
    mandatory: bool = True,
) -> None:
    async def scenario() -> None:
        async with connect(broker.url) as connection, connection.channel(confirms=True) as channel:
            for number in numbers:
                channel.publish_soon(
                    body(number),
                    exchange=exchange,
                    routing_key=key,
                    properties=made(number),
                    mandatory=mandatory,
                )
            await channel.confirmed()

    run(scenario())


def count(broker: BrokerProcess, queue: str) -> int:
    async def scenario() -> int:
        async with connect(broker.url) as connection, connection.channel() as channel:
            return (await channel.declare_queue(queue, passive=True)).message_count

    return run(scenario())


def until_count(broker: BrokerProcess, queue: str, wanted: int) -> None:
    wait_until(lambda: count(broker, queue) >= wanted, f"{wanted} messages in {queue}", SECONDS_MAX)


def numbers_in(broker: BrokerProcess, queue: str) -> list[int]:
    return [number_of(each) for each in run(contents(broker, queue))]


def stop_cleanly(bridge: BridgeProcess) -> None:
    assert bridge.stop() == 0, bridge.printed()


# --- moving


def test_a_queue_is_moved_in_order_and_left_empty(calm: Site) -> None:
    declare(calm.a, "orders")
    declare(calm.b, "orders")
    publish(calm.a, range(2000), key="orders")
    bridge = calm.bridge("--queue", "orders")
    bridge.start_and_run()
    until_count(calm.b, "orders", 2000)
    stop_cleanly(bridge)
    assert numbers_in(calm.b, "orders") == list(range(2000))
    assert count(calm.a, "orders") == 0
    assert bridge.until("stopped")["moved"] == 2000


def test_properties_headers_and_key_arrive_as_they_were(calm: Site) -> None:
    async def scenario() -> tuple[str, str, Properties]:
        async with (
            connect(calm.a.url) as there,
            connect(calm.b.url) as here,
            there.channel(confirms=True) as source,
            here.channel() as destination,
        ):
            await source.declare_queue("from", durable=True)
            await source.bind_queue("from", "amq.topic", "a.#")
            await destination.declare_queue("to")
            await destination.bind_queue("to", "amq.topic", "a.#")
            bridge = calm.bridge("--queue", "from", "--to-exchange", "amq.topic")
            await asyncio.to_thread(bridge.start_and_run)
            await source.publish(
                b"body", exchange="amq.topic", routing_key="a.b", properties=sent, mandatory=True
            )
            async for message in destination.consume("to"):
                return message.exchange, message.routing_key, message.properties
        raise AssertionError

    headers: dict[str, object] = {"n": 1, "t": {"x": [True, None, "y"]}, "b": b"\x00\xff"}
    sent = Properties(
        "text/plain", "gzip", dict(headers), 2, 3, "corr", "reply", "60000", "id-1", 1700000000,
        "kind", None, "app",
    )  # fmt: skip
    exchange, key, got = run(scenario())
    assert (exchange, key) == ("amq.topic", "a.b")
    assert got.headers == {**headers, "x-bridged": ["alpha:/"]}
    got.headers = sent.headers
    assert encode_header(0, got) == encode_header(0, sent)


def test_a_user_id_and_further_receivers_of_the_source_stay_there(calm: Site) -> None:
    """The destination would close the channel over the one, and send copies to the other."""

    def made(number: int) -> Properties:
        return Properties(user_id="guest", headers={"CC": ["other"], "kept": number})

    declare(calm.a, "from")
    declare(calm.b, "to")
    declare(calm.b, "other")
    publish(calm.a, range(3), key="from", made=made)

    async def allow_another_user() -> list[Properties]:
        async with connect(calm.b.url) as connection, connection.channel() as channel:
            messages = [await channel.get("to") for _ in range(3)]
            return [message.properties for message in messages if message is not None]

    bridge = calm.bridge("--queue", "from", "--to-queue", "to")
    bridge.start_and_run()
    until_count(calm.b, "to", 3)
    stop_cleanly(bridge)
    got = run(allow_another_user())
    assert [each.user_id for each in got] == ["guest"] * 3
    assert [each.headers for each in got] == [
        {"kept": number, "x-bridged": ["alpha:/"]} for number in range(3)
    ]
    assert count(calm.b, "other") == 0


def test_an_exchange_is_bridged_through_a_queue_that_outlives_the_bridge(calm: Site) -> None:
    async def bind() -> None:
        async with connect(calm.b.url) as connection, connection.channel() as channel:
            await channel.declare_queue("events", durable=True)
            await channel.bind_queue("events", "amq.topic", "#")

    run(bind())
    arguments = ("--exchange", "amq.topic", "--key", "order.*", "--key", "user.#", "--id", "ev")
    bridge = calm.bridge(*arguments)
    bridge.start_and_run()
    publish(calm.a, range(10), exchange="amq.topic", key="order.new")
    publish(calm.a, range(10, 20), exchange="amq.topic", key="other", mandatory=False)
    until_count(calm.b, "events", 10)
    stop_cleanly(bridge)
    publish(calm.a, range(20, 30), exchange="amq.topic", key="user.x.y")
    assert count(calm.a, "bridge.ev") == 10
    bridge.start_and_run()
    until_count(calm.b, "events", 20)
    assert numbers_in(calm.b, "events") == [*range(10), *range(20, 30)]


# --- failures


class Publisher:
    """Publishes numbered messages to one queue for as long as it is let, whatever happens to it.

    Invariant: `confirmed` messages are 0 to confirmed - 1, each published at least once, in order.
    """

    BATCH: Final = 20

    def __init__(self, broker: BrokerProcess, queue: str) -> None:
        self.confirmed = 0
        self._url = broker.url
        self._queue = queue
        self._enough = asyncio.Event()

    async def run(self) -> None:
        while not self._enough.is_set():
            try:
                await self._session()
            except (ClientError, AmqpError, OSError):
                await asyncio.sleep(0.05)

    def finish(self) -> None:
        self._enough.set()

    async def _session(self) -> None:
        async with connect(self._url) as connection, connection.channel(confirms=True) as channel:
            while not self._enough.is_set():
                batch = range(self.confirmed, self.confirmed + self.BATCH)
                for number in batch:
                    channel.publish_soon(
                        body(number), routing_key=self._queue, properties=properties(number)
                    )
                await channel.confirmed()
                self.confirmed = batch.stop
                await asyncio.sleep(0.02)


async def disturb(
    site: Site, times: int, disturbance: Callable[[], None], chance_ms: int = 150
) -> int:
    """Publish to A and disturb the flow to B several times; returns how many were confirmed."""
    publisher = Publisher(site.a, "orders")
    publishing = asyncio.create_task(publisher.run())
    for turn in range(times):
        before = publisher.confirmed
        async with asyncio.timeout(SECONDS_MAX):
            while publisher.confirmed < before + 50:
                await asyncio.sleep(0.01)
        # At another phase of the flow each time.
        await asyncio.sleep((turn * 37 % chance_ms) / 1000)
        await asyncio.to_thread(disturbance)
    publisher.finish()
    await publishing
    return publisher.confirmed


def first_occurrences(numbers: list[int]) -> list[int]:
    return list(dict.fromkeys(numbers))


def arrived(site: Site, bridge: BridgeProcess) -> list[int]:
    """Let the bridge finish, and see what is there."""
    wait_until(lambda: count(site.a, "orders") == 0, "the source to be empty", SECONDS_MAX)
    stop_cleanly(bridge)
    assert count(site.a, "orders") == 0
    return numbers_in(site.b, "orders")


def kill_and_start(broker: BrokerProcess) -> None:
    broker.kill()
    broker.start()


def test_a_source_that_is_killed_again_and_again_loses_and_doubles_nothing(site: Site) -> None:
    declare(site.a, "orders")
    declare(site.b, "orders", DEDUP)
    bridge = site.bridge("--queue", "orders", "--prefetch", "50")
    bridge.start_and_run()
    confirmed = run(disturb(site, KILLS, lambda: kill_and_start(site.a)))
    found = arrived(site, bridge)
    # The last batch may have been taken without the publisher hearing of it.
    assert found == list(range(len(found)))
    assert len(found) >= confirmed
    assert len(bridge.events("lost")) >= KILLS


def test_a_bridge_that_is_killed_again_and_again_loses_and_doubles_nothing(calm: Site) -> None:
    declare(calm.a, "orders")
    declare(calm.b, "orders", DEDUP)
    bridge = calm.bridge("--queue", "orders", "--prefetch", "50")
    bridge.start_and_run()

    def kill_and_start_bridge() -> None:
        bridge.kill()
        bridge.start_and_run()

    confirmed = run(disturb(calm, KILLS, kill_and_start_bridge))
    assert arrived(calm, bridge) == list(range(confirmed))


def test_a_destination_that_is_killed_again_and_again_loses_nothing(site: Site) -> None:
    prefetch = 50
    declare(site.a, "orders")
    declare(site.b, "orders")
    bridge = site.bridge("--queue", "orders", "--prefetch", str(prefetch))
    bridge.start_and_run()
    confirmed = run(disturb(site, KILLS, lambda: kill_and_start(site.b)))
    found = arrived(site, bridge)
    assert first_occurrences(found) == list(range(confirmed))
    # What was under way is sent again, and nothing else.
    assert len(found) <= confirmed + KILLS * prefetch


class LocalCluster:
    """Three brokers of `rhizome up`, which has the shape of a broker for the helpers here."""

    BROKERS: Final = 3
    START_SECONDS_MAX: Final = 90.0

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port, self._http_port = free_ports(self.BROKERS), free_ports(self.BROKERS)
        self._output = directory.with_suffix(".txt")
        self._process: subprocess.Popen[bytes] | None = None
        self._first_root = "b1"

    @property
    def url(self) -> str:
        """All brokers of the cluster, its first root before the others: who comes is there."""
        names = [f"b{number + 1}" for number in range(self.BROKERS)]
        names.sort(key=lambda name: name != self._first_root)
        ports = [self._port + int(name[1:]) - 1 for name in names]
        return f"amqp://guest:guest@{','.join(f'127.0.0.1:{port}' for port in ports)}/"

    def start(self) -> None:
        ports = ("--base-port", str(self._port), "--http-base-port", str(self._http_port))
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [*self._command(), *ports], stdout=output, stderr=subprocess.STDOUT
            )
        wait_until(
            lambda: "\nready" in self._output.read_text(), "the cluster", self.START_SECONDS_MAX
        )
        self._first_root = wait_until(self._root, "a root", SECONDS_MAX)

    def kill_root_and_start_it_again(self) -> None:
        root = wait_until(self._root, "a root", SECONDS_MAX)
        os.kill(int((self._directory / root / "pid").read_text()), signal.SIGKILL)
        subprocess.run([*self._command(), "--restart", root], check=True, capture_output=True)

    def is_running(self) -> bool:
        return self._process is not None

    def kill(self) -> None:
        """`up` ends its brokers before it ends."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(self.START_SECONDS_MAX)
        self._process = None

    def _command(self) -> list[str]:
        return [sys.executable, "-m", "rhizome", "up", "--data", str(self._directory)]

    def _root(self) -> str:
        """What the first broker that answers says; the one that was killed doesn't."""
        for port in range(self._http_port, self._http_port + self.BROKERS):
            login = ["--user", "guest", "--password", "guest", "--json"]
            asked = [sys.executable, "-m", "rhizome", "status", "--http", f"127.0.0.1:{port}"]
            said = subprocess.run([*asked, *login], capture_output=True, check=False)
            if said.returncode == 0:
                return str(json.loads(said.stdout)["cluster"]["root"] or "")
        return ""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("roots", [1, pytest.param(3, marks=pytest.mark.soak)])
@pytest.mark.parametrize("where", ["source", "destination"])
def test_a_bridge_outlives_the_roots_of_its_clusters(
    tmp_path: Path, where: str, roots: int
) -> None:
    """It is connected to the first root that is killed, and goes on at another broker, where the
    queue is, too: each message has two copies."""
    site = Site(tmp_path)
    cluster = LocalCluster(tmp_path / "cluster")
    if where == "source":
        site.a = cast(Any, cluster)
    else:
        site.b = cast(Any, cluster)
    try:
        site.a.start()
        site.b.start()
        declare(site.a, "orders")
        declare(site.b, "orders", DEDUP)
        bridge = site.bridge("--queue", "orders", "--prefetch", "50")
        bridge.start_and_run()
        confirmed = run(disturb(site, roots, cluster.kill_root_and_start_it_again), 200)
        bridge.until("running", 2)
        found = arrived(site, bridge)
        lost = [event["side"] for event in bridge.events("lost")]
    finally:
        site.end()
    assert where in lost
    assert first_occurrences(found) == list(range(len(set(found))))
    assert len(set(found)) >= confirmed
    if where == "source":
        assert len(found) == len(set(found))


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", range(10))
def test_all_three_are_killed_at_random_and_nothing_is_lost(site: Site, seed: int) -> None:
    prefetch, kills = 100, 20
    chance = Random(seed)
    declare(site.a, "orders")
    declare(site.b, "orders", DEDUP)
    bridge = site.bridge("--queue", "orders", "--prefetch", str(prefetch))
    bridge.start_and_run()

    def kill_one() -> None:
        victim = chance.choice(("source", "destination", "bridge"))
        if victim == "bridge":
            bridge.kill()
            bridge.start()
        else:
            kill_and_start(site.a if victim == "source" else site.b)

    confirmed = run(disturb(site, kills, kill_one), 2000)
    bridge.until("running")
    found = arrived(site, bridge)
    assert first_occurrences(found) == list(range(len(set(found))))
    assert len(set(found)) >= confirmed
    # A destination that was killed has forgotten the ids that it had seen.
    assert len(found) <= len(set(found)) + kills * prefetch


def test_the_destination_may_be_any_broker_of_a_list_and_hang(site: Site) -> None:
    """A broker that is alive, and answers nothing: the next one is taken after a while."""
    declare(site.a, "orders")
    declare(site.b, "orders")
    other = broker_with(site.directory / "c", cluster_name="beta")
    other.start()
    try:
        declare(other, "orders")
        to = f"amqp://guest:guest@127.0.0.1:1,127.0.0.1:{site.b.port},127.0.0.1:{other.port}/"
        bridge = site.any_bridge(
            "--from", site.a.url, "--to", to + "?connection_timeout=1000",
            "--queue", "orders", "--retry-max", "0.5", "--confirm-timeout", "1", "--status", "0.1",
        )  # fmt: skip
        bridge.start_and_run()
        publish(site.a, range(10), key="orders")
        wait_until(
            lambda: any(status["moved"] == 10 for status in bridge.events("status")),
            "all to be confirmed",
            SECONDS_MAX,
        )
        os.kill(site.b.pid, signal.SIGSTOP)
        publish(site.a, range(10, 20), key="orders")
        until_count(other, "orders", 10)
        assert numbers_in(other, "orders") == list(range(10, 20))
        os.kill(site.b.pid, signal.SIGCONT)
        stop_cleanly(bridge)
    finally:
        other.kill()


# --- what the destination won't take


def test_what_reaches_no_queue_is_kept_until_there_is_one(calm: Site) -> None:
    declare(calm.a, "orders")
    publish(calm.a, range(100), key="orders")
    bridge = calm.bridge("--queue", "orders", "--to-exchange", "amq.direct", "--to-key", "k")
    bridge.start_and_run()
    blocked = bridge.until("blocked")
    assert "bind a queue" in blocked["text"]

    async def bind() -> None:
        async with connect(calm.b.url) as connection, connection.channel() as channel:
            await channel.declare_queue("late", durable=True)
            await channel.bind_queue("late", "amq.direct", "k")

    run(bind())
    until_count(calm.b, "late", 100)
    stop_cleanly(bridge)
    assert numbers_in(calm.b, "late") == list(range(100))
    assert count(calm.a, "orders") == 0


def test_what_reaches_no_queue_is_dead_lettered_or_dropped_if_told_so(calm: Site) -> None:
    letters: dict[str, object] = {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead",
    }
    declare(calm.a, "dead")
    declare(calm.a, "orders", letters)
    for what, left in (("dead-letter", 10), ("drop", 0)):
        publish(calm.a, range(10), key="orders")
        bridge = calm.bridge("--queue", "orders", "--to-exchange", "amq.direct", "--refused", what)
        bridge.start_and_run()
        bridge.until("refused")
        wait_until(lambda: count(calm.a, "orders") == 0, "the queue to be empty")
        stop_cleanly(bridge)
        assert numbers_in(calm.a, "dead") == list(range(left))
        run(_purge(calm.a, "dead"))


async def _purge(broker: BrokerProcess, queue: str) -> None:
    async with connect(broker.url) as connection, connection.channel() as channel:
        await channel.purge_queue(queue)


def test_a_full_destination_is_waited_for(calm: Site) -> None:
    declare(calm.a, "orders")
    declare(calm.b, "orders", {"x-max-length": 10, "x-overflow": "reject-publish"})
    publish(calm.a, range(25), key="orders")
    bridge = calm.bridge("--queue", "orders", "--prefetch", "1")
    bridge.start_and_run()
    assert "queue is full" in bridge.until("blocked")["text"]
    found = numbers_in(calm.b, "orders")
    run(_purge(calm.b, "orders"))
    until_count(calm.b, "orders", 10)
    found += numbers_in(calm.b, "orders")
    run(_purge(calm.b, "orders"))
    until_count(calm.b, "orders", 5)
    found += numbers_in(calm.b, "orders")
    stop_cleanly(bridge)
    assert found == list(range(25))


def test_one_message_that_makes_the_destination_close_is_found_among_many(calm: Site) -> None:
    strict = broker_with(calm.directory / "c", limits_message_bytes_max="1KiB")
    letters: dict[str, object] = {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead",
    }
    declare(calm.a, "dead")
    declare(calm.a, "orders", letters)
    strict.start()
    try:
        declare(strict, "orders", DEDUP)
        publish(calm.a, range(50), key="orders")

        async def too_large() -> None:
            async with connect(calm.a.url) as connection, connection.channel() as channel:
                await channel.publish(b"x" * 2000, routing_key="orders")

        run(too_large())
        publish(calm.a, range(50, 100), key="orders")
        bridge = calm.any_bridge(
            "--from", calm.a.url, "--to", strict.url, "--retry-max", "0.2",
            "--queue", "orders", "--refused", "dead-letter",
        )  # fmt: skip
        bridge.start_and_run()
        until_count(strict, "orders", 100)
        stop_cleanly(bridge)
        assert numbers_in(strict, "orders") == list(range(100))
        assert count(calm.a, "dead") == 1
    finally:
        strict.kill()


# --- circles


def test_bridges_in_both_directions_bring_each_message_across_once(calm: Site) -> None:
    async def bind(broker: BrokerProcess) -> None:
        async with connect(broker.url) as connection, connection.channel() as channel:
            await channel.declare_queue("all", durable=True)
            await channel.bind_queue("all", "amq.fanout")

    for broker in (calm.a, calm.b):
        run(bind(broker))
    bridges = [
        calm.bridge("--exchange", "amq.fanout", "--status", "0.2", reverse=reverse)
        for reverse in (False, True)
    ]
    for bridge in bridges:
        bridge.start_and_run()
    publish(calm.a, range(50), exchange="amq.fanout", key="")
    publish(calm.b, range(50, 100), exchange="amq.fanout", key="")
    for bridge in bridges:
        wait_until(
            lambda bridge=bridge: any(s["circles"] >= 50 for s in bridge.events("status")),
            "the bridge to see all circles",
            SECONDS_MAX,
        )
        stop_cleanly(bridge)
    for broker in (calm.a, calm.b):
        assert sorted(numbers_in(broker, "all")) == list(range(100))


def test_one_queue_bridged_both_ways_ends_with_an_error_and_keeps_the_messages(
    calm: Site,
) -> None:
    declare(calm.a, "orders")
    declare(calm.b, "orders")
    publish(calm.a, range(10), key="orders")
    there = calm.bridge("--queue", "orders")
    there.start_and_run()
    until_count(calm.b, "orders", 10)
    stop_cleanly(there)
    back = calm.bridge("--queue", "orders", reverse=True)
    back.start()
    assert back.exit_code() == 1
    assert "alpha:/" in back.until("failed")["text"]
    assert numbers_in(calm.b, "orders") == list(range(10))


# --- stopping and starting


def test_a_stop_waits_for_what_is_under_way_and_doubles_nothing(calm: Site) -> None:
    """Without any ids, so that every repeat would show."""
    declare(calm.a, "orders")
    declare(calm.b, "orders")
    publish(calm.a, range(3000), key="orders", made=lambda _: Properties(delivery_mode=2))
    for _ in range(4):
        before = count(calm.b, "orders")
        bridge = calm.bridge("--queue", "orders", "--no-dedup", "--prefetch", "100")
        bridge.start_and_run()
        until_count(calm.b, "orders", min(before + 50, 3000))
        stop_cleanly(bridge)
        assert bridge.until("stopped")["left"] == 0
    there, left = numbers_in(calm.b, "orders"), numbers_in(calm.a, "orders")
    assert there + left == list(range(3000))


def test_a_stop_without_a_destination_leaves_everything_at_the_source(site: Site) -> None:
    declare(site.a, "orders")
    declare(site.b, "orders")
    bridge = site.bridge("--queue", "orders", "--drain", "0.5")
    bridge.start_and_run()
    site.b.kill()
    publish(site.a, range(10), key="orders")
    bridge.until("lost")
    stop_cleanly(bridge)
    assert numbers_in(site.a, "orders") == list(range(10))


def test_a_second_signal_ends_it_without_the_confirms(site: Site) -> None:
    declare(site.a, "orders")
    declare(site.b, "orders")
    bridge = site.bridge("--queue", "orders", "--drain", "300")
    bridge.start_and_run()
    os.kill(site.b.pid, signal.SIGSTOP)
    publish(site.a, range(10), key="orders")
    wait_until(lambda: count(site.a, "orders") == 0, "the bridge to take them")
    bridge.process.send_signal(signal.SIGTERM)
    bridge.until("draining")
    assert bridge.stop() == 1
    until_count(site.a, "orders", 10)
    assert numbers_in(site.a, "orders") == list(range(10))


def test_a_stop_of_a_blocked_bridge_gives_everything_back_at_once(calm: Site) -> None:
    declare(calm.a, "orders")
    publish(calm.a, range(100), key="orders")
    bridge = calm.bridge("--queue", "orders", "--to-exchange", "amq.direct", "--prefetch", "20")
    bridge.start_and_run()
    bridge.until("blocked", 2)
    stop_cleanly(bridge)
    assert bridge.until("stopped")["left"] == 0
    assert numbers_in(calm.a, "orders") == list(range(100))


def test_a_second_bridge_of_the_same_name_stands_by_and_takes_over(calm: Site) -> None:
    async def bind() -> None:
        async with connect(calm.b.url) as connection, connection.channel() as channel:
            await channel.declare_queue("all", durable=True)
            await channel.bind_queue("all", "amq.fanout")

    run(bind())
    first, second = (calm.bridge("--exchange", "amq.fanout", "--id", "pair") for _ in range(2))
    first.start_and_run()
    second.start()
    assert "exclusive use" in second.until("lost")["text"]
    first.kill()
    second.until("ready")
    publish(calm.a, range(10), exchange="amq.fanout", key="")
    until_count(calm.b, "all", 10)


def test_several_bridges_in_a_file_do_not_share_their_failures(calm: Site) -> None:
    declare(calm.a, "orders")
    declare(calm.b, "orders")
    config = calm.directory / "bridges.toml"
    ends = f'from = "{calm.a.url}"\nto = "{calm.b.url}"\nto_queue = "orders"\n'
    config.write_text(
        f'[bridge.good]\n{ends}queue = "orders"\n\n[bridge.bad]\n{ends}queue = "missing"\n'
    )
    bridge = calm.any_bridge("--config", str(config))
    bridge.start()
    failed = bridge.until("failed")
    assert failed["bridge"] == "bad"
    assert "rhizome queue declare missing" in failed["text"]
    publish(calm.a, range(10), key="orders")
    until_count(calm.b, "orders", 10)
    assert bridge.stop() == 1
    assert bridge.until("stopped")["bridge"] == "good"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--queue", "none", "--to-queue", "there"], "rhizome queue declare none"),
        (["--queue", "there", "--to-queue", "none"], "destination 127.0.0.1"),
        (["--queue", "there", "--to-exchange", "none"], "no exchange 'none'"),
    ],
)
def test_what_waiting_does_not_mend_ends_the_bridge(
    calm: Site, arguments: list[str], said: str
) -> None:
    for broker in (calm.a, calm.b):
        declare(broker, "there")
    bridge = calm.bridge(*arguments)
    bridge.start()
    assert bridge.exit_code() == 1
    assert said in bridge.until("failed")["text"]


def test_a_wrong_password_is_told_without_repeating_it(calm: Site) -> None:
    declare(calm.b, "q")
    bridge = calm.any_bridge(
        "--queue", "q",
        environment={
            "RHIZOME_BRIDGE_FROM": f"amqp://guest:s3cret@127.0.0.1:{calm.a.port}/",
            "RHIZOME_BRIDGE_TO": calm.b.url,
        },
    )  # fmt: skip
    bridge.start()
    assert bridge.exit_code() == 1
    assert "403" in bridge.until("failed")["text"]
    assert "s3cret" not in bridge.printed()


@pytest.mark.skipif(not EXTERNAL_AMQP, reason="RHIZOME_TEST_AMQP names no other broker")
def test_messages_go_to_another_make_of_broker_and_back(
    calm: Site, unique: Callable[[str], str]
) -> None:
    there = unique("there")

    async def declared(wanted: bool) -> None:
        async with connect(EXTERNAL_AMQP) as connection, connection.channel() as channel:
            if wanted:
                await channel.declare_queue(there, durable=True)
            else:
                await channel.delete_queue(there)

    declare(calm.a, "from")
    declare(calm.b, "to", DEDUP)
    publish(calm.a, range(1000), key="from")
    run(declared(True))
    ends = (calm.a.url, "from", EXTERNAL_AMQP, there), (EXTERNAL_AMQP, there, calm.b.url, "to")
    for source, queue, destination, to_queue in ends:
        bridge = calm.any_bridge(
            "--from", source, "--queue", queue, "--to", destination, "--to-queue", to_queue
        )
        bridge.start_and_run()
    until_count(calm.b, "to", 1000)
    for bridge in calm.bridges:
        stop_cleanly(bridge)
    run(declared(False))
    assert numbers_in(calm.b, "to") == list(range(1000))
