"""What queues decide is decided once: the home dies, and its standby goes on alike (L3)."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import BasicAck, BasicReject
from rhizome.amqp.properties import Properties
from rhizome.broker.access.usage_limits import RABBITMQ_4_3
from rhizome.testing.in_memory_broker import CoreClient
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster
from tests.unit.cluster.node.small_cluster import PERSISTENT, bind, exchange, queue_at
from tests.unit.cluster.node.takeover.test_takeover_of_applications import (
    bodies_of,
    numbers,
    publish,
    wait_for_copy,
    wait_for_new_home,
)


@pytest.fixture
def cluster() -> CoreCluster:
    return make_cluster(3, 0)


def declared(cluster: CoreCluster, queue: str, **arguments: object) -> CoreClient:
    """A client of b2, and a durable queue at home on b1 that has a copy."""
    client = cluster["b2"].connect()
    queue_at(client, queue, "b1", durable=True, **arguments)
    wait_for_copy(cluster, queue)
    return client


def change_home(cluster: CoreCluster, queue: str) -> None:
    cluster["b1"].kill()
    wait_for_new_home(cluster, queue, "b1")


def rest_of(cluster: CoreCluster, client: CoreClient, queue: str) -> list[bytes]:
    client.consume(queue, no_ack=True)
    cluster.settle()
    return client.bodies()


def persistent(**properties: object) -> Properties:
    return Properties(delivery_mode=2, **properties)  # type: ignore[arg-type]


def test_first_in_first_out(cluster: CoreCluster) -> None:
    client = declared(cluster, "q")
    publish(client, "q", numbers(0, 9), PERSISTENT)
    cluster.settle()
    first = client.get("q", no_ack=False)
    assert first is not None
    client.send(BasicReject(first.tag, requeue=True))
    cluster.settle()
    change_home(cluster, "q")
    assert rest_of(cluster, client, "q") == numbers(0, 9)


def test_priorities(cluster: CoreCluster) -> None:
    client = declared(cluster, "q", x_max_priority=5)
    for number in range(6):
        publish(client, "q", [b"%d" % number], persistent(priority=number))
    cluster.settle()
    change_home(cluster, "q")
    publish(client, "q", [b"urgent"], persistent(priority=5))
    cluster.settle()
    assert rest_of(cluster, client, "q") == [b"5", b"urgent", b"4", b"3", b"2", b"1", b"0"]


def test_priorities_of_a_quorum_queue(cluster: CoreCluster) -> None:
    client = declared(cluster, "q", x_queue_type="quorum")
    for number in (0, 12, 3, 40):
        publish(client, "q", [b"%d" % number], persistent(priority=number))
    publish(client, "q", [b"none"], PERSISTENT)
    cluster.settle()
    change_home(cluster, "q")
    publish(client, "q", [b"urgent"], persistent(priority=31))
    cluster.settle()
    assert rest_of(cluster, client, "q") == [b"40", b"urgent", b"12", b"3", b"0", b"none"]


def test_the_default_delivery_limit_of_a_quorum_queue(cluster: CoreCluster) -> None:
    for member in cluster.running():
        member.broker.limits.be_compatible(RABBITMQ_4_3)
    client = declared(cluster, "q", x_queue_type="quorum")
    publish(client, "q", [b"poison"], PERSISTENT)
    cluster.settle()
    for count in range(21):
        if count == 10:
            change_home(cluster, "q")
        got = client.get("q", no_ack=False)
        assert got is not None, count
        client.send(BasicReject(got.tag, requeue=True))
        cluster.settle()
    assert client.get("q", no_ack=False) is None


def test_what_waits_for_its_retry_waits_at_the_next_home(cluster: CoreCluster) -> None:
    client = declared(
        cluster, "q", x_queue_type="quorum", x_delayed_retry_type="all", x_delayed_retry_min=60_000
    )
    publish(client, "q", [b"failed", b"next", b"held"], PERSISTENT)
    cluster.settle()
    failed = client.get("q", no_ack=False)
    assert failed is not None
    client.send(BasicReject(failed.tag, requeue=True))
    cluster.settle()
    assert client.get("q") is not None
    held = client.get("q", no_ack=False)
    assert held is not None
    change_home(cluster, "q")
    assert client.get("q") is None
    client.send(BasicAck(held.tag))
    for _ in range(55):
        cluster.advance(1_000)
    assert client.get("q") is None
    for _ in range(6):
        cluster.advance(1_000)
    again = client.get("q", no_ack=False)
    assert again is not None
    assert (again.body, again.headers["x-delivery-count"]) == (b"failed", 1)
    assert client.get("q") is None


def test_last_values(cluster: CoreCluster) -> None:
    client = declared(cluster, "q", x_last_value_key="share")
    for number, share in enumerate(["a", "b", "a", "c", "b"]):
        publish(client, "q", [b"%d" % number], persistent(headers={"share": share}))
    cluster.settle()
    change_home(cluster, "q")
    publish(client, "q", [b"new"], persistent(headers={"share": "c"}))
    cluster.settle()
    assert sorted(rest_of(cluster, client, "q")) == [b"2", b"4", b"new"]


@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish"])
def test_limited_length(cluster: CoreCluster, overflow: str) -> None:
    client = declared(cluster, "q", x_max_length=4, x_overflow=overflow)
    publish(client, "q", numbers(0, 9), PERSISTENT)
    cluster.settle()
    change_home(cluster, "q")
    expected = numbers(5, 9) if overflow == "drop-head" else numbers(0, 4)
    publish(client, "q", [b"more"], PERSISTENT)
    cluster.settle()
    if overflow == "drop-head":
        expected = [*expected[1:], b"more"]
    assert rest_of(cluster, client, "q") == expected


def test_age_counts_from_the_publish(cluster: CoreCluster) -> None:
    client = declared(cluster, "q", x_message_ttl=60_000)
    publish(client, "q", [b"old"], PERSISTENT)
    cluster.advance(40_000)
    change_home(cluster, "q")
    publish(client, "q", [b"young"], PERSISTENT)
    cluster.advance(25_000)
    assert rest_of(cluster, client, "q") == [b"young"]


def test_deliveries_are_counted(cluster: CoreCluster) -> None:
    """The third return is one too many, whoever was the home at the first."""
    client = declared(cluster, "q", x_queue_type="quorum", x_delivery_limit=2)
    publish(client, "q", [b"poison"], PERSISTENT)
    cluster.settle()
    for turn in range(3):
        message = client.get("q", no_ack=False)
        assert message is not None, turn
        client.send(BasicReject(message.tag, requeue=True))
        cluster.settle()
        if turn == 0:
            change_home(cluster, "q")
    assert client.get("q") is None


def test_dead_letters(cluster: CoreCluster) -> None:
    client = declared(
        cluster,
        "q",
        x_dead_letter_exchange="",
        x_dead_letter_routing_key="dead",
        x_message_ttl=9000,
    )
    queue_at(client, "dead", "b1", durable=True)
    wait_for_copy(cluster, "dead")
    publish(client, "q", numbers(0, 3), PERSISTENT)
    cluster.settle()
    first = client.get("q", no_ack=False)
    assert first is not None
    client.send(BasicReject(first.tag, requeue=False))
    cluster.settle()
    change_home(cluster, "q")
    cluster.advance(10_000)
    assert rest_of(cluster, client, "q") == []
    assert rest_of(cluster, client, "dead") == numbers(0, 3)


def test_delayed_messages(cluster: CoreCluster) -> None:
    client = declared(cluster, "q")
    exchange(client, "later", "x-delayed-message", x_delayed_type="direct")
    bind(client, "q", "later", "q")
    for number, delay in enumerate([50_000, 30_000]):
        body = b"%d" % number
        client.publish("later", "q", body, persistent(headers={"x-delay": delay}))
    cluster.settle()
    wait_for_copy(cluster, "amq.delayed")
    holder = next(each.name for each in cluster.running() if each.queue("amq.delayed").away is None)
    cluster[holder].kill()
    home = wait_for_new_home(cluster, "amq.delayed", holder)
    assert cluster[home].queue("amq.delayed").ready == 2
    other = cluster[home].connect()
    other.consume("q", no_ack=True)
    cluster.advance(35_000)
    assert other.bodies() == [b"1"]
    cluster.advance(25_000)
    assert other.bodies() == [b"0"]


def test_what_was_acked_stays_away(cluster: CoreCluster) -> None:
    client = declared(cluster, "q")
    publish(client, "q", numbers(0, 6), PERSISTENT)
    client.prefetch(3)
    client.consume("q")
    cluster.settle()
    held = client.deliveries()
    assert bodies_of(held) == numbers(0, 3)
    client.send(BasicAck(held[1].tag, True))
    cluster.settle()
    change_home(cluster, "q")
    client.close_socket()
    cluster.settle()
    again = cluster["b3"].connect()
    assert rest_of(cluster, again, "q") == numbers(2, 6)
