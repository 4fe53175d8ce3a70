"""The group of a stream ends with it: nobody waits for it, and nothing is kept of it."""

from __future__ import annotations

import pytest

from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import QueueDelete, QueueDeleteOk
from rhizome.cluster.state.groups_and_placement import STREAMS_FROM, STREAMS_TO
from rhizome.testing.in_memory_broker import CoreClient
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster
from tests.unit.cluster.node.small_cluster import PERSISTENT, confirmed


@pytest.fixture
def cluster() -> CoreCluster:
    return make_cluster(3, 1)


def stream(client: CoreClient, name: str, home: str) -> str:
    return client.declare(name, durable=True, x_queue_type="stream", x_group=home)


def test_deleted_streams_leave_nothing_behind(cluster: CoreCluster) -> None:
    """Every turn looks at all groups that a broker has something of."""
    client = cluster["s1"].connect()

    def kept() -> list[int]:
        nodes = [member.node for member in cluster.members.values()]
        takings = [
            peer_broker.forward_receiver
            for node in nodes
            for peer_broker in node.peer_brokers.values()
            if peer_broker.forward_receiver is not None
        ]
        groups = [len(node.edge.groups) for node in nodes]
        return [*groups, *[len(forward_receiver.attachments) for forward_receiver in takings]]

    before = kept()
    for number in range(5):
        stream(client, f"s{number}", "b1")
        client.publish("", f"s{number}", b"x", PERSISTENT)
        cluster.settle()
        client.call(QueueDelete(f"s{number}"), QueueDeleteOk)
    cluster.advance(500)
    assert kept() == before


def test_the_number_of_a_deleted_stream_may_be_given_again(cluster: CoreCluster) -> None:
    client = cluster["s1"].connect()
    client.confirm()
    groups: list[int] = []
    for number in (1, 2, 3):
        for member in cluster.members.values():
            member.node.state.groups.last_stream = STREAMS_TO
        stream(client, "s", "b1")
        groups.append(int(cluster["s1"].queue("s").definition.group))
        client.publish("", "s", b"x", PERSISTENT)
        cluster.settle()
        assert confirmed(client) == number
        assert cluster["b1"].queue("s").ready == 1
        client.call(QueueDelete("s"), QueueDeleteOk)
    assert groups == [STREAMS_FROM] * 3


def test_a_publish_to_a_stream_that_is_deleted_meanwhile_is_answered(
    cluster: CoreCluster,
) -> None:
    """Its home has forgotten the group when the publish comes; the edge has not yet."""
    client = cluster["s1"].connect()
    client.confirm()
    stream(client, "s", "b1")
    client.publish("", "s", b"0", PERSISTENT)
    cluster.settle()
    assert confirmed(client) == 1
    deleter = cluster["b1"].connect()
    deleter.connection.receive(method_frame(1, QueueDelete("s")))
    while cluster["b1"].has_queue("s"):
        for name in ("b1", "b2", "b3"):
            cluster[name].busy = True
            cluster[name].turn()
    assert cluster["s1"].has_queue("s")
    client.connection.receive(client.published("", "s", b"1", PERSISTENT))
    cluster["s1"].busy = True
    cluster.settle()
    cluster.advance(500)
    assert confirmed(client) == 2
    way = [each.way for each in cluster["s1"].node.edge.groups.values()]
    assert [len(each.messages) for each in way] == [0] * len(way)


def test_streams_that_were_deleted_while_a_broker_was_away_are_forgotten(
    cluster: CoreCluster,
) -> None:
    """It may learn of it from a snapshot, which has no word of what is gone."""
    client = cluster["b2"].connect()
    stream(client, "s", "b1")
    group = int(cluster["b2"].queue("s").definition.group)
    assert group in cluster["s1"].node.edge.groups
    node = cluster["s1"].node
    client.call(QueueDelete("s"), QueueDeleteOk)
    node.edge.group(group)
    index, data = int(node.applied.index), node.state.snapshot()
    node._install(index, data)
    assert group not in node.edge.groups
