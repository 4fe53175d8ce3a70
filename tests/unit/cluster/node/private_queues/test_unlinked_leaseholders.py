"""Private bindings and primaries that hold a lease but have no link (A3)."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import QueueBind, QueueBindOk
from rhizome.cluster.private_queues import meta_bindings
from rhizome.cluster.private_queues.unlinked_leaseholders import PATIENCE_MS
from rhizome.testing.in_memory_broker import CoreClient
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster
from tests.unit.cluster.node.small_cluster import private_queue


@pytest.fixture
def cluster() -> CoreCluster:
    made = make_cluster(3, 0)
    # The first root is the most senior: the others are told who has a lease.
    assert made.root() == "b1"
    return made


def asks_to_bind(client: CoreClient) -> None:
    queue = private_queue(client)
    client.consume(queue, no_ack=True)
    client.send(QueueBind(queue, "amq.fanout"))


def is_bound(client: CoreClient) -> bool:
    return any(isinstance(event, QueueBindOk) for event in client.events.get(1, []))


def test_a_binding_waits_for_a_primary_that_has_a_lease_and_no_link(cluster: CoreCluster) -> None:
    cluster.cut("b2", "b3")
    subscriber = cluster["b3"].connect()
    asks_to_bind(subscriber)
    cluster.advance(3_000)
    assert not is_bound(subscriber)
    cluster.heal()
    cluster.advance_until(lambda: is_bound(subscriber))
    cluster["b2"].connect().publish("amq.fanout", "", b"follows the answer")
    assert subscriber.bodies() == [b"follows the answer"]


def test_a_binding_waits_for_a_link_that_breaks_meanwhile(
    cluster: CoreCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was told on it may never have come."""
    subscriber = cluster["b3"].connect()
    with monkeypatch.context() as patched:
        patched.setattr(meta_bindings.MetaBindings, "acknowledge", lambda self, name: None)
        asks_to_bind(subscriber)
    cluster.cut("b2", "b3")
    cluster.cut("b1", "b3")
    assert not is_bound(subscriber)
    cluster.heal()
    cluster.advance_until(lambda: is_bound(subscriber))


def test_a_binding_waits_for_the_dead_until_their_lease_is_over(cluster: CoreCluster) -> None:
    cluster["b2"].kill()
    subscriber = cluster["b3"].connect()
    asks_to_bind(subscriber)
    assert not is_bound(subscriber)
    cluster.advance_until(lambda: is_bound(subscriber), PATIENCE_MS - 1_000)


def test_a_binding_does_not_wait_for_ever(cluster: CoreCluster) -> None:
    cluster.cut("b2", "b3")
    subscriber = cluster["b3"].connect()
    asks_to_bind(subscriber)
    cluster.advance(PATIENCE_MS - 1_000)
    assert not is_bound(subscriber)
    cluster.advance(2_000)
    assert is_bound(subscriber)


def test_a_binding_at_the_root_waits_too(cluster: CoreCluster) -> None:
    cluster["b2"].kill()
    subscriber = cluster["b1"].connect()
    asks_to_bind(subscriber)
    assert not is_bound(subscriber)
    cluster.advance_until(lambda: is_bound(subscriber), PATIENCE_MS - 1_000)


def published_after_isolation(cluster: CoreCluster) -> list[bytes]:
    """b2 is cut off, comes back to its lease, and a little later to its link with b3."""
    publisher = cluster["b2"].connect()
    subscriber = cluster["b3"].connect()
    cluster.cut("b2", "b1")
    cluster.cut("b2", "b3")
    cluster.advance_until(lambda: cluster["b2"].node.isolated)
    asks_to_bind(subscriber)
    cluster.advance_until(lambda: is_bound(subscriber))
    publisher.publish("amq.fanout", "", b"published in isolation")
    cluster.heal()
    cluster.cut("b2", "b3")
    cluster.advance_until(lambda: not cluster["b2"].node.isolated)
    cluster.advance(1_000)
    cluster.heal()
    cluster.advance(3_000)
    return subscriber.bodies()


def test_a_lease_that_comes_back_admits_publishes_once_all_is_heard(cluster: CoreCluster) -> None:
    assert published_after_isolation(cluster) == [b"published in isolation"]


def test_without_that_rule_a_subscriber_misses_something(
    cluster: CoreCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meta_bindings.MetaBindings, "set_leaseless", lambda self, leaseless: None)
    assert published_after_isolation(cluster) == []


def test_publishes_do_not_wait_for_ever(cluster: CoreCluster) -> None:
    publisher = cluster["b2"].connect()
    cluster.cut("b2", "b1")
    cluster.cut("b2", "b3")
    cluster.advance_until(lambda: cluster["b2"].node.isolated)
    cluster.heal()
    cluster.cut("b2", "b3")
    cluster.advance_until(lambda: not cluster["b2"].node.isolated)
    subscriber = cluster["b1"].connect()
    asks_to_bind(subscriber)
    publisher.publish("amq.fanout", "", b"after all")
    cluster.advance(PATIENCE_MS + 1_000)
    assert subscriber.bodies() == [b"after all"]
