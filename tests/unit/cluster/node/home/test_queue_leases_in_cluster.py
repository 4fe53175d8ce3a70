"""Leases of queues that are at home elsewhere, and of homes that change (A2, L2, L3)."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import BasicAck, BasicConsume, BasicConsumeOk
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster
from rhizome.testing.queue_lease_client import LeaseClient, entries_of
from tests.unit.cluster.node.held_standby import Standby
from tests.unit.cluster.node.small_cluster import PERSISTENT, queue_at

HOME, NEXT = "b3", "b2"
EVERYWHERE = ("b1", "b2", "b3", "s1")


@pytest.fixture
def cluster() -> CoreCluster:
    return make_cluster(3, 1)


def followed(cluster: CoreCluster, *bodies: bytes) -> Standby:
    """A queue at b3 that b2 has a copy of."""
    client = cluster["b1"].connect()
    queue_at(client, "q", HOME, durable=True)
    standby = Standby(cluster, "q", NEXT)
    client.send_bytes(b"".join(client.published("", "q", body, PERSISTENT) for body in bodies))
    cluster.settle()
    return standby


def counts(cluster: CoreCluster, at: str) -> tuple[int, int]:
    queue = cluster[at].queue("q")
    assert queue.away is None
    return int(queue.ready), int(queue.unacked)


@pytest.mark.parametrize("at", EVERYWHERE)
def test_lease_is_used_through_any_broker(cluster: CoreCluster, at: str) -> None:
    followed(cluster, b"a", b"b", b"c")
    lease = LeaseClient(cluster[at].connect())
    assert lease.take(2) == (0, 2)
    assert counts(cluster, HOME) == (1, 2)
    for reader in EVERYWHERE:
        assert LeaseClient(cluster[reader].connect()).bodies(0, 2) == [b"a", b"b"]
    assert lease.told(settle=1)["x-lease-first"] == 1
    assert "can't go on from 7" in lease.error(take=1, **{"from": 7})
    lease.told(end=True)
    assert counts(cluster, HOME) == (2, 0)
    assert cluster[HOME].node.broker.leases.queues == {}


@pytest.mark.parametrize("at", EVERYWHERE)
def test_lease_goes_on_at_the_next_home(cluster: CoreCluster, at: str) -> None:
    standby = followed(cluster, b"a", b"b", b"c", b"d")
    client = cluster[at].connect()
    lease = LeaseClient(client)
    lease.take(3)
    lease.told(settle=1)
    held = client.get("q", no_ack=False)
    assert held is not None
    standby.take_over()
    assert counts(cluster, NEXT) == (0, 3)
    assert lease.bodies(1, 3) == [b"b", b"c"]
    client.send(BasicAck(held.tag))
    lease.told(settle=3)
    assert counts(cluster, NEXT) == (0, 0)
    assert all(each.node.broker.leases.readers == {} for each in cluster.running())


@pytest.mark.parametrize("at", ["b1", "b3", "s1"])
def test_what_was_taken_but_not_copied_was_never_told(cluster: CoreCluster, at: str) -> None:
    standby = followed(cluster, b"a", b"b")
    standby.hold()
    client = cluster[at].connect()
    client.send(
        BasicConsume("q", "t", no_ack=True, arguments={"x-lease": "lease", "x-lease-take": 1})
    )
    client.pick(BasicConsumeOk)
    assert client.deliveries() == []
    standby.take_over()
    (told,) = client.deliveries()
    assert told.headers["x-lease-next"] == 1, "the next home was asked again"
    assert counts(cluster, NEXT) == (1, 1)


@pytest.mark.parametrize("at", EVERYWHERE)
def test_reader_goes_on_when_the_home_changes(cluster: CoreCluster, at: str) -> None:
    bodies = [b"%d" % number * 150_000 for number in range(10)]
    standby = followed(cluster, *bodies)
    LeaseClient(cluster["b1"].connect()).take(10)
    client = cluster[at].connect()
    client.stop_reading()
    arguments: dict[str, object] = {"x-lease": "lease", "x-lease-read": 0, "x-lease-until": 10}
    client.send(BasicConsume("q", "t", no_ack=True, arguments=arguments))
    standby.take_over()
    client.go_on_reading()
    cluster.settle()
    found = {
        entry.position: entry.body
        for delivery in client.deliveries()
        for entry in entries_of(delivery)
    }
    assert [found[position] for position in range(10)] == bodies


def test_lease_goes_through_several_moves_and_expires_at_last(cluster: CoreCluster) -> None:
    standby = followed(cluster, b"a", b"b")
    LeaseClient(cluster["b1"].connect()).take(2, keep_ms=20_000)
    standby.take_over()
    # The group goes back to where it belongs, in good order (G11).
    cluster.advance_until(lambda: standby.group.home == HOME)
    cluster.advance(1_000)
    assert counts(cluster, HOME) == (0, 2)
    assert LeaseClient(cluster["s1"].connect()).bodies(0, 2) == [b"a", b"b"]
    cluster.advance(12_000)
    assert counts(cluster, standby.group.home) == (0, 2), "reading was a sign of life"
    cluster.advance(12_000)
    assert counts(cluster, standby.group.home) == (2, 0)
    assert "has expired" in LeaseClient(cluster["s1"].connect()).error(settle=1)


def test_copy_that_catches_up_has_the_leases(cluster: CoreCluster) -> None:
    standby = followed(cluster, b"a", b"b")
    cluster[NEXT].kill()
    cluster.settle()
    cluster.advance_until(lambda: not standby.log.waiting and NEXT not in members(standby))
    LeaseClient(cluster["b1"].connect()).take(1)
    cluster[NEXT].start()
    cluster.advance_until_ready()
    again = Standby(cluster, "q", NEXT)
    again.take_over()
    assert counts(cluster, NEXT) == (1, 1)
    assert LeaseClient(cluster["b1"].connect()).bodies(0, 1) == [b"a"]


def members(standby: Standby) -> list[str]:
    return [each.broker for each in standby.group.in_sync]
