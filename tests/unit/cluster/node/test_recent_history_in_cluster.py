"""x-recent-history in a cluster: one history, wherever it is published and bound."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import ExchangeDeclare
from rhizome.amqp.properties import Properties
from rhizome.broker.routing.recent_history_exchange import history_name
from rhizome.testing.in_memory_broker import CoreClient
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster
from tests.unit.cluster.node.small_cluster import (
    PERSISTENT,
    bind,
    drain,
    exchange,
    group_of,
    private_queue,
    queue_at,
    refused,
    wait_for_copy,
)

HISTORY = history_name("recent")


@pytest.fixture
def cluster() -> CoreCluster:
    return make_cluster(3, 1)


def publish_everywhere(cluster: CoreCluster) -> list[bytes]:
    """Publish through each broker in turn, so that the order is known."""
    bodies = []
    for number in range(8):
        name = ("b1", "b2", "b3", "s1")[number % 4]
        body = b"%d" % number
        cluster[name].connect().publish("recent", "k", body, PERSISTENT)
        cluster.advance(500)
        bodies.append(body)
    return bodies


def bound_late(cluster: CoreCluster, client: CoreClient, queue: str) -> list[bytes]:
    bind(client, queue, "recent")
    cluster.advance(500)
    return drain(client, queue)


def test_all_queues_get_what_came_through_all_brokers(cluster: CoreCluster) -> None:
    client = cluster["b2"].connect()
    exchange(client, "recent", "x-recent-history", x_recent_history_length=5)
    cluster.advance(500)
    bodies = publish_everywhere(cluster)
    for home in ("b1", "b2"):
        queue_at(client, f"shared-{home}", home)
        cluster.advance(500)
        assert bound_late(cluster, client, f"shared-{home}") == bodies[-5:]
    for name in ("b1", "b2", "b3", "s1"):
        other = cluster[name].connect()
        for queue in (private_queue(other), private_queue(other, f"mine-{name}")):
            cluster.advance(500)
            assert bound_late(cluster, other, queue) == bodies[-5:], (name, queue)


def test_the_history_survives_its_home(cluster: CoreCluster) -> None:
    client = cluster["b2"].connect()
    exchange(client, "recent", "x-recent-history", x_recent_history_length=5)
    cluster.advance(500)
    wait_for_copy(cluster, HISTORY)
    bodies = publish_everywhere(cluster)
    home = group_of(cluster, HISTORY).home
    cluster[home].kill()
    cluster.advance(20_000)
    wait_for_copy(cluster, HISTORY)
    running = cluster.running()[0].connect()
    queue = private_queue(running)
    cluster.advance(500)
    assert bound_late(cluster, running, queue) == bodies[-5:]


def test_no_client_can_ask_for_a_history(cluster: CoreCluster) -> None:
    client, other = cluster["b2"].connect(), cluster["b3"].connect()
    exchange(client, "recent", "x-recent-history")
    cluster.advance(500)
    publish_everywhere(cluster)
    victim = private_queue(other)
    cluster.advance(500)
    client.publish("", HISTORY, b"forged", PERSISTENT)
    client.publish("", victim, b"direct", PERSISTENT)
    cluster.advance(500)
    assert drain(other, victim) == [b"direct"]


def test_a_copy_key_does_not_ask_for_a_history_either(cluster: CoreCluster) -> None:
    """Whoever may use the default exchange and has a private queue could read any history."""
    client = cluster["b2"].connect()
    exchange(client, "recent", "x-recent-history")
    cluster.advance(500)
    bodies = publish_everywhere(cluster)
    for name in ("b1", "b2", "b3", "s1"):
        other = cluster[name].connect()
        mine = private_queue(other)
        cluster.advance(500)
        other.publish("", mine, b"mine", Properties(headers={"CC": [HISTORY]}))
        cluster.advance(500)
        assert drain(other, mine) == [b"mine"], name
    assert bound_late(cluster, client, private_queue(client)) == bodies


def test_an_older_broker_must_be_upgraded_first(cluster: CoreCluster) -> None:
    client = cluster["b2"].connect()
    cluster["b2"].broker.older_peers["b3"] = None
    code, text = refused(client, ExchangeDeclare("recent", "x-recent-history"))
    assert code == 406
    assert "upgrade b3 first" in text
