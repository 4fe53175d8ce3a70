"""What a broker does on somebody's behalf, in a cluster of real processes: moving and browsing."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import quote

import pytest

from rhizome.client import Properties, connect
from rhizome.testing.broker_process import BrokerProcess, wait_until
from rhizome.testing.cluster_process import ClusterProcess
from tests.process.cluster.test_takeover import wait_for_copies
from tests.process.helpers import COMMAND_SECONDS_MAX, PERSISTENT, call_api, run

pytestmark = pytest.mark.timeout(600)

SCENARIO_SECONDS = 240.0
MESSAGES = 300
Unique = Callable[[str], str]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    cluster = ClusterProcess(tmp_path_factory.mktemp("cluster"), primaries=3)
    cluster.start()
    yield cluster
    cluster.make_whole()
    assert cluster.stop() == [0] * 3, cluster.printed()


@pytest.fixture
def cluster(started: ClusterProcess) -> ClusterProcess:
    started.make_whole()
    return started


def ask(broker: BrokerProcess, method: str, *parts: str, **document: Any) -> tuple[int, Any]:
    """Status and answer of one request."""
    connection = HTTPConnection(broker.host, broker.http_port, timeout=COMMAND_SECONDS_MAX)
    login = b64encode(f"{broker.user}:{broker.password}".encode()).decode()
    target = "/api/" + "/".join(quote(part, safe="") for part in parts)
    if method == "GET":
        target += "?count=1000"
    body = json.dumps(document) if document else None
    connection.request(method, target, body, {"Authorization": f"Basic {login}"})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, json.loads(text) if text else None


def declare(cluster: ClusterProcess, name: str, home: str, **arguments: Any) -> None:
    more = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    arguments = {"x-group": home, **more}
    at = cluster.brokers["b1"]
    call_api(at, "PUT", "queues", "/", name, durable=True, arguments=arguments)


def move(broker: BrokerProcess, source: str, to: str) -> tuple[int, Any]:
    return ask(broker, "POST", "rhizome", "queues", "/", source, "move", to=to)


def browse(broker: BrokerProcess, queue: str) -> list[Any]:
    status, found = ask(broker, "GET", "rhizome", "queues", "/", queue, "messages")
    assert status == 200, found
    rows: list[Any] = found
    return rows


async def publish(broker: BrokerProcess, queue: str, *sent: Properties) -> None:
    async with (
        connect(broker.url) as connection,
        connection.channel(confirms=True) as channel,
    ):
        for number, properties in enumerate(sent):
            await channel.publish(b"%d" % number, routing_key=queue, properties=properties)


def test_messages_go_straight_to_a_queue_whose_home_is_another_broker(
    cluster: ClusterProcess, unique: Unique
) -> None:
    dead, orders, payroll = unique("dead"), unique("orders"), unique("payroll")
    declare(cluster, dead, "b1")
    declare(cluster, orders, "b2")
    declare(cluster, payroll, "b3")
    numbered = Properties(delivery_mode=2, headers={"x-producer": "p", "x-sequence": 1})
    of_guest = Properties(delivery_mode=2, user_id="guest")
    copied = Properties(delivery_mode=2, headers={"n": 1})
    run(publish(cluster.brokers["b3"], orders, numbered), SCENARIO_SECONDS)
    assert move(cluster.brokers["b3"], orders, dead) == (200, {"moved": 1, "left": 0})
    run(publish(cluster.brokers["b3"], dead, of_guest, copied), SCENARIO_SECONDS)
    assert move(cluster.brokers["b2"], dead, orders) == (200, {"moved": 3, "left": 0})
    assert len(browse(cluster.brokers["b1"], orders)) == 3
    assert browse(cluster.brokers["b1"], dead) == []


def test_dead_letters_are_searched_and_redriven_from_any_broker(
    cluster: ClusterProcess, unique: Unique
) -> None:
    dead, orders = unique("dead"), unique("orders")
    declare(cluster, dead, "b1")
    declare(cluster, orders, "b2")
    at = cluster.brokers["b3"]
    policy = {"dead-letter-exchange": "", "dead-letter-routing-key": dead}
    named = unique("to-dead")
    call_api(at, "PUT", "policies", "/", named, pattern=f"^{orders}$", definition=policy)
    sent = [Properties(delivery_mode=2, headers={"n": number}) for number in range(4)]
    run(publish(at, orders, *sent), SCENARIO_SECONDS)
    taken = {"count": 4, "ackmode": "reject_requeue_false"}
    assert len(call_api(at, "POST", "queues", "/", orders, "get", **taken)) == 4
    wait_until(lambda: len(browse(at, dead)) == 4, "the dead letters")
    order = {"action": "redrive", "where": "death.reason = 'rejected' and headers.n in (1, 2)"}
    path = ("rhizome", "queues", "/", dead, "messages")
    for dry_run in (True, False):
        status, said = ask(at, "POST", *path, **order, dry_run=dry_run)
        assert (status, said["done"], said["to"]) == (200, 2, {orders: 2})
    assert [each["properties"]["headers"]["n"] for each in browse(at, orders)] == [1, 2]
    left = browse(at, dead)
    dropped = {"action": "drop", "ids": [left[0]["id"]]}
    status, said = ask(cluster.brokers["b2"], "POST", *path, **dropped)
    assert (status, said["done"], said["left"]) == (200, 1, 1)


def test_a_vhost_is_traced_at_all_brokers_and_each_message_once(
    cluster: ClusterProcess, unique: Unique
) -> None:
    queue, traces = unique("q"), unique("traces")
    declare(cluster, queue, "b1")
    declare(cluster, traces, "b2")
    at = cluster.brokers["b3"]
    bound = {"routing_key": "#", "arguments": {}}
    call_api(at, "POST", "bindings", "/", "e", "amq.rabbitmq.trace", "q", traces, **bound)
    assert ask(at, "PUT", "vhosts", "/", tracing=True)[0] == 204
    for broker in cluster.brokers.values():
        assert ask(broker, "GET", "vhosts", "/")[1]["tracing"] is True

    async def pass_one_on() -> None:
        async with (
            connect(cluster.brokers["b2"].url) as other,
            other.channel() as reader,
            reader.consume(queue) as deliveries,
        ):
            await publish(at, queue, PERSISTENT)
            async for delivery in deliveries:
                await delivery.ack()
                break

    run(pass_one_on(), SCENARIO_SECONDS)
    wait_until(lambda: len(browse(at, traces)) >= 2, "both traces")
    found = {each["routing_key"]: each["properties"]["headers"] for each in browse(at, traces)}
    assert set(found) == {"publish.", f"deliver.{queue}"}
    assert found["publish."]["routed_queues"] == [queue]
    assert [found[key]["node"] for key in sorted(found)] == ["b2", "b3"]
    assert ask(cluster.brokers["b1"], "PUT", "vhosts", "/", tracing=False)[0] == 204
    run(publish(at, queue, PERSISTENT), SCENARIO_SECONDS)
    assert len(browse(at, traces)) == 2


def test_other_keys_lead_nowhere_at_another_home(cluster: ClusterProcess, unique: Unique) -> None:
    inbox, aside, payroll = unique("inbox"), unique("aside"), unique("payroll")
    exchange = unique("in")
    declare(cluster, inbox, "b1")
    declare(cluster, aside, "b2")
    declare(cluster, payroll, "b3")
    at = cluster.brokers["b1"]
    call_api(at, "PUT", "exchanges", "/", exchange, type="fanout", durable=True)
    call_api(at, "POST", "bindings", "/", "e", exchange, "q", inbox, routing_key="", arguments={})

    async def send() -> None:
        async with connect(at.url) as connection, connection.channel(confirms=True) as channel:
            properties = Properties(delivery_mode=2, headers={"CC": [payroll]})
            await channel.publish(b"m", exchange=exchange, routing_key="k", properties=properties)

    run(send(), SCENARIO_SECONDS)
    assert move(at, inbox, aside) == (200, {"moved": 1, "left": 0})
    [found] = browse(at, aside)
    assert (found["exchange"], found["routing_key"]) == (exchange, "k")
    assert found["properties"]["headers"] == {"CC": [payroll]}
    assert browse(at, payroll) == []


def test_what_another_home_refuses_stays(cluster: ClusterProcess, unique: Unique) -> None:
    source, full = unique("source"), unique("full")
    declare(cluster, source, "b1")
    declare(cluster, full, "b2", max_length=1, overflow="reject-publish")
    run(publish(cluster.brokers["b1"], source, PERSISTENT, PERSISTENT), SCENARIO_SECONDS)
    status, said = move(cluster.brokers["b3"], source, full)
    assert (status, said["reason"]) == (400, f"moved 1, then queue '{full}' refused a message")
    assert [each["payload"] for each in browse(cluster.brokers["b1"], source)] == ["1"]
    assert [each["payload"] for each in browse(cluster.brokers["b1"], full)] == ["0"]


def test_a_home_that_is_killed_while_it_moves_loses_nothing(
    cluster: ClusterProcess, unique: Unique
) -> None:
    source, target = unique("source"), unique("target")
    declare(cluster, source, "b1")
    declare(cluster, target, "b2")
    wait_for_copies(cluster)
    sent = [PERSISTENT] * MESSAGES
    run(publish(cluster.brokers["b1"], source, *sent), SCENARIO_SECONDS)
    asked = cluster.brokers["b1"]

    def moving() -> None:
        try:
            move(asked, source, target)
        except (OSError, HTTPException):
            pass  # it was killed

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(moving)
        wait_until(lambda: len(browse(cluster.brokers["b2"], target)) > 10, "some to be moved")
        cluster.brokers["b1"].kill()
        done.result()

    def whole() -> bool:
        at = cluster.brokers["b2"]
        return ask(at, "GET", "rhizome", "queues", "/", source, "messages")[0] == 200

    wait_until(whole, "another home", SCENARIO_SECONDS)
    left = browse(cluster.brokers["b2"], source)
    there = [each["payload"] for each in browse(cluster.brokers["b2"], target)]
    kept = {each["payload"] for each in left}
    assert set(there) | kept == {str(number) for number in range(MESSAGES)}
    assert len(there) == len(set(there))
    assert len(kept & set(there)) <= 1, kept & set(there)


@pytest.mark.parametrize("at", ["b1", "b2"])
def test_a_private_queue_is_shown_to_nobody_whichever_broker_is_asked(
    cluster: ClusterProcess, unique: Unique, at: str
) -> None:
    """Its replies are for the connection that has it, and for no administrator either."""
    queue = unique("replies")

    async def scenario() -> None:
        async with (
            connect(cluster.brokers["b1"].url) as connection,
            connection.channel(confirms=True) as channel,
        ):
            await channel.declare_queue(queue, exclusive=True)
            await channel.publish(b"secret", routing_key=queue)
            asked = cluster.brokers[at]
            status, said = ask(asked, "GET", "rhizome", "queues", "/", queue, "messages")
            assert (status, "cannot obtain exclusive access" in said["reason"]) == (400, True)
            other = unique("other")
            declare(cluster, other, "b2")
            got = {"count": 1, "ackmode": "ack_requeue_true"}
            for method, parts, document in (
                ("POST", ("queues", "/", queue, "get"), got),
                ("POST", ("rhizome", "queues", "/", queue, "move"), {"to": other}),
                ("POST", ("rhizome", "queues", "/", other, "move"), {"to": queue}),
                ("DELETE", ("queues", "/", queue, "contents"), {}),
                ("DELETE", ("queues", "/", queue), {}),
                ("POST", ("bindings", "/", "e", "amq.fanout", "q", queue), {"routing_key": "x"}),
            ):
                status, said = ask(asked, method, *parts, **document)
                assert status in (400, 404), (method, parts, status, said)
            assert (await channel.declare_queue(queue, exclusive=True)).message_count == 1

    run(scenario(), SCENARIO_SECONDS)
