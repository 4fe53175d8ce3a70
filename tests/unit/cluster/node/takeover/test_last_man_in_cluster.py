"""Brokers go one after the other: with last_man_standing the last one serves all that it has."""

from __future__ import annotations

import pytest

from rhizome.cluster.state.cluster_commands import WHOLE
from rhizome.testing.in_memory_broker import CoreClient
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster
from tests.unit.cluster.node.small_cluster import PERSISTENT, confirmed, queue_at

REST_MS = 5_000


def send(client: CoreClient, cluster: CoreCluster, queue: str) -> None:
    client.send_bytes(client.published("", queue, b"x", PERSISTENT))
    cluster.settle()


def copies(cluster: CoreCluster, queue: str) -> list[str]:
    member = cluster["b1"]
    group = member.node.state.group_of(member.queue(queue).definition)
    assert group is not None
    return [group.home, *(each.broker for each in group.in_sync if each.copy == WHOLE)]


def voters(cluster: CoreCluster) -> int:
    return len(cluster["b1"].node.consensus.registry.membership.voting())


@pytest.mark.parametrize("rest_ms", [REST_MS, 0])
def test_the_last_broker_serves_the_groups_of_all(rest_ms: int) -> None:
    cluster = make_cluster(3, copies=3, last_man_standing_ms=rest_ms)
    assert cluster.root() == "b1"
    client = cluster["b1"].connect()
    names = [f"q of {name}" for name in ("b1", "b2", "b3")]
    for name in names:
        queue_at(client, name, name[-2:], durable=True)
    cluster.advance_until(lambda: all(len(copies(cluster, name)) == 3 for name in names))
    client.confirm()
    for gone in ("b3", "b2"):
        send(client, cluster, f"q of {gone}")
        cluster[gone].kill()
        cluster.advance(REST_MS + 2_000)
    for name in ("b1", "b2", "b3"):
        send(client, cluster, f"q of {name}")
    cluster.advance(5_000)
    if rest_ms == 0:
        assert cluster.root() == ""
        assert confirmed(client) == 2
        return
    assert voters(cluster) == 1
    assert cluster.root() == "b1"
    assert confirmed(client) == 5
    assert [int(cluster["b1"].queue(f"q of {name}").ready) for name in ("b1", "b2", "b3")] == [
        1,
        2,
        2,
    ]
    for back in ("b2", "b3"):
        cluster[back].start()
    cluster.advance_until(lambda: voters(cluster) == 3)
    cluster.advance_until(lambda: len(copies(cluster, "q of b3")) == 3, 60_000)
