"""Queues of which only the configuration is replicated are taken over empty (G9, H2)."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import BasicAck, BasicReject, ConfirmLevel
from rhizome.amqp.properties import Properties
from rhizome.broker.metadata.metadata_commands import PutPolicy
from rhizome.cluster.home.replicated_group_log import ReplicatedGroupLog
from rhizome.cluster.state.cluster_commands import WHOLE, PlanMove
from rhizome.testing.in_memory_broker import CoreClient
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster
from tests.unit.cluster.node.small_cluster import (
    PERSISTENT,
    bind,
    confirmed,
    exchange,
    group_of,
    queue_at,
    wait_for_copy,
    wait_for_new_home,
)

TRANSIENT = Properties(delivery_mode=1)


@pytest.fixture
def cluster() -> CoreCluster:
    return make_cluster(3, 1)


def publish(
    client: CoreClient, key: str, first: int, end: int, properties: Properties = PERSISTENT
) -> None:
    data = [client.published("", key, b"%d" % n, properties) for n in range(first, end)]
    client.send_bytes(b"".join(data))
    client.core.cluster.settle()  # type: ignore[attr-defined]


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def consumed(cluster: CoreCluster, at: str, queue: str) -> list[bytes]:
    client = cluster[at].connect()
    client.consume(queue, no_ack=True)
    cluster.settle()
    return client.bodies()


def waiting(cluster: CoreCluster, broker: str) -> int:
    returning = cluster[broker].node.roles.returning
    assert returning is not None
    return returning.waiting()


@pytest.mark.parametrize("argument", ["x_replicate", "qpid.replicate"])
@pytest.mark.parametrize("at", ["b2", "b3", "s1"])
def test_it_is_taken_over_empty_with_its_bindings(
    cluster: CoreCluster, at: str, argument: str
) -> None:
    client = cluster[at].connect()
    queue_at(client, "bare", "b1", durable=True, **{argument: "configuration"})
    queue_at(client, "whole", "b1", durable=True)
    bind(client, "bare", "amq.topic", "a.*")
    wait_for_copy(cluster, "bare")
    client.confirm()
    publish(client, "bare", 0, 5)
    publish(client, "whole", 5, 9)
    assert confirmed(client) == 9
    cluster["b1"].kill()
    home = wait_for_new_home(cluster, "bare", "b1")
    assert cluster[home].queue("bare").ready == 0
    assert cluster[home].queue("whole").ready == 4
    client.send_bytes(client.published("amq.topic", "a.b", b"new", PERSISTENT))
    cluster.settle()
    assert confirmed(client) == 10
    assert consumed(cluster, at, "bare") == [b"new"]


def test_who_returns_brings_what_it_kept_and_it_comes_once(cluster: CoreCluster) -> None:
    client = cluster["b2"].connect()
    queue_at(client, "bare", "b1", durable=True, x_replicate="configuration")
    wait_for_copy(cluster, "bare")
    client.confirm()
    publish(client, "bare", 0, 20)
    cluster["b1"].kill()
    home = wait_for_new_home(cluster, "bare", "b1")
    publish(client, "bare", 20, 25)
    cluster["b1"].start()
    cluster.advance_until_ready()
    cluster.advance_until(lambda: cluster[home].queue("bare").ready == 25, 60_000)
    cluster.advance_until(lambda: waiting(cluster, "b1") == 0)
    assert cluster["b1"].store.kept.entries() == []
    cluster.advance(2_000)
    assert consumed(cluster, "b2", "bare") == [*numbers(20, 25), *numbers(0, 20)]


def test_a_broker_that_dies_on_the_way_begins_anew_and_nothing_comes_twice(
    cluster: CoreCluster,
) -> None:
    client = cluster["b2"].connect()
    queue_at(client, "bare", "b1", durable=True, x_replicate="configuration")
    wait_for_copy(cluster, "bare")
    client.confirm()
    publish(client, "bare", 0, 30)
    cluster["b1"].kill()
    home = wait_for_new_home(cluster, "bare", "b1")
    for _ in range(3):
        cluster["b1"].start()
        returning = cluster["b1"].node.roles.returning
        assert returning is not None
        # It is killed before it knows that anything has arrived.
        returning._done = lambda about: None  # type: ignore[method-assign]
        cluster.advance_until_ready()
        cluster.advance_until(lambda: cluster[home].queue("bare").ready == 30, 60_000)
        cluster["b1"].kill()
        cluster.advance(1_000)
    cluster["b1"].start()
    cluster.advance_until_ready()
    cluster.advance_until(lambda: waiting(cluster, "b1") == 0, 60_000)
    cluster.advance(2_000)
    assert consumed(cluster, "b2", "bare") == numbers(0, 30)


def test_when_all_restart_everything_is_where_it_was(cluster: CoreCluster) -> None:
    client = cluster["b2"].connect()
    queue_at(client, "bare", "b1", durable=True, x_replicate="configuration")
    wait_for_copy(cluster, "bare")
    client.confirm()
    publish(client, "bare", 0, 5)
    for name in ("b1", "b2", "b3"):
        cluster[name].kill()
    for name in ("b1", "b2", "b3"):
        cluster[name].start()
    cluster.advance_until_ready()

    def arrived() -> int:
        home = group_of(cluster, "bare").home
        return int(cluster[home].queue("bare").ready) if home else 0

    cluster.advance_until(lambda: arrived() == 5, 120_000)
    # The group goes back to where its queue was declared, and the consumer with it.
    consumer = cluster["b2"].connect()
    consumer.consume("bare", no_ack=True)
    cluster.advance(5_000)
    cluster.advance_until(lambda: group_of(cluster, "bare").home == "b1", 60_000)
    cluster.advance(1_000)
    assert consumer.bodies() == numbers(0, 5)


@pytest.mark.parametrize("properties", [PERSISTENT, TRANSIENT])
def test_a_group_that_is_moved_takes_it_along(cluster: CoreCluster, properties: Properties) -> None:
    client = cluster["b1"].connect()
    queue_at(client, "bare", "b1", durable=True, x_replicate="configuration")
    queue_at(client, "whole", "b1", durable=True)
    wait_for_copy(cluster, "bare")
    client.confirm()
    publish(client, "bare", 0, 10, properties)
    publish(client, "whole", 0, 10, properties)
    group = group_of(cluster, "bare")
    target = group.in_sync[0].broker
    cluster[cluster.root()].node.propose(PlanMove(group.id, target, group.epoch), None)
    cluster.advance_until(lambda: group_of(cluster, "bare").home == target, 60_000)
    cluster.advance_until(lambda: cluster[target].queue("bare").ready == 10, 60_000)
    assert cluster[target].queue("whole").ready == 10
    assert confirmed(client) == 20
    cluster.advance(2_000)
    assert consumed(cluster, "b2", "bare") == numbers(0, 10)


def test_standbys_do_not_get_its_messages_and_are_whole(cluster: CoreCluster) -> None:
    client = cluster["b2"].connect()
    queue_at(client, "bare", "b1", durable=True, x_replicate="configuration")
    queue_at(client, "whole", "b1", durable=True)
    bind(client, "bare", "amq.fanout")
    bind(client, "whole", "amq.fanout")
    wait_for_copy(cluster, "bare")
    client.confirm()
    publish(client, "bare", 0, 5)
    client.send_bytes(client.published("amq.fanout", "", b"both", PERSISTENT))
    cluster.settle()
    assert confirmed(client) == 6
    group = group_of(cluster, "bare")
    standby = cluster[group.in_sync[0].broker]
    copy = standby.node.roles.copies[group.id]
    assert copy.count() == 1
    # One that comes anew is told nothing of them either, and becomes whole.
    standby.kill()
    publish(client, "bare", 5, 8)
    cluster.advance_until(lambda: group_of(cluster, "bare").in_sync == ())
    standby.start()
    wait_for_copy(cluster, "bare")
    copy = standby.node.roles.copies[group.id]
    assert copy.count() == 1
    # And the log goes on with all that can happen to a message.
    other = cluster["b2"].connect()
    other.prefetch(100)
    other.consume("bare")
    cluster.settle()
    deliveries = other.deliveries()
    assert len(deliveries) == 9
    other.send(BasicReject(deliveries[0].tag, True))
    other.send(BasicAck(deliveries[-1].tag, False))
    cluster.advance(3_000)
    assert [each.copy for each in group_of(cluster, "bare").in_sync] == [WHOLE]


def test_it_is_confirmed_as_what_it_is(cluster: CoreCluster) -> None:
    asks: dict[str, object] = {"capabilities": {"confirm.level": True}}
    client = cluster["b2"].connect(properties=asks)
    queue_at(client, "bare", "b1", durable=True, x_replicate="configuration")
    wait_for_copy(cluster, "bare")
    client.confirm()
    publish(client, "bare", 0, 1)
    publish(client, "bare", 1, 2, TRANSIENT)
    told = [int(each.level) for each in client.take() if isinstance(each, ConfirmLevel)]
    assert told == [2, 0]


def test_a_policy_says_it_too(cluster: CoreCluster) -> None:
    """A policy for everything is the default that somebody configured."""
    client = cluster["b2"].connect()
    policy = PutPolicy("/", "default", ".*", {"replicate": "configuration"}, "queues")
    cluster[cluster.root()].node.propose(policy, None)
    cluster.settle()
    queue_at(client, "by policy", "b1", durable=True)
    queue_at(client, "by argument", "b1", durable=True, x_replicate="messages")
    wait_for_copy(cluster, "by policy")
    client.confirm()
    publish(client, "by policy", 0, 3)
    publish(client, "by argument", 0, 3)
    cluster["b1"].kill()
    home = wait_for_new_home(cluster, "by policy", "b1")
    assert cluster[home].queue("by policy").ready == 0
    assert cluster[home].queue("by argument").ready == 3


@pytest.mark.parametrize("rule", [True, False])
def test_without_the_rule_it_is_lost_when_its_broker_returns(
    cluster: CoreCluster, rule: bool
) -> None:
    """Prove by breaking: a copy that just follows drops what its home hasn't."""
    client = cluster["b2"].connect()
    queue_at(client, "bare", "b1", durable=True, x_replicate="configuration")
    wait_for_copy(cluster, "bare")
    client.confirm()
    publish(client, "bare", 0, 5)
    cluster["b1"].kill()
    wait_for_new_home(cluster, "bare", "b1")
    cluster["b1"].start()
    if not rule:
        cluster["b1"].node.roles.returning = None
    cluster.advance_until_ready()
    cluster.advance_until(lambda: group_of(cluster, "bare").home == "b1", 120_000)
    cluster.advance(2_000)
    log = cluster["b1"].queue("bare").log
    assert isinstance(log, ReplicatedGroupLog)
    assert consumed(cluster, "b2", "bare") == (numbers(0, 5) if rule else [])


@pytest.mark.parametrize("argument", ["x-replicate", "qpid.replicate"])
@pytest.mark.parametrize("value", ["none", "configuration", "messages"])
def test_an_exchange_is_everywhere_whatever_it_asks_for(
    cluster: CoreCluster, argument: str, value: str
) -> None:
    """An argument of a queue is taken of an exchange, kept, and means nothing: exchanges and their
    bindings are part of the cluster state."""
    declared, client = cluster["b1"].connect(), cluster["s1"].connect()
    exchange(declared, "x", "topic", **{argument: value})
    queue_at(declared, "q", "b2")
    bind(declared, "q", "x", "a.*")
    for member in cluster.running():
        found = member.broker.state.vhosts["/"].router.exchanges["x"]
        assert found.arguments == {argument: value}, member.name
    cluster["b1"].kill()
    cluster.advance_until(lambda: cluster.root() not in ("", "b1"))
    client.publish("x", "a.b", b"heard")
    cluster.settle()
    assert consumed(cluster, "b3", "q") == [b"heard"]
    exchange(client, "x", "topic")
    exchange(client, "x", "topic", **{argument: "none"})
