"""The HTTP API of a running broker, beside AMQP clients that it must not disturb."""

from __future__ import annotations

import http.client
import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ConnectionClosedByBroker
from prometheus_client.parser import text_string_to_metric_families

from rhizome.testing.broker_process import Broker, BrokerProcess, wait_until

Unique = Callable[[str], str]
pytestmark = pytest.mark.rhizome_only


class Api:
    """`api("GET", "queues", "/", name)`; raises unless the answer is a success."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def __call__(
        self,
        method: str,
        *parts: str,
        query: str = "",
        headers: dict[str, str] | None = None,
        **document: Any,
    ) -> Any:
        target = "/api/" + "/".join(quote(part, safe="") for part in parts)
        status, body = self.ask(method, target + query, document, headers or {})
        assert status < 300, f"{method} {target}: {status} {body!r}"
        return json.loads(body) if body else None

    def ask(
        self, method: str, target: str, document: dict[str, Any], headers: dict[str, str]
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.broker.host, self.broker.http_port, timeout=30)
        login = b64encode(f"{self.broker.user}:{self.broker.password}".encode()).decode()
        body = json.dumps(document) if document else None
        connection.request(method, target, body, {"Authorization": f"Basic {login}", **headers})
        answer = connection.getresponse()
        found = answer.status, answer.read()
        connection.close()
        return found


@pytest.fixture
def api(broker: Broker) -> Api:
    return Api(broker)


@pytest.fixture
def channel(broker: Broker) -> Iterator[BlockingChannel]:
    connection = BlockingConnection(pika.URLParameters(broker.url))
    yield connection.channel()
    if connection.is_open:
        connection.close()


def browse(api: Api, queue: str, query: str = "?count=100") -> list[Any]:
    found: list[Any] = api("GET", "rhizome", "queues", "/", queue, "messages", query=query)
    return found


def named_connection(broker: Broker, name: str) -> BlockingConnection:
    parameters = pika.URLParameters(broker.url)
    parameters.client_properties = {"connection_name": name}
    return BlockingConnection(parameters)


def rows_of(api: Api, name: str) -> list[Any]:
    return [row for row in api("GET", "connections") if row["user_provided_name"] == name]


def wait_for_the_end(connection: BlockingConnection) -> None:
    """Read until the broker closes the connection, which raises."""
    while True:
        connection.process_data_events(time_limit=5)


def test_a_connection_is_listed_at_once_and_gone_when_it_closes(
    broker: Broker, api: Api, unique: Unique
) -> None:
    name = unique("connection")
    connection = named_connection(broker, name)
    channel = connection.channel()
    queue = unique("queue")
    channel.queue_declare(queue, exclusive=True)
    channel.basic_consume(queue, lambda *_: None)
    rows = rows_of(api, name)
    assert [(row["user"], row["vhost"], row["state"]) for row in rows] == [
        (broker.user, "/", "running")
    ]
    assert rows[0]["channels"] == 1
    assert rows[0]["client_properties"]["product"].startswith("Pika")
    channels = api("GET", "connections", rows[0]["name"], "channels")
    assert [(row["number"], row["consumer_count"]) for row in channels] == [(1, 1)]
    consumers = [row for row in api("GET", "consumers") if row["queue"]["name"] == queue]
    assert consumers[0]["channel_details"]["connection_name"] == rows[0]["name"]
    assert api("GET", "queues", "/", queue)["exclusive"] is True
    connection.close()
    wait_until(lambda: not rows_of(api, name), "the connection to be gone from the list")


def test_deleting_a_connection_closes_it_with_320_and_the_reason(
    broker: Broker, api: Api, unique: Unique
) -> None:
    name = unique("connection")
    connection = named_connection(broker, name)
    row = rows_of(api, name)[0]
    api("DELETE", "connections", row["name"], headers={"X-Reason": "nightly maintenance"})
    with pytest.raises(ConnectionClosedByBroker) as closed:
        wait_for_the_end(connection)
    assert closed.value.reply_code == 320
    assert closed.value.reply_text == "CONNECTION_FORCED - nightly maintenance"
    wait_until(lambda: not rows_of(api, name), "the connection to be gone from the list")
    assert api.ask("DELETE", "/api/connections/" + quote(row["name"]), {}, {})[0] == 404


def test_browsing_changes_neither_order_nor_redelivered_flags(
    api: Api, channel: BlockingChannel, unique: Unique
) -> None:
    queue = unique("queue")
    channel.queue_declare(queue, durable=True)
    persistent = pika.BasicProperties(delivery_mode=2)
    for number in range(20):
        properties = persistent if number % 2 else None
        channel.basic_publish("", queue, str(number).encode(), properties)
    wait_until(lambda: len(browse(api, queue)) == 20, "all messages to be in the queue")
    for number in range(3):
        method, _, body = channel.basic_get(queue)
        assert method is not None
        assert body == str(number).encode()
    channel.basic_nack(0, multiple=True, requeue=True)
    wait_until(lambda: len(browse(api, queue)) == 20, "three messages to be back")
    first = browse(api, queue)
    assert [message["payload"] for message in first] == [str(number) for number in range(20)]
    assert [message["redelivered"] for message in first] == [True] * 3 + [False] * 17
    assert browse(api, queue) == first
    for number in range(20):
        method, _, body = channel.basic_get(queue, auto_ack=True)
        assert method is not None
        assert (body, method.redelivered) == (str(number).encode(), number < 3)
    assert browse(api, queue) == []
    channel.queue_delete(queue)


def test_browsing_shows_nothing_of_what_consumers_hold(
    api: Api, channel: BlockingChannel, unique: Unique
) -> None:
    queue = unique("queue")
    channel.queue_declare(queue)
    for body in (b"held", b"ready"):
        channel.basic_publish("", queue, body)
    assert channel.basic_get(queue)[2] == b"held"
    assert [message["payload"] for message in browse(api, queue)] == ["ready"]
    row = api("GET", "queues", "/", queue)
    assert (row["messages_ready"], row["messages_unacknowledged"]) == (1, 1)
    channel.queue_delete(queue)


def test_messages_published_over_http_reach_consumers_whole(
    api: Api, channel: BlockingChannel, unique: Unique
) -> None:
    queue = unique("queue")
    channel.queue_declare(queue)
    got: list[tuple[dict[str, Any], bytes]] = []
    channel.basic_consume(
        queue, lambda _, __, properties, body: got.append((properties.headers, body)), auto_ack=True
    )
    payload = "x" * 300_000
    answer = api(
        "POST",
        "exchanges",
        "/",
        "amq.default",
        "publish",
        routing_key=queue,
        payload=payload,
        properties={"headers": {"a": 1}},
    )
    assert answer == {"routed": True}
    channel.connection.process_data_events(time_limit=5)
    assert got == [({"a": 1}, payload.encode())]
    channel.queue_delete(queue)


def test_definitions_are_the_same_after_a_restart(own_broker: BrokerProcess) -> None:
    api = Api(own_broker)
    api("PUT", "vhosts", "v", description="second")
    api("PUT", "users", "alice", password="alice", tags="monitoring")
    api("PUT", "permissions", "v", "alice", configure="^a", write="^b", read="^c")
    api("PUT", "queues", "v", "q", durable=True, arguments={"x-max-length": 5})
    api("PUT", "exchanges", "v", "e", type="topic", durable=True)
    api("POST", "bindings", "v", "e", "e", "q", "q", routing_key="a.#")
    api("PUT", "policies", "v", "p", pattern="^q", definition={"message-ttl": 60000})
    api("PUT", "vhost-limits", "v", "max-queues", value=9)
    exported = api("GET", "definitions")
    own_broker.restart()
    assert api("GET", "definitions") == exported
    own_broker.kill()
    own_broker.start()
    assert api("GET", "definitions") == exported
    api("DELETE", "vhosts", "v")
    api("POST", "definitions", **exported)
    assert api("GET", "definitions")["queues"] == exported["queues"]


def test_a_backlog_on_disk_is_browsed_without_coming_back_into_memory(tmp_path: Path) -> None:
    small = {"RHIZOME_MEMORY_RESIDENT_BUDGET": "1MiB"}
    with BrokerProcess(tmp_path, environment=small) as process:
        api = Api(process)
        connection = BlockingConnection(pika.URLParameters(process.url))
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        for number in range(3000):
            mode = pika.BasicProperties(delivery_mode=1 + number % 2)
            channel.basic_publish("", "q", f"{number:04}".encode() + b"x" * 1000, mode)
        before = api("GET", "queues", "/", "q")
        assert before["messages_paged_out"] > 1000
        found = browse(api, "q", "?offset=2500&count=10&truncate=4")
        assert [message["payload"] for message in found] == [str(n) for n in range(2500, 2510)]
        after = api("GET", "queues", "/", "q")
        for name in ("messages_paged_out", "message_bytes_ram", "messages_ready"):
            assert after[name] == before[name]
        for number in range(3000):
            method, _, body = channel.basic_get("q", auto_ack=True)
            assert method is not None
            assert (body[:4], method.redelivered) == (f"{number:04}".encode(), False)
        connection.close()


def test_metrics_can_be_scraped(broker: Broker, channel: BlockingChannel, unique: Unique) -> None:
    queue = unique("queue")
    channel.queue_declare(queue)
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"x")
    connection = http.client.HTTPConnection(broker.host, broker.http_port, timeout=30)
    connection.request("GET", "/metrics/per-object")
    answer = connection.getresponse()
    assert answer.status == 200
    families = {
        family.name: family for family in text_string_to_metric_families(answer.read().decode())
    }
    connection.close()
    ready = {
        sample.labels["queue"]: sample.value
        for sample in families["rhizome_queue_messages_ready"].samples
    }
    assert ready[queue] == 1
    assert families["rhizome_connections"].samples[0].value >= 1
    assert families["rhizome_journal_sync_seconds"].type == "histogram"
    channel.queue_delete(queue)


def test_deleting_a_user_or_vhost_closes_its_connections(
    broker: Broker, api: Api, unique: Unique
) -> None:
    user, vhost = unique("user"), unique("vhost")
    api("PUT", "vhosts", vhost)
    api("PUT", "users", user, password="p", tags="")
    for place in ("/", vhost):
        api("PUT", "permissions", place, user, configure=".*", write=".*", read=".*")
    login = pika.PlainCredentials(user, "p")
    connections = [
        BlockingConnection(pika.ConnectionParameters(broker.host, broker.port, place, login))
        for place in (vhost, "/")
    ]
    for target, connection in zip((("vhosts", vhost), ("users", user)), connections, strict=True):
        api("DELETE", *target)
        with pytest.raises(ConnectionClosedByBroker) as closed:
            wait_for_the_end(connection)
        assert closed.value.reply_code == 320
