"""Plays: what edges and homes say to each other when links break and homes move (A1, A2).

Indexes of messages are those of the group's log, in which everything that is decided takes one. A
change of behaviour shows as a change of a script: read it, and if the story is better, put it in.
"""

from __future__ import annotations

import pytest

from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import BasicAck, BasicNack
from rhizome.amqp.properties import Properties
from rhizome.cluster.state.cluster_commands import AppointHome
from rhizome.testing.in_memory_broker import CoreClient
from rhizome.testing.in_memory_cluster import CoreCluster, Member, PipeEnd, make_cluster
from tests.interaction.attach_script import Script

PERSISTENT = Properties(delivery_mode=2)
PLAIN_WRITE = PipeEnd.write
"""Nobody overhears this: it was said long ago."""


def publish(client: CoreClient, *bodies: bytes) -> None:
    client.send_bytes(b"".join([client.published("", "q", each, PERSISTENT) for each in bodies]))


def at_work(copies: int) -> tuple[CoreCluster, CoreClient]:
    """A consumer at s1 of a queue at b3."""
    cluster = make_cluster(3, 1, copies=copies)
    client = cluster["s1"].connect()
    client.declare("q", durable=True, x_group="b3")
    if copies > 1:
        cluster.advance(1000)
    client.confirm()
    client.prefetch(3)
    client.consume("q", "tag")
    return cluster, client


def test_the_link_of_a_consumer_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds what it held; what it did meanwhile is heard when the link is back."""
    cluster, client = at_work(1)
    script = Script(cluster, "q", ["s1", "b3"], monkeypatch)
    publish(client, b"a", b"b", b"c", b"d")
    held = client.deliveries()
    script.reads(
        """
            0  s1 -> b3  publish 1
            0  s1 -> b3  publish 2
            0  s1 -> b3  publish 3
            0  s1 -> b3  publish 4
            0  b3 -> s1  message 1
            0  b3 -> s1  message 2
            0  b3 -> s1  message 3
            0  b3 -> s1  safe: your publishes up to 4
        """
    )
    cluster.cut("s1", "b3")
    client.send(BasicAck(held[0].tag))
    client.send(BasicNack(held[1].tag, False, True))
    publish(client, b"e")
    cluster.heal()
    cluster.advance_until_ready()
    script.reads(
        """
           75  s1 -> b3  I attach, in epoch 1; my publishes go on from 5
           75  s1 -> b3  held: messages 3
           75  s1 -> b3  acks messages 1
           75  s1 -> b3  gives back messages 2
           75  s1 -> b3  consumer tag
           75  s1 -> b3  that is all
           75  b3 -> s1  you are attached, in epoch 1; I have your publishes up to 4
           75  b3 -> s1  message 2 again
           75  b3 -> s1  message 4
           75  s1 -> b3  publish 5
           75  b3 -> s1  safe: what you settled, up to 2
           75  b3 -> s1  safe: your publishes up to 5
        """
    )
    client.send(BasicAck(held[2].tag))
    script.reads(
        """
           75  s1 -> b3  acks deliveries 1
           75  b3 -> s1  message 9
           75  b3 -> s1  safe: what you settled, up to 3
        """
    )


def test_deliveries_and_acks_are_lost_with_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was never shown comes as if for the first time; what was acked doesn't come."""
    cluster, client = at_work(1)
    publish(client, b"a")
    [held] = client.deliveries()
    script = Script(cluster, "q", ["s1", "b3"], monkeypatch)
    publisher = cluster["b3"].connect()
    client.connection.receive(method_frame(1, BasicAck(held.tag)))
    run_into_the_void(cluster["s1"], cluster["b3"])
    publisher.connection.receive(publisher.published("", "q", b"b", PERSISTENT))
    run_into_the_void(cluster["b3"], cluster["s1"])
    cluster.cut("s1", "b3")
    cluster.heal()
    cluster.advance_until_ready()
    script.reads(
        """
            0  s1 -> b3  acks deliveries 1
            0  b3 -> s1  message 3
           75  s1 -> b3  I attach, in epoch 1; my publishes go on from 2
           75  s1 -> b3  acks messages 1
           75  s1 -> b3  consumer tag
           75  s1 -> b3  that is all
           75  b3 -> s1  you are attached, in epoch 1; I have your publishes up to 1
           75  b3 -> s1  message 3
           75  b3 -> s1  safe: what you settled, up to 1
        """
    )


def test_the_home_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, client = at_work(2)
    publish(client, b"a", b"b", b"c", b"d")
    held = client.deliveries()
    script = Script(cluster, "q", ["s1", "b3", "b2"], monkeypatch)
    appoint(cluster, "b2")
    script.reads(
        """
            0  b3 -> b2  I attach, in epoch 2; my publishes go on from 1
            0  b3 -> b2  that is all
            0  s1 -> b2  I attach, in epoch 2; my publishes go on from 5
            0  s1 -> b2  held: messages 1 to 3
            0  s1 -> b2  consumer tag
            0  s1 -> b2  that is all
            0  b2 -> b3  you are attached, in epoch 2; I have your publishes up to 0
            0  b2 -> s1  you are attached, in epoch 2; I have your publishes up to 4
        """
    )
    client.send(BasicAck(held[0].tag))
    publish(client, b"e")
    script.reads(
        """
          100  s1 -> b2  acks deliveries 1
          100  b2 -> s1  message 4
          100  b2 -> s1  safe: what you settled, up to 1
          100  s1 -> b2  publish 5
          100  b2 -> s1  safe: your publishes up to 5
        """
    )


def test_the_home_is_replaced_before_all_is_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its standby has what it published for its own applications up to a point, and gets the rest;
    of the edge it has taken nothing of that."""
    cluster, client = at_work(2)
    own = cluster["b3"].connect()
    own.confirm()
    script = Script(cluster, "q", ["s1", "b3", "b2"], monkeypatch)
    answers = hold(cluster, "b2", "b3")
    publish(own, b"a", b"b")
    records = hold(cluster, "b3", "b2")
    publish(own, b"c")
    publish(client, b"d", b"e")
    script.reads(
        """
            0  s1 -> b3  publish 1
            0  s1 -> b3  publish 2
        """
    )
    appoint(cluster, "b2", answers, records)
    script.reads(
        """
            0  s1 -> b2  I attach, in epoch 2; my publishes go on from 1
            0  s1 -> b2  consumer tag
            0  s1 -> b2  that is all
            0  b2 -> s1  you are attached, in epoch 2; I have your publishes up to 0
            0  s1 -> b2  publish 1
            0  s1 -> b2  publish 2
           25  b2 -> b3  you are attached, in epoch 2; I have your publishes up to 0
           25  b2 -> s1  safe: your publishes up to 2
           25  b3 -> b2  number 1, without a message
           25  b3 -> b2  number 2, without a message
           25  b3 -> b2  publish 3
           25  b2 -> s1  message 1
           25  b2 -> s1  message 2
           25  b2 -> s1  message 3
           25  b2 -> b3  safe: your publishes up to 3
        """
    )


def run_into_the_void(speaker: Member, hearer: Member) -> None:
    """Let one broker work; what it says to the other gets lost."""
    speaker.busy = True
    while speaker.turn():
        pass
    for end in hearer.ends:
        if end.other is not None and end.other.owner is speaker:
            end.incoming.clear()


def hold(cluster: CoreCluster, speaker: str, hearer: str) -> tuple[PipeEnd, list[bytes]]:
    """Let what one broker says to another wait."""
    ends = cluster[speaker].ends
    [end] = [each for each in ends if each.other is not None and each.other.owner.name == hearer]
    waiting: list[bytes] = []
    end.write = waiting.extend  # type: ignore[method-assign]
    return end, waiting


def appoint(cluster: CoreCluster, name: str, *held: tuple[PipeEnd, list[bytes]]) -> None:
    """Make a standby the home; what was held comes too late."""
    root = cluster[cluster.root()]
    group = root.node.state.groups.groups[root.queue("q").definition.group]
    incarnation = cluster[name].node.me.incarnation
    root.node.propose(AppointHome(group.id, name, incarnation, group.epoch, group.version), None)
    root.settle()
    for end, waiting in held:
        del end.write  # type: ignore[method-assign]
        PLAIN_WRITE(end, waiting)
    cluster.advance(100)
