"""Each rule of attaching broken on purpose: what it prevents is seen, and only then (A1, A2)."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import BasicAck, BasicCancel
from rhizome.cluster.home.settings import RESUME_PATIENCE_MS
from rhizome.cluster.protocol.attach_rule_switches import AttachRules
from rhizome.testing.in_memory_broker import CoreClient
from rhizome.testing.in_memory_cluster import CoreCluster, Member, make_cluster
from tests.unit.cluster.node.clients.test_resumed_clients import (
    back,
    bodies_of,
    entries,
    home_dies,
)
from tests.unit.cluster.node.held_standby import Standby, leads_to
from tests.unit.cluster.node.small_cluster import PERSISTENT, confirmed, drain, queue_at

HOME, NEXT = "b3", "b2"
BROKEN = [True, False]


@pytest.fixture
def cluster() -> CoreCluster:
    return make_cluster(3, 2)


def break_rule(cluster: CoreCluster, rule: str) -> None:
    for member in cluster.running():
        assert getattr(member.node.edge.rules, rule) is True
        setattr(member.node.edge.rules, rule, False)


def publish(client: CoreClient, *bodies: bytes) -> None:
    client.send_bytes(b"".join([client.published("", "q", each, PERSISTENT) for each in bodies]))


def followed(cluster: CoreCluster, client: CoreClient) -> Standby:
    queue_at(client, "q", HOME, durable=True)
    return Standby(cluster, "q", NEXT)


def run_alone(member: Member) -> None:
    member.busy = True
    while member.turn():
        pass


def test_there_is_a_story_for_each_rule() -> None:
    stories = "".join([name for name in globals() if name.startswith("test_")])
    rules = [name for name in dir(AttachRules()) if not name.startswith("_")]
    assert rules
    assert [rule for rule in rules if rule not in stories] == []


@pytest.mark.parametrize("broken", BROKEN)
def test_numbers_counted(cluster: CoreCluster, broken: bool) -> None:
    """A home that doesn't know what it has taken takes it again over the next link."""
    if broken:
        break_rule(cluster, "numbers_counted")
    client = cluster["s1"].connect()
    standby = followed(cluster, client)
    client.confirm()
    standby.hold()
    publish(client, b"once")
    assert confirmed(client) == 0
    cluster.cut("s1", HOME)
    cluster.heal()
    cluster.advance_until_ready()
    standby.let_go()
    assert drain(cluster["b1"].connect(), "q") == [b"once"] * (2 if broken else 1)


@pytest.mark.parametrize("broken", BROKEN)
def test_kept_until_committed(cluster: CoreCluster, broken: bool) -> None:
    """An edge that forgets what a home merely has confirms it, and a takeover loses it."""
    if broken:
        break_rule(cluster, "kept_until_committed")
    client = cluster["s1"].connect()
    standby = followed(cluster, client)
    client.confirm()
    standby.hold()
    publish(client, b"confirmed")
    cluster.cut("s1", HOME)
    cluster.heal()
    cluster.advance_until_ready()
    standby.take_over()
    publish(client, b"next")
    assert confirmed(client) == 2
    found = drain(cluster["b1"].connect(), "q")
    assert found == ([b"next"] if broken else [b"confirmed", b"next"])


@pytest.mark.parametrize("broken", BROKEN)
def test_held_presented(cluster: CoreCluster, broken: bool) -> None:
    """A new home that isn't told what applications hold delivers it again."""
    if broken:
        break_rule(cluster, "held_presented")
    client, other = cluster["s1"].connect(), cluster["b1"].connect()
    standby = followed(cluster, client)
    client.consume("q")
    publish(client, b"held")
    assert client.bodies() == [b"held"]
    other.consume("q")
    standby.take_over()
    assert len(client.bodies() + other.bodies()) == int(broken)


@pytest.mark.parametrize("broken", BROKEN)
def test_settled_presented(cluster: CoreCluster, broken: bool) -> None:
    """A new home that isn't told what was acked delivers it again."""
    if broken:
        break_rule(cluster, "settled_presented")
    client = cluster["s1"].connect()
    standby = followed(cluster, client)
    client.consume("q")
    publish(client, b"acked")
    [delivery] = client.deliveries()
    standby.hold()
    client.send(BasicAck(delivery.tag))
    standby.take_over()
    assert client.bodies() == ([b"acked"] if broken else [])


@pytest.mark.parametrize("broken", BROKEN)
def test_clients_awaited(cluster: CoreCluster, broken: bool) -> None:
    """A new home that doesn't wait for clients whose broker is gone gives others what they hold."""
    if broken:
        break_rule(cluster, "clients_awaited")
    held, other = home_dies(cluster)
    cluster.advance(RESUME_PATIENCE_MS // 2)
    back(cluster, "s1", entries(held))
    cluster.advance(RESUME_PATIENCE_MS)
    assert bodies_of(other) == ([b"1", b"2", b"3"] if broken else [])


@pytest.mark.parametrize("broken", BROKEN)
def test_lists_awaited(cluster: CoreCluster, broken: bool) -> None:
    """A new home that resolves before all edges are there gives to one what another holds."""
    if broken:
        break_rule(cluster, "lists_awaited")
    holder, other = cluster["s1"].connect(), cluster["s2"].connect()
    standby = followed(cluster, holder)
    holder.consume("q")
    publish(holder, b"held")
    assert holder.bodies() == [b"held"]
    other.consume("q")
    cluster.cut("s1", NEXT)
    standby.appoint()
    attached = standby.tenure.attached
    cluster.advance_until(lambda: "s2" in attached())
    assert other.bodies() == ([b"held"] if broken else [])
    cluster.heal()
    cluster.advance_until(lambda: "s1" in attached())
    cluster.advance_until(lambda: not standby.log.silent)
    cluster.settle()
    assert holder.bodies() == []
    assert other.bodies() == []


@pytest.mark.parametrize("broken", BROKEN)
def test_older_epochs_dropped(cluster: CoreCluster, broken: bool) -> None:
    """What an old home has sent comes late, and the new home has delivered it."""
    if broken:
        break_rule(cluster, "older_epochs_dropped")
    client, publisher = cluster["s1"].connect(), cluster[HOME].connect()
    standby = followed(cluster, client)
    client.consume("q")
    publisher.connection.receive(publisher.published("", "q", b"once", PERSISTENT))
    for name in (HOME, NEXT, HOME):
        run_alone(cluster[name])
    [under_way] = [end for end in cluster["s1"].ends if leads_to(end, HOME)]
    late, under_way.incoming = under_way.incoming, []
    assert late
    standby.take_over()
    assert client.bodies() == [b"once"]
    under_way.incoming = late
    cluster["s1"].settle()
    assert client.bodies() == ([b"once"] if broken else [])


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("broken", BROKEN)
def test_epochs_compared(cluster: CoreCluster, broken: bool, settled: bool) -> None:
    """What was lost with its home is held by an application, or settled: another message that has
    its index now is neither, though it was confirmed before all edges had attached."""
    if broken:
        break_rule(cluster, "epochs_compared")
    holder, publisher = cluster["s1"].connect(), cluster["s2"].connect()
    standby = followed(cluster, holder)
    publisher.confirm()
    tag = holder.consume("q")
    standby.hold()
    publish(holder, b"lost")
    cluster.advance_until(lambda: not standby.group.in_sync)
    cluster.settle()
    [delivery] = holder.deliveries()
    holder.send(BasicCancel(tag))
    cluster.settle()
    cluster.cut("s1", NEXT)
    if settled:
        cluster.cut("s1", HOME)
        holder.send(BasicAck(delivery.tag))
    standby.force()
    publish(publisher, b"confirmed")
    cluster.heal()
    cluster.advance_until(lambda: "s1" in standby.tenure.attached())
    cluster.advance_until(lambda: not standby.log.silent)
    cluster.advance_until(lambda: confirmed(publisher) == 1)
    # Attached again, it has not forgotten that it is void.
    cluster.cut("s1", NEXT)
    cluster.heal()
    cluster.advance_until_ready()
    cluster.advance_until(lambda: "s1" in standby.tenure.attached())
    if not settled:
        holder.send(BasicAck(delivery.tag))
        cluster.settle()
    assert drain(cluster["b1"].connect(), "q") == ([] if broken else [b"confirmed"])
