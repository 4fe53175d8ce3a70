"""`rhizome bridge --parameters` between real brokers: parameters are put, changed and deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from rhizome.client import connect
from rhizome.testing.broker_process import BrokerProcess, wait_until
from rhizome.testing.cluster_process import ClusterProcess
from rhizome.testing.free_ports import free_port
from tests.process.applications.test_bridge import (
    BridgeProcess,
    count,
    declare,
    numbers_in,
    publish,
    stop_cleanly,
)
from tests.process.helpers import broker_with, call_api, run

pytestmark = pytest.mark.timeout(600)

SECONDS_MAX: Final = 120.0


class Following:
    """The program that follows the parameters, asked for at these ports in turn."""

    def __init__(self, directory: Path, *http_ports: int, login: tuple[str, ...] = ()) -> None:
        http = ",".join(f"127.0.0.1:{port}" for port in http_ports)
        self.program = BridgeProcess(
            directory / "bridges.txt",
            *("--parameters", "--http", http, "--look", "0.1", "--status", "0.2", *login),
            environment={"RHIZOME_BRIDGE_OWN": "amqp://guest:guest@"},
        )

    def start(self) -> None:
        self.program.start()
        self.until(lambda: bool(self.program.events("ready")), "the first look")

    def events(self, name: str, bridge: str) -> list[dict[str, Any]]:
        return [each for each in self.program.events(name) if each["bridge"] == bridge]

    def until(self, condition: Callable[[], bool], what: str) -> None:
        def met() -> bool:
            assert self.program.process.poll() is None, self.program.printed()
            return condition()

        try:
            wait_until(met, what, SECONDS_MAX)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.program.printed()}") from None

    def until_event(self, name: str, bridge: str, times: int = 1) -> dict[str, Any]:
        self.until(lambda: len(self.events(name, bridge)) >= times, f"{times} {name} of {bridge}")
        return self.events(name, bridge)[-1]

    def until_count(self, broker: BrokerProcess, queue: str, wanted: int) -> None:
        self.until(lambda: count(broker, queue) >= wanted, f"{wanted} messages in {queue}")


class Place(Following):
    """A cluster that has parameters, and another one."""

    def __init__(self, directory: Path) -> None:
        named = {"RHIZOME_CLUSTER_NAME": "alpha"}
        self.a = BrokerProcess(directory / "a", environment=named)
        self.b = broker_with(directory / "b", cluster_name="beta")
        # Nobody is at the first address.
        super().__init__(directory, free_port(), self.a.http_port)

    def start(self) -> None:
        self.a.start()
        self.b.start()
        super().start()

    def end(self) -> None:
        self.program.end()
        self.a.close()
        self.b.close()

    def put(self, name: str, **value: Any) -> None:
        put(self.a, name, **value)

    def delete(self, name: str) -> None:
        call_api(self.a, "DELETE", "parameters", "shovel", "/", name)


def put(broker: BrokerProcess, name: str, **value: Any) -> None:
    dashed = {key.replace("_", "-"): each for key, each in value.items()}
    call_api(broker, "PUT", "parameters", "shovel", "/", name, value=dashed)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.end()


def consumers(broker: BrokerProcess, queue: str) -> int:
    async def scenario() -> int:
        async with connect(broker.url) as connection, connection.channel() as channel:
            return (await channel.declare_queue(queue, passive=True)).consumer_count

    return run(scenario())


def test_parameters_are_followed_as_they_come_change_and_go(place: Place) -> None:
    """The queues are made, nothing is lost or doubled, and a wrong parameter hinders nobody."""
    wrong = {"src-uri": "amqp://", "src-qeue": "x", "dest-uri": place.b.url, "dest-queue": "x"}
    imported = {"component": "shovel", "vhost": "/", "name": "wrong", "value": wrong}
    call_api(place.a, "POST", "definitions", parameters=[imported])
    assert "did you mean 'src-queue'" in place.until_event("failed", "wrong")["text"]

    ends = {"src_uri": "amqp://", "src_queue": "orders", "dest_uri": place.b.url}
    place.put("orders", **ends, dest_queue="first", src_prefetch_count=50)
    place.until_event("running", "orders")
    publish(place.a, range(3000), key="orders")
    place.until_count(place.b, "first", 100)
    place.put("orders", **ends, dest_queue="second")
    place.until_event("changed", "orders")
    place.until_event("running", "orders", 2)
    publish(place.a, range(3000, 3100), key="orders")
    place.until_count(place.b, "second", 100)
    place.until(lambda: count(place.a, "orders") == 0, "the source to be empty")

    place.delete("orders")
    place.until_event("stopped", "orders", 2)
    first, second = numbers_in(place.b, "first"), numbers_in(place.b, "second")
    assert first + second == list(range(3100))
    assert consumers(place.a, "orders") == 0
    publish(place.a, range(5), key="orders")
    assert count(place.a, "orders") == 5

    state = place.until_event("status", "wrong")
    assert (state["state"], state["moved"]) == ("failed", 0)
    stop_cleanly(place.program)
    assert "guest:guest" not in place.program.printed()


def test_the_login_of_the_program_opens_no_other_vhost_and_its_user_needs_few_rights(
    tmp_path: Path,
) -> None:
    """A parameter from before that was refused, or imported, is told and not followed."""
    broker = BrokerProcess(tmp_path / "a")
    broker.start()
    for vhost in ("tenant", "secret"):
        call_api(broker, "PUT", "vhosts", vhost)
        call_api(
            broker, "PUT", "permissions", vhost, "guest", configure=".*", read=".*", write=".*"
        )
    call_api(broker, "PUT", "queues", "secret", "salaries", durable=True)
    call_api(
        broker, "POST", "exchanges", "secret", "amq.default", "publish",
        routing_key="salaries", payload="100", payload_encoding="string", properties={},
    )  # fmt: skip
    call_api(broker, "PUT", "users", "shovels", password="pw", tags="bridge")
    nothing = dict.fromkeys(("configure", "read", "write"), "^$")
    call_api(broker, "PUT", "permissions", "tenant", "shovels", **nothing)
    ends = {"dest-uri": "amqp:///tenant", "dest-queue": "loot"}
    rows = [
        ("theft", {**ends, "src-uri": "amqp:///secret", "src-queue": "salaries"}),
        ("own", {**ends, "src-uri": "amqp:///tenant", "src-queue": "mine"}),
        ("full", {**ends, "src-uri": f"{broker.url}tenant", "src-queue": "yours"}),
    ]
    parameters = [
        {"component": "shovel", "vhost": "tenant", "name": name, "value": value}
        for name, value in rows
    ]
    call_api(broker, "POST", "definitions", parameters=parameters)
    login = ("--user", "shovels", "--password", "pw")
    following = Following(tmp_path, broker.http_port, login=login)
    try:
        following.start()
        failed = following.until_event("failed", "tenant/theft")["text"]
        assert "'src-uri' means another vhost of this cluster without a login" in failed
        following.until_event("running", "tenant/own")
        following.until_event("running", "tenant/full")
        assert call_api(broker, "GET", "queues", "secret", "salaries")["messages"] == 1
        assert call_api(broker, "GET", "queues", "tenant", "loot")["messages"] == 0
        call_api(broker, "PUT", "users", "shovels", password="pw", tags="policymaker")
        failed = following.until_event("failed", "tenant/full")["text"]
        assert "hidden from the user of the HTTP API; give that user the tag bridge" in failed
        stop_cleanly(following.program)
    finally:
        following.program.end()
        broker.close()


def test_bridges_go_on_while_the_broker_that_has_the_parameters_is_dead(place: Place) -> None:
    declare(place.b, "here")
    place.put(
        "inner", src_uri=place.b.url, src_queue="here", dest_uri=place.b.url, dest_queue="there"
    )
    place.until_event("running", "inner")
    place.a.kill()
    place.until_event("lost", "")
    publish(place.b, range(100), key="here")
    place.until_count(place.b, "there", 100)
    place.a.start()
    place.until_event("connected", "")
    assert place.events("stopped", "inner") == []
    place.delete("inner")
    place.until_event("stopped", "inner")
    assert place.events("status", "inner")[-1]["state"] in ("running", "draining", "stopped")
    assert numbers_in(place.b, "there") == list(range(100))


def test_a_changed_key_of_an_exchange_takes_the_old_binding_away(place: Place) -> None:
    declare(place.b, "events")
    ends = {"src_uri": "amqp://", "src_exchange": "amq.topic", "dest_uri": place.b.url}
    place.put("ev", **ends, src_exchange_key="old.#", dest_queue="events")
    place.until_event("running", "ev")
    publish(place.a, range(10), exchange="amq.topic", key="old.x")
    place.until_count(place.b, "events", 10)
    place.put("ev", **ends, src_exchange_key="new.#", dest_queue="events")
    place.until_event("running", "ev", 2)
    publish(place.a, range(10, 20), exchange="amq.topic", key="old.x", mandatory=False)
    publish(place.a, range(20, 30), exchange="amq.topic", key="new.x")
    place.until_count(place.b, "events", 20)
    place.delete("ev")
    assert "rhizome queue delete bridge.ev" in place.until_event("advice", "ev")["text"]
    place.until_event("stopped", "ev", 2)
    assert numbers_in(place.b, "events") == [*range(10), *range(20, 30)]
    assert count(place.a, "bridge.ev") == 0


def test_parameters_of_a_cluster_are_followed_when_the_broker_that_told_them_is_dead(
    tmp_path: Path,
) -> None:
    """Both ends are the cluster itself, at whichever of its brokers is alive."""
    cluster = ClusterProcess(tmp_path / "cluster", primaries=3, seed=1)
    brokers = cluster.brokers
    following = Following(tmp_path, *(broker.http_port for broker in brokers.values()))
    ends = {"src_uri": "amqp://", "dest_uri": "amqp:///%2F"}
    try:
        cluster.start()
        following.start()
        put(brokers["b2"], "one", **ends, src_queue="a", dest_queue="b")
        following.until_event("running", "one")
        whole = following.until_event("status", "one")["from"]
        assert all(str(broker.port) in whole for broker in brokers.values())
        brokers["b1"].kill()
        # Until there is a root again.
        wait_until(lambda: _is_put(brokers["b2"], "two", **ends), "a change", SECONDS_MAX)
        following.until_event("running", "two")
        publish(brokers["b2"], range(100), key="c")
        following.until_count(brokers["b3"], "d", 100)
        assert numbers_in(brokers["b3"], "d") == list(range(100))
        stop_cleanly(following.program)
    finally:
        following.program.end()
        cluster.kill()


def _is_put(broker: BrokerProcess, name: str, **ends: str) -> bool:
    try:
        put(broker, name, **ends, src_queue="c", dest_queue="d")
    except (AssertionError, OSError):
        return False
    return True
