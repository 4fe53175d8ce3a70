"""What a replaced home brings to the next one is known there again (A1, L5)."""

from __future__ import annotations

import pytest

from rhizome.amqp.methods import (
    BasicAck,
    BasicNack,
    ConfirmSelect,
    ConfirmSelectOk,
    TxCommit,
    TxCommitOk,
    TxSelect,
    TxSelectOk,
)
from rhizome.amqp.properties import Properties
from rhizome.testing.in_memory_broker import CoreClient
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster
from tests.unit.cluster.node.small_cluster import (
    PERSISTENT,
    confirmed,
    drain,
    queue_at,
    wait_for_copy,
)

ONCE = Properties(delivery_mode=2, message_id="order-92")
OTHER = Properties(delivery_mode=2, message_id="order-93")


@pytest.mark.parametrize("in_transaction", [False, True])
def test_what_was_sent_again_over_another_broker_is_dropped(in_transaction: bool) -> None:
    """An application that is not answered by a home without copies sends the same to the next."""
    cluster = make_cluster(3, 1)
    old = cluster.root()
    client = cluster[old].connect()
    queue_at(client, "q", old, durable=True, x_dedup="message-id")
    wait_for_copy(cluster, "q")
    if in_transaction:
        client.call(TxSelect(), TxSelectOk)
    else:
        client.call(ConfirmSelect(), ConfirmSelectOk)
    others = [name for name in cluster.members if name != old]
    for other in others:
        cluster.cut(old, other)
    client.publish("", "q", b"first", ONCE)
    client.publish("", "q", b"and more", OTHER)
    if in_transaction:
        client.send(TxCommit())
    cluster[old].settle()
    homes = [name for name in others if name != "s1"]
    cluster.advance_until(lambda: any(cluster[each].queue("q").away is None for each in homes))
    again = cluster[homes[0]].connect()
    again.call(ConfirmSelect(), ConfirmSelectOk)
    again.publish("", "q", b"again", ONCE)
    cluster.advance_until(lambda: confirmed(again) == 1)
    cluster.heal()
    cluster.advance_until_ready()
    cluster.advance_until(lambda: len(client.events[1]) > 0)
    client.expect(TxCommitOk if in_transaction else BasicAck)
    reader = cluster[homes[1]].connect()
    reader.consume("q")
    found: list[bytes] = []
    while len(found) < 2:
        cluster.advance_until(lambda: len(reader.events[1]) > 0)
        found += reader.bodies()
    cluster.advance(2_000)
    assert sorted(found + reader.bodies()) == [b"again", b"and more"]


def _cut_off(cluster: CoreCluster, client: CoreClient, **options: object) -> tuple[str, list[str]]:
    """A queue "q" whose home is cut off from the others, with a client there that gets confirms;
    the old home and the others."""
    old = cluster.root()
    queue_at(client, "q", old, durable=True, **options)
    queue_at(client, "plain", old, durable=True)
    wait_for_copy(cluster, "q")
    wait_for_copy(cluster, "plain")
    client.call(ConfirmSelect(), ConfirmSelectOk)
    others = [name for name in cluster.members if name != old]
    for other in others:
        cluster.cut(old, other)
    return old, others


def _next_home(cluster: CoreCluster, names: list[str]) -> str:
    """Who of these takes the queue "q" over, when it serves."""

    def homes() -> list[str]:
        queues = {name: cluster[name].queue("q") for name in names}
        active = [name for name in names if queues[name].away is None]
        return [name for name in active if not queues[name].log.silent]

    cluster.advance_until(lambda: len(homes()) > 0)
    return homes()[0]


def _nacked_until(cluster: CoreCluster, client: CoreClient, last: int) -> list[int]:
    """What is nacked until a tag is confirmed."""
    told: list[object] = []

    def is_told() -> bool:
        told.extend(client.take())
        return any(isinstance(each, BasicAck) and each.delivery_tag == last for each in told)

    cluster.advance_until(is_told)
    return [int(each.delivery_tag) for each in told if isinstance(each, BasicNack)]


def test_what_the_next_home_refuses_is_not_confirmed() -> None:
    """A home that is cut off takes a message, and is replaced before it has confirmed it. The next
    home's queue is full when that one brings the message: its publisher must be told."""
    cluster = make_cluster(3)
    client = cluster[cluster.root()].connect()
    old, others = _cut_off(cluster, client, x_max_length=1, x_overflow="reject-publish")
    client.publish("", "plain", b"before", PERSISTENT)
    client.publish("", "nowhere", b"unrouted", PERSISTENT)
    client.publish("", "q", b"taken by the old home", PERSISTENT)
    client.publish("", "plain", b"after", PERSISTENT)
    cluster[old].settle()
    new = _next_home(cluster, others)
    other = cluster[new].connect()
    other.call(ConfirmSelect(), ConfirmSelectOk)
    other.publish("", "q", b"first at the new home", PERSISTENT)
    cluster.advance_until(lambda: confirmed(other) == 1)
    cluster.heal()
    cluster.advance_until_ready()
    assert _nacked_until(cluster, client, 4) == [3]
    assert drain(other, "q") == [b"first at the new home"]
    assert drain(other, "plain") == [b"before", b"after"]


def test_what_the_next_home_had_in_memory_and_lost_is_not_confirmed() -> None:
    """A transient message is brought to the next home, which ends before it is confirmed: nobody
    has it any more, so its publisher must not be told that it is safe."""
    cluster = make_cluster(3)
    client = cluster[cluster.root()].connect()
    old, others = _cut_off(cluster, client)
    client.publish("", "q", b"transient")
    client.publish("", "q", b"persistent", PERSISTENT)
    cluster[old].settle()
    new = _next_home(cluster, others)
    [third] = [name for name in others if name != new]
    cluster.cut(new, third)
    cluster.mend(old, new)
    cluster.advance_until(lambda: cluster[new].queue("q").ready == 2)
    assert confirmed(client) == 0
    cluster[new].kill()
    cluster[third].kill()
    cluster.heal()
    cluster[new].start()
    cluster[third].start()
    assert _nacked_until(cluster, client, 2) == [1]
    reader = cluster[third].connect()
    assert drain(reader, "q") == [b"persistent"]
