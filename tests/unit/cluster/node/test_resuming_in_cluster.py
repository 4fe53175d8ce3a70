"""A client comes back with what it holds, at whichever broker, whoever is home (J12)."""

from __future__ import annotations

import struct

import pytest
from scene import PERSISTENT, drain, queue_at

from rhizome.amqp.methods import (
    BasicAck,
    SessionMessage,
    SessionResume,
    SessionResumed,
    SessionResumeOk,
    SessionSync,
    SessionSyncOk,
)
from rhizome.broker.resuming import KEEP_MS
from rhizome.cluster.tenure import PARK_MS
from rhizome.testing.cluster import CoreCluster, make_cluster
from rhizome.testing.core import CAPABILITIES, Content, CoreClient

Held = tuple[int, int, int]
HELD, ACKED = 0, 1
RESUMES: dict[str, object] = {
    "capabilities": {**CAPABILITIES, "session.resume": True},
    "session": "mine",
}
LATER_MS = max(KEEP_MS, PARK_MS) + 2_000


@pytest.fixture
def cluster() -> CoreCluster:
    return make_cluster(3, 1)


def consuming(cluster: CoreCluster, at: str, count: int = 4, prefetch: int = 3) -> CoreClient:
    """A client that consumes a queue whose home is b1."""
    publisher = cluster["b3"].connect()
    queue_at(publisher, "q", "b1", durable=True)
    for number in range(1, count + 1):
        publisher.publish("", "q", b"%d" % number, PERSISTENT)
    cluster.advance(500)
    client = cluster[at].connect(properties=RESUMES)
    client.prefetch(prefetch)
    client.consume("q", "c")
    cluster.advance(200)
    return client


def taken(client: CoreClient) -> list[Held]:
    events = client.take()
    assert [event.body for event in events if isinstance(event, Content)]
    told = [event for event in events if isinstance(event, SessionMessage)]
    return [(int(each.queue_id), int(each.epoch), int(each.index)) for each in told]


def entries(held: list[Held], kind: int = HELD) -> bytes:
    return b"".join(struct.pack(">QIQB", *each, kind) for each in held)


def back(cluster: CoreCluster, at: str, presented: bytes) -> tuple[CoreClient, int]:
    """The client connects again and presents what it has; the tag of the first."""
    client = cluster[at].connect(properties=RESUMES)
    first = int(client.call(SessionResume(presented), SessionResumeOk).first_tag)
    client.send(SessionResumed(), channel=0)
    return client, first


def left(cluster: CoreCluster, at: str = "b3") -> list[bytes]:
    """What others get, after everything that is kept for somebody is given up."""
    cluster.advance(LATER_MS)
    return drain(cluster[at].connect(), "q")


@pytest.mark.parametrize("before", ["b1", "b2", "s1"])
@pytest.mark.parametrize("after", ["b1", "b2", "s1"])
def test_the_connection_is_lost(cluster: CoreCluster, before: str, after: str) -> None:
    """Every broker lives; the client comes back to the same one or to another."""
    client = consuming(cluster, before)
    held = taken(client)
    client.close_socket()
    cluster.advance(100)
    client, first = back(cluster, after, entries(held))
    cluster.advance(500)
    for tag in range(first, first + 3):
        client.send(BasicAck(tag))
    cluster.advance(200)
    assert left(cluster) == [b"4"]


@pytest.mark.parametrize("after", ["b1", "b3", "s1"])
def test_the_broker_of_the_client_is_killed(cluster: CoreCluster, after: str) -> None:
    client = consuming(cluster, "b2")
    held = taken(client)
    cluster["b2"].kill()
    cluster.advance(100)
    client, first = back(cluster, after, entries(held[:1], ACKED) + entries(held[1:]))
    cluster.advance(3_000)
    client.send(BasicAck(first + 1))
    cluster.advance(200)
    other = cluster["b3"].connect()
    assert drain(other, "q") == [b"4"], "the third is held"
    client.send(BasicAck(first + 2))
    assert left(cluster) == []


@pytest.mark.parametrize("after", ["b2", "b3", "s1"])
@pytest.mark.parametrize("at_once", [True, False])
def test_the_home_is_killed_with_the_client_on_it(
    cluster: CoreCluster, after: str, at_once: bool
) -> None:
    """The client comes back before the takeover, or after it."""
    client = consuming(cluster, "b1")
    held = taken(client)
    cluster["b1"].kill()
    cluster.advance(50 if at_once else 4_000)
    client, first = back(cluster, after, entries(held[:1], ACKED) + entries(held[1:]))
    cluster.advance(5_000)
    other = cluster["b3"].connect()
    assert drain(other, "q") == [b"4"]
    for tag in (first + 1, first + 2):
        client.send(BasicAck(tag))
    assert left(cluster) == []


def test_a_sync_is_answered_when_the_home_has_it(cluster: CoreCluster) -> None:
    client = consuming(cluster, "b2")
    taken(client)
    client.send(BasicAck(1))
    client.send(SessionSync())
    cluster.advance(200)
    assert [type(event) for event in client.take()][-1:] == [SessionSyncOk]


def test_messages_of_others_are_not_given_away(cluster: CoreCluster) -> None:
    client = consuming(cluster, "b2", prefetch=0)
    held = taken(client)
    thief = cluster["b3"].connect(properties={**RESUMES, "session": "another"})
    first = int(thief.call(SessionResume(entries(held)), SessionResumeOk).first_tag)
    cluster.advance(500)
    thief.send(BasicAck(first, True))
    cluster.advance(500)
    assert cluster["b1"].queue("q").unacked == 4
    client.send(BasicAck(0, True))
    cluster.advance(500)
    assert left(cluster) == []
