"""The last release beside the current source in a cluster: brokers are upgraded one by one under
clients, and taken back (docs/operating/upgrade.md, ADR 15)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from rhizome import __version__
from rhizome.testing.broker_process import BrokerProcess, wait_until
from rhizome.testing.cluster_process import ClusterProcess
from tests.process.client_workers import History, Workers
from tests.process.cluster.test_drain import groups, order, wait_for_copies
from tests.process.helpers import call_api
from tests.process.previous_release import ReleaseProcess, last_release, unpack_last_release

SECONDS_MAX = 120.0
QUEUES = ["orders", "mails", "jobs"]
ONCE = "once"
"""Of sessions, which send again by themselves: here nothing excuses a duplicate."""
STREAM = "events"
LEDGERS = ["ledger", "other-ledger"]
"""Of transactions; the home of each is another broker, mostly."""
PERSISTENT = pika.BasicProperties(delivery_mode=2)
PACE_S = 0.03
SOAK_TURNS = 4
FORTH = 10
"""Messages of each publisher between two steps."""


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_last_release(tmp_path_factory.mktemp("release"))


@pytest.fixture
def cluster(tmp_path: Path, older: Path) -> Iterator[ClusterProcess]:
    """Three brokers of the last release, with something of everything declared."""

    def make(name: str, directory: Path) -> ReleaseProcess:
        broker = ReleaseProcess(directory, environment={"RHIZOME_CLUSTER_NAME": "grove"})
        broker.run_source(older)
        return broker

    cluster = ClusterProcess(tmp_path, make=make, seed=1)
    cluster.start()
    try:
        declare_objects(cluster.brokers["b1"])
        yield cluster
    finally:
        cluster.kill()


def declare_objects(broker: BrokerProcess) -> None:
    """Something of everything that is replicated and kept."""
    call_api(broker, "PUT", "vhosts", "other", description="of the last release")
    call_api(broker, "PUT", "users", "ann", password="hidden", tags="monitoring")
    call_api(broker, "PUT", "permissions", "other", "ann", configure="^a", write=".*", read="b|c")
    limits = {"max-length": 100_000, "dead-letter-exchange": "dead"}
    call_api(
        broker, "PUT", "policies", "/", "long", pattern="^mails$", definition=limits, priority=2
    )
    shovel = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://", "dest-queue": "b"}
    call_api(broker, "PUT", "parameters", "shovel", "/", "idle", value=shovel)
    headers = {"x-match": "any", "size": 3}
    call_api(broker, "PUT", "exchanges", "/", "dead", type="headers", durable=True)
    call_api(broker, "PUT", "queues", "/", "letters", durable=True, arguments={"x-max-priority": 4})
    call_api(broker, "POST", "bindings", "/", "e", "dead", "q", "letters", arguments=headers)


def definitions(broker: BrokerProcess) -> dict[str, Any]:
    """What a broker knows, but for what its release calls itself, and for what only one of the
    releases tells of a vhost."""
    found = call_api(broker, "GET", "definitions")
    for version in ("rabbit_version", "rabbitmq_version", "product_version"):
        found.pop(version, None)
    for vhost in found["vhosts"]:
        vhost.pop("metadata", None)
        assert vhost.pop("default_queue_type", "undefined") == "undefined"
    return {
        kind: sorted(rows, key=repr) if isinstance(rows, list) else rows
        for kind, rows in found.items()
    }


class Traffic:
    """Clients of both kinds on copied queues, and a publisher of a stream."""

    def __init__(self, cluster: ClusterProcess, seed: int) -> None:
        self.cluster = cluster
        self.pika = Workers(cluster, QUEUES, seed, PACE_S)
        self.sessions = Workers(cluster, [ONCE], seed, PACE_S)
        self.stream = Workers(cluster, [STREAM], seed, PACE_S)
        self.pika.declare()
        self.sessions.declare()
        declare_stream(cluster.brokers["b1"])
        wait_for_copies(cluster, "b1")

    def start(self) -> None:
        self.pika.start(publishers=2, consumers=3)
        self.sessions.start_sessions(publishers=1, consumers=1)
        self.stream.start(publishers=1, consumers=0)
        wait_until(self._have_begun, "traffic", SECONDS_MAX)

    def _have_begun(self) -> bool:
        counts = [len(each.history.progress) for each in (self.pika, self.sessions, self.stream)]
        return counts == [2, 1, 1]

    def go_on(self) -> None:
        for workers in (self.pika, self.sessions, self.stream):
            workers.wait_for_progress(FORTH, SECONDS_MAX)

    def finish(self) -> None:
        """Nothing was lost, nothing came twice unmarked, and the stream has everything in order."""
        for workers in (self.pika, self.sessions):
            workers.finish(SECONDS_MAX)
            history = workers.history
            assert not history.errors
            assert not history.lost()
            # On a busy machine a session may need longer than its broker keeps what it held.
            marked = {each.body for each in history.deliveries if each.redelivered}
            twice = [each for each in history.duplicates() if each.split(":")[0] not in marked]
            assert not twice
            print(f"{len(history.confirmed)} confirmed, {len(history.resent)} sent again")
        self.stream.finish(0)
        assert not self.stream.history.errors
        check_stream(self.cluster, self.stream.history)


@contextmanager
def channel_of(broker: BrokerProcess) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.port))
    yield connection.channel()
    connection.close()


def declare_stream(broker: BrokerProcess) -> None:
    with channel_of(broker) as channel:
        channel.queue_declare(STREAM, durable=True, arguments={"x-queue-type": "stream"})


def read_stream(broker: BrokerProcess, last: str) -> list[tuple[int, str]]:
    """(offset, body) of everything in the stream up to a message."""
    found: list[tuple[int, str]] = []
    with channel_of(broker) as channel:
        channel.basic_qos(prefetch_count=100)
        consumed = channel.consume(
            STREAM, arguments={"x-stream-offset": "first"}, inactivity_timeout=SECONDS_MAX
        )
        for method, properties, body in consumed:
            assert method is not None, f"{last} is not among the {len(found)} of the stream"
            found.append((int(properties.headers["x-stream-offset"]), body.decode()))
            channel.basic_ack(method.delivery_tag)
            if body.decode() == last:
                break
    return found


def check_stream(cluster: ClusterProcess, history: History) -> None:
    """Offsets without a gap; each message once, or as often as it was sent; in order."""
    found = read_stream(cluster.brokers["b1"], list(history.confirmed)[-1])
    assert [offset for offset, _ in found] == list(range(len(found)))
    counts = Counter(body for _, body in found)
    assert not [body for body in history.confirmed if body not in counts]
    assert not [body for body, count in counts.items() if count > 1 + history.resent.get(body, 0)]
    numbers = [int(body.split()[1]) for body in counts]
    assert numbers == sorted(numbers)


class Upgrade:
    """Exchanges the code of brokers, as docs/operating/upgrade.md says, and notes which releases
    have met as home and copy of a group."""

    def __init__(self, cluster: ClusterProcess, traffic: Traffic) -> None:
        self.cluster = cluster
        self.traffic = traffic
        with channel_of(cluster.brokers["b1"]) as channel:
            for queue in LEDGERS:
                channel.queue_declare(queue, durable=True)
        self.entries = dict.fromkeys(LEDGERS, 0)
        self.known = definitions(cluster.brokers["b1"])
        self.met: dict[tuple[str, str], None] = {}

    def exchange(self, name: str, source: Path | None, drain: bool = True) -> None:
        """``drain``: as people should do it; else the broker is killed."""
        broker = self.cluster.brokers[name]
        assert isinstance(broker, ReleaseProcess)
        other = next(each for each in self.cluster.brokers if each != name)
        if drain:
            order(self.cluster, other, "broker", "drain", name, "--grace", "0s")
        else:
            broker.kill()
        broker.restart_with(source, SECONDS_MAX)
        self.cluster.wait_until_whole()
        if drain:
            order(self.cluster, other, "broker", "undrain", name)
        wait_for_copies(self.cluster, name)
        self.traffic.go_on()
        self.look(name, last_release() if source else __version__)

    def look(self, name: str, release: str) -> None:
        """The broker runs this release, and all know the same."""
        facts = call_api(self.cluster.brokers[name], "GET", "rhizome", "checkup")["facts"]
        assert facts[name]["version"] == release
        for group in groups(self.cluster, name):
            home = facts[group["home"]]["version"]
            for member in group["in_sync"]:
                self.met[home, facts[member["broker"]]["version"]] = None
        for broker in self.cluster.brokers.values():
            assert definitions(broker) == self.known
            self.commit(broker)

    def send_home_and_back(self, name: str) -> None:
        """Have a group's home moved to a broker and away again, which leaves a copy there."""
        known = groups(self.cluster, name)
        group = next(each for each in known if each["home"] != name and each["queues"])
        number, other = group["id"], group["home"]
        for broker in (name, other):
            self._move(number, broker, other)
        wait_until(lambda: name in self._members(number, other), "a copy", SECONDS_MAX)

    def _move(self, number: int, broker: str, at: str) -> None:
        def is_home() -> bool:
            found = [each["home"] for each in groups(self.cluster, at) if each["id"] == number]
            return found == [broker]

        order(self.cluster, at, "group", "move", str(number), "--broker", broker)
        wait_until(is_home, f"{broker} to be home", SECONDS_MAX)

    def _members(self, number: int, at: str) -> list[str]:
        found = [each for each in groups(self.cluster, at) if each["id"] == number]
        return [member["broker"] for each in found for member in each["in_sync"]]

    def commit(self, broker: BrokerProcess) -> None:
        """A transaction in one queue and one over both, through a broker of either release."""
        with channel_of(broker) as channel:
            channel.tx_select()
            for queues in (LEDGERS[:1], LEDGERS):
                for queue in queues:
                    channel.basic_publish("", queue, b"entry", PERSISTENT)
                    self.entries[queue] += 1
                channel.tx_commit()
            counts = {
                queue: channel.queue_declare(queue, passive=True).method.message_count
                for queue in LEDGERS
            }
        assert counts == self.entries


def old_and_new_were_home(upgrade: Upgrade) -> bool:
    old, new = last_release(), __version__
    return (old, new) in upgrade.met and (new, old) in upgrade.met


@pytest.mark.timeout(400)
def test_a_cluster_is_upgraded_broker_by_broker_and_taken_a_step_back(
    cluster: ClusterProcess, older: Path
) -> None:
    """The root last, as people are told; then one broker returns to the last release, with a store
    that this one has written. It is home of a group once, and then has a copy of a newer home."""
    traffic = Traffic(cluster, seed=1)
    traffic.start()
    upgrade = Upgrade(cluster, traffic)
    root = cluster.wait_for_root()
    first, second = (name for name in cluster.brokers if name != root)
    upgrade.exchange(first, None)
    upgrade.exchange(second, None)
    upgrade.exchange(root, None)
    upgrade.exchange(root, older)
    upgrade.send_home_and_back(root)
    upgrade.look(root, last_release())
    traffic.finish()


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_brokers_of_two_releases_are_exchanged_again_and_again(
    cluster: ClusterProcess, older: Path
) -> None:
    """Forth and back, drained or killed."""
    traffic = Traffic(cluster, seed=2)
    traffic.start()
    upgrade = Upgrade(cluster, traffic)
    chance = Random(3)
    for turn in range(SOAK_TURNS):
        source = older if turn % 2 else None
        for name in chance.sample(list(cluster.brokers), 3):
            upgrade.exchange(name, source, drain=chance.random() < 0.5)
    traffic.finish()
    assert old_and_new_were_home(upgrade), upgrade.met


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "kill", [True, pytest.param(False, marks=pytest.mark.soak)], ids=["killed", "stopped"]
)
def test_a_store_is_read_by_the_next_release_and_by_the_last(
    tmp_path: Path, older: Path, kill: bool
) -> None:
    broker = ReleaseProcess(tmp_path)
    broker.run_source(older)
    broker.launch()
    try:
        broker.wait_until_ready(SECONDS_MAX)
        declare_objects(broker)
        declare_stream(broker)
        known = definitions(broker)
        sent: list[str] = []
        for source in (None, older, None):
            sent += fill(broker, len(sent))
            if kill:
                broker.kill()
            broker.restart_with(source, SECONDS_MAX)
            assert definitions(broker) == known
            assert read_queue(broker) == sent
            assert [body for _, body in read_stream(broker, sent[-1])] == sent
    finally:
        broker.close()


def fill(broker: BrokerProcess, first: int) -> list[str]:
    """Publish to a queue and to the stream; what."""
    bodies = [f"message {number}" for number in range(first, first + FORTH)]
    properties = pika.BasicProperties(
        delivery_mode=2, message_id="one", headers={"number": 1, "deep": {"list": [1, "two"]}}
    )
    with channel_of(broker) as channel:
        channel.confirm_delivery()
        for body in bodies:
            channel.basic_publish("", "letters", body.encode(), properties)
            channel.basic_publish("", STREAM, body.encode(), properties)
    return bodies


def read_queue(broker: BrokerProcess) -> list[str]:
    """The bodies in a queue, in order; all of them go back."""
    found: list[str] = []
    with channel_of(broker) as channel:
        while (got := channel.basic_get("letters"))[0] is not None:
            assert got[1].headers == {"number": 1, "deep": {"list": [1, "two"]}}
            found.append(got[2].decode())
    return found
