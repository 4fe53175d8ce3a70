"""Consumers whose group came home to their broker and left it again."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import BasicAck, BasicCancel
from rhizome.cluster.state.cluster_commands import WHOLE, PlanMove
from rhizome.cluster.state.groups_and_placement import Group
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster
from tests.unit.cluster.node.small_cluster import PERSISTENT, queue_at


@pytest.fixture
def cluster() -> CoreCluster:
    return make_cluster(3, 0)


def group_of(cluster: CoreCluster) -> Group:
    member = cluster["b1"]
    found = member.node.state.group_of(member.queue("q").definition)
    assert found is not None
    return found


def move(cluster: CoreCluster, broker: str) -> None:
    """Let the group of q go to a broker, and have a whole standby there again."""

    def is_there() -> bool:
        group = group_of(cluster)
        return group.home == broker and any(each.copy == WHOLE for each in group.in_sync)

    group = group_of(cluster)
    cluster["b1"].node.propose(PlanMove(group.id, broker, group.epoch), None)
    cluster.advance_until(is_there)
    cluster.settle()


def test_consumer_that_came_home_and_left_again_is_attached_once(cluster: CoreCluster) -> None:
    client = cluster["b2"].connect()
    queue_at(client, "q", "b1", durable=True)
    client.consume("q", "tag")
    move(cluster, "b2")
    move(cluster, "b1")
    assert cluster["b1"].queue("q").consumer_count == 1
    client.publish("", "q", b"hello", PERSISTENT)
    cluster.advance(1_000)
    [delivery] = client.deliveries()
    client.send(BasicAck(delivery.tag))
    cluster.advance(1_000)
    assert cluster["b1"].queue("q").unacked == 0


def test_consumer_that_was_cancelled_at_home_is_not_attached_when_the_group_leaves(
    cluster: CoreCluster,
) -> None:
    client = cluster["b2"].connect()
    queue_at(client, "q", "b1", durable=True)
    client.consume("q", "tag")
    move(cluster, "b2")
    client.send(BasicCancel("tag"))
    move(cluster, "b1")
    assert cluster["b1"].queue("q").consumer_count == 0
