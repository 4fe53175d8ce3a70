"""Homes that live and can't serve everybody: their applications go on elsewhere."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import BasicAck
from rhizome.testing.in_memory_broker import CoreClient
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster
from tests.unit.cluster.node.small_cluster import (
    PERSISTENT,
    confirmed,
    group_of,
    queue_at,
    wait_for_copy,
    wait_for_new_home,
)

HOME = "b3"


@pytest.fixture
def cluster() -> CoreCluster:
    made = make_cluster(3, 1)
    assert made.root() == "b1"
    queue_at(made["b1"].connect(), "q", HOME, durable=True)
    wait_for_copy(made, "q")
    return made


def publish(client: CoreClient, first: int, end: int) -> None:
    for number in range(first, end):
        client.publish("", "q", b"%d" % number, PERSISTENT)


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


@pytest.mark.parametrize("at", ["b2", "s1"])
def test_applications_of_an_edge_that_cannot_reach_a_home_go_on(
    cluster: CoreCluster, at: str
) -> None:
    publisher, consumer = cluster[at].connect(), cluster[at].connect()
    publisher.confirm()
    consumer.consume("q")
    publish(publisher, 0, 5)
    held = consumer.deliveries()
    assert [each.body for each in held] == numbers(0, 5)
    cluster.cut(at, HOME)
    publish(publisher, 5, 10)
    consumer.send(BasicAck(held[2].tag, multiple=True))
    assert wait_for_new_home(cluster, "q", HOME) in ("b1", "b2")
    cluster.advance_until(lambda: confirmed(publisher) == 10)
    more = consumer.deliveries()
    assert [(each.body, each.redelivered) for each in more] == [
        (body, False) for body in numbers(5, 10)
    ]
    consumer.send(BasicAck(0, multiple=True))
    home = group_of(cluster, "q").home
    cluster.advance_until(lambda: cluster[home].queue("q").unacked == 0)
    assert cluster[home].queue("q").ready == 0


def test_root_that_is_the_home_and_that_an_edge_cannot_reach_is_replaced() -> None:
    """Without a link with the root the edge has no lease: it serves nobody."""
    cluster = make_cluster(3)
    root = cluster.root()
    queue_at(cluster[root].connect(), "q", root, durable=True)
    wait_for_copy(cluster, "q")
    client = cluster["b3"].connect()
    client.confirm()
    client.consume("q", no_ack=True)
    cluster.cut(root, "b3")
    cluster.advance_until(lambda: cluster["b3"].node.isolated)
    publish(client, 0, 3)
    cluster.advance_until(lambda: cluster.root() == "b2")
    cluster.advance_until(lambda: confirmed(client) == 3)
    assert client.bodies() == numbers(0, 3)
    assert group_of(cluster, "q").home == "b2"


def test_group_comes_back_when_the_link_has_been_there_for_a_while(cluster: CoreCluster) -> None:
    cluster.cut("b2", HOME)
    wait_for_new_home(cluster, "q", HOME)
    cluster.advance(20_000)
    assert group_of(cluster, "q").home != HOME
    cluster.heal()
    cluster.advance_until(lambda: group_of(cluster, "q").home == HOME, 60_000)


def test_publishers_of_a_home_with_a_full_disk_go_on_elsewhere(cluster: CoreCluster) -> None:
    publisher, consumer = cluster["s1"].connect(), cluster["s1"].connect()
    publisher.confirm()
    consumer.consume("q", no_ack=True)
    cluster[HOME].broker.block("low on disk")
    cluster[HOME].broker.disk_full = True
    publish(publisher, 0, 5)
    assert confirmed(publisher) == 0
    wait_for_new_home(cluster, "q", HOME)
    cluster.advance_until(lambda: confirmed(publisher) == 5)
    assert consumer.bodies() == numbers(0, 5)
    cluster.advance(20_000)
    assert group_of(cluster, "q").home != HOME
    cluster[HOME].broker.disk_full = False
    cluster[HOME].broker.unblock()
    cluster.advance_until(lambda: group_of(cluster, "q").home == HOME, 60_000)


def test_publishers_wait_for_a_copy_that_messages_fill_the_disk_of(cluster: CoreCluster) -> None:
    """A copy takes what is published at its home: only there can it be held back."""
    (standby,) = (member.broker for member in group_of(cluster, "q").in_sync)
    assert cluster[HOME].node.alarm_of_copies() == ""
    cluster[standby].broker.disk_full = cluster[standby].broker.backlog_fills_disk = True
    cluster[standby].node.tell_news()
    cluster[standby].busy = True
    cluster.settle()
    assert f"low on disk at {standby}:" in cluster[HOME].node.alarm_of_copies()
    (other,) = {"b1", "b2", "b3"} - {HOME, standby}
    assert cluster[other].node.alarm_of_copies() == "", "it has no copy of anything there"
    cluster[standby].kill()
    cluster.advance_until(lambda: not group_of(cluster, "q").in_sync)
    assert cluster[HOME].node.alarm_of_copies() == "", "nobody waits for a copy that is left out"


def test_root_tells_the_log_and_people_why_a_group_moves(cluster: CoreCluster) -> None:
    cluster.cut("b2", HOME)
    impaired_homes = cluster["b1"].node.takeover_driver.takeover.moves.impaired_homes
    cluster.advance_until(lambda: bool(impaired_homes.troubled))
    told = impaired_homes.notices(cluster["b1"].node.now_ms)
    assert all(each.startswith("b2 and b3 can't reach each other") for each in told)
