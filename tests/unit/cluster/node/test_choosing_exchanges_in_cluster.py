"""Exchanges that choose one destination, in a cluster: one of all, or of those that are near."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import ExchangeDeclare
from rhizome.testing.in_memory_broker import CoreClient
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster
from tests.unit.cluster.node.small_cluster import (
    bind,
    exchange,
    private_queue,
    queue_at,
    refused,
    returned,
)


@pytest.fixture
def cluster() -> CoreCluster:
    return make_cluster(3, 1)


def publish(cluster: CoreCluster, client: CoreClient, count: int) -> None:
    for number in range(count):
        client.publish("x", f"key-{number}", b"%d" % number, mandatory=True)
    cluster.settle()


def taken(client: CoreClient, queue: str) -> int:
    count = 0
    while client.get(queue) is not None:
        count += 1
    return count


@pytest.mark.parametrize("kind", ["x-random", "x-modulus-hash"])
def test_queues_everywhere_are_drawn_private_ones_too(cluster: CoreCluster, kind: str) -> None:
    client, other = cluster["b2"].connect(), cluster["s1"].connect()
    exchange(client, "x", kind)
    queue_at(client, "near", "b2")
    queue_at(client, "far", "b1")
    private = private_queue(other)
    cluster.settle()
    for queue in ("near", "far"):
        bind(client, queue, "x")
    bind(other, private, "x")
    cluster.advance(500)
    publish(cluster, client, 90)
    found = [taken(client, "near"), taken(client, "far"), taken(other, private)]
    assert sum(found) == 90
    assert min(found) >= 15, found


def test_only_queues_that_are_active_at_the_broker_are_drawn_locally(cluster: CoreCluster) -> None:
    client, near, nowhere = (cluster[name].connect() for name in ("b1", "b2", "s1"))
    exchange(client, "x", "x-local-random")
    for queue, home in (("a", "b1"), ("b", "b1"), ("c", "b2")):
        queue_at(client, queue, home)
        bind(client, queue, "x")
    cluster.advance(500)
    publish(cluster, client, 40)
    publish(cluster, near, 5)
    publish(cluster, nowhere, 3)
    found = [taken(client, queue) for queue in ("a", "b", "c")]
    assert found[0] + found[1] == 40
    assert min(found[:2]) > 5
    assert found[2] == 5
    assert len(returned(nowhere)) == 3


def test_an_older_broker_must_be_upgraded_first(cluster: CoreCluster) -> None:
    client = cluster["b2"].connect()
    cluster["b2"].broker.older_peers["b3"] = None
    code, text = refused(client, ExchangeDeclare("x", "x-random"))
    assert code == 406
    assert "upgrade b3 first" in text
    del cluster["b2"].broker.older_peers["b3"]
    exchange(client, "x", "x-random")
