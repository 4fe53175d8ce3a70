"""What a replaced home brings to the next one is known there again (A1, L5)."""

from __future__ import annotations

import pytest
from scene import confirmed, queue_at, wait_for_copy

from rhizome.amqp.methods import (
    BasicAck,
    ConfirmSelect,
    ConfirmSelectOk,
    TxCommit,
    TxCommitOk,
    TxSelect,
    TxSelectOk,
)
from rhizome.amqp.properties import Properties
from rhizome.testing.cluster import make_cluster

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
