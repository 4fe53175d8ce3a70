"""Transactions in one group whose home is another broker: one record there, whoever dies (L4)."""

from __future__ import annotations

import pytest

from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import BasicAck, BasicNack, ChannelClose, TxCommit, TxCommitOk
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster
from tests.unit.cluster.node.interleaved_cluster import Loose
from tests.unit.cluster.node.small_cluster import PERSISTENT, drain, private_queue
from tests.unit.cluster.node.test_dead_letters_between_groups import home_of, standby_of
from tests.unit.cluster.node.transactions.test_transactions_across_groups import (
    DONE,
    Walk,
    begin,
    fill,
    is_settled,
    is_whole,
)

HERE = {"a": "b1", "b": "b1", "c": "b1"}


@pytest.fixture
def cluster() -> CoreCluster:
    # Links are cut for long here, and homes have to stay where they are.
    return make_cluster(3, 1, unlinked_patience_ms=0)


@pytest.mark.parametrize("at", ["b1", "b2", "b3", "s1"])
def test_a_commit_in_one_group(cluster: CoreCluster, at: str) -> None:
    client = cluster[at].connect()
    begin(client, HERE)
    client.send_bytes(fill(client))
    other = cluster["b3"].connect()
    assert drain(other, "a") == []
    client.call(TxCommit(), TxCommitOk)
    assert [drain(other, queue) for queue in "abc"] == DONE
    cluster.advance(1_000)
    assert is_settled(cluster)
    assert cluster["b1"].queue("c").unacked == 0
    client.close_socket()
    cluster.advance(1_000)
    assert drain(other, "c") == []


def test_nobody_is_ever_in_doubt(cluster: CoreCluster) -> None:
    """It is one record at its home, which never has it in its docket."""
    client = cluster["s1"].connect()
    begin(client, HERE)
    log = cluster["b1"].queue("a").log
    client.send_bytes(fill(client))
    first = log.next_index
    client.call(TxCommit(), TxCommitOk)
    # A number, two messages, an ack, and the record of it all; then the edge has settled.
    assert log.next_index - first <= 6
    dockets = list(cluster["b1"].broker.internal.values())
    assert [queue.delivered + queue.acked for queue in dockets] == [0] * len(dockets)


def test_rejected_in_a_transaction_elsewhere(cluster: CoreCluster) -> None:
    """What is requeued by it comes back; what is private is there, too."""
    client = cluster["s1"].connect()
    private = private_queue(client)
    begin(client, HERE)
    standby_of(cluster, "c")
    [held] = client.deliveries()
    nack = method_frame(1, BasicNack(held.tag, False, True))
    client.send_bytes(client.published("", private, b"x", PERSISTENT) + nack)
    client.send(TxCommit())
    client.pick(TxCommitOk)
    [again] = client.deliveries()
    assert (again.body, again.redelivered) == (b"held", True)
    cluster["b1"].kill()
    cluster.advance_until(lambda: home_of(cluster, "c") != "b1")
    cluster.advance(11_000)
    # It is held once, not twice.
    assert client.deliveries() == []
    assert drain(client, private) == [b"x"]


def test_a_commit_that_no_message_could_carry_is_refused(cluster: CoreCluster) -> None:
    client = cluster["s1"].connect()
    begin(client, HERE)
    cluster["s1"].broker.limits.message_bytes_max = 100
    client.send_bytes(fill(client) + client.published("", "a", b"y" * 64, PERSISTENT))
    client.send(TxCommit())
    close = client.pick(ChannelClose)
    assert close.reply_code == 406
    assert "commit more often" in close.reply_text
    assert [drain(cluster["b2"].connect(), queue) for queue in "ab"] == [[], []]


def test_commit_ok_waits_for_the_copies(cluster: CoreCluster) -> None:
    client = cluster["s1"].connect()
    begin(client, HERE)
    standby = standby_of(cluster, "a").name
    client.connection.receive(fill(client) + method_frame(1, TxCommit()))
    cluster["s1"].busy = True
    Loose(cluster, 1).cut("b1", [standby])
    cluster.settle()
    assert cluster["s1"].broker.commits
    assert not any(isinstance(each, TxCommitOk) for each in client.take())
    Loose(cluster, 1).kill("b1")
    cluster.heal()
    cluster.advance_until(lambda: home_of(cluster, "a") == standby)
    cluster.advance_until(lambda: not cluster["s1"].broker.commits)
    client.pick(TxCommitOk)
    cluster.advance(1_000)
    assert [drain(cluster["s1"].connect(), queue) for queue in "abc"] == DONE


def test_a_home_that_is_replaced_brings_a_transaction_as_a_whole(cluster: CoreCluster) -> None:
    """Of its own client: nobody else has heard of it."""
    client = cluster["b1"].connect()
    begin(client, HERE)
    standby_of(cluster, "a")
    loose = Loose(cluster, 1)
    client.connection.receive(fill(client) + method_frame(1, TxCommit()))
    cluster["b1"].busy = True
    others = [each for each in cluster.members if each != "b1"]
    loose.cut("b1", others)
    cluster.settle()
    assert len(cluster["b1"].queue("a").log.uncommitted.wholes) == 1
    cluster.advance_until(lambda: _home_seen_by(cluster, "b2") != "b1")
    cluster.heal()
    cluster.advance_until_ready()
    cluster.advance_until(lambda: not cluster["b1"].broker.commits)
    client.pick(TxCommitOk)
    assert [drain(cluster["s1"].connect(), queue) for queue in "abc"] == DONE


def _home_seen_by(cluster: CoreCluster, name: str) -> str:
    member = cluster[name]
    group = member.node.state.group_of(member.queue("a").definition)
    assert group is not None
    return group.home


# ---- walks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_all_or_nothing_in_one_group_whoever_dies(seed: int) -> None:
    assert is_whole(*Walk(seed, HERE).run())


@pytest.mark.parametrize("seed", range(6))
def test_all_or_nothing_in_one_group_whoever_is_cut_off(seed: int) -> None:
    assert is_whole(*Walk(seed, HERE).run_apart())


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10, 400))
def test_all_or_nothing_in_one_group_in_many_walks(seed: int) -> None:
    walk = Walk(seed, HERE)
    assert is_whole(*(walk.run() if seed % 2 else walk.run_apart()))


def test_others_may_settle_what_a_late_transaction_has_settled(cluster: CoreCluster) -> None:
    """The edge was away until what its client holds went to somebody else. The commit settles it
    all the same; who has it now may settle it, too, which means nothing."""
    client = cluster["s1"].connect()
    begin(client, HERE)
    data = fill(client)
    cluster.cut("s1", "b1")
    client.send_bytes(data)
    client.send(TxCommit())
    other = cluster["b1"].connect()
    other.consume("c")
    cluster.advance(11_000)
    [taken] = other.deliveries()
    assert (taken.body, taken.redelivered) == (b"held", True)
    cluster.mend("s1", "b1")
    cluster.advance_until(lambda: cluster["b1"].queue("c").unacked == 0)
    client.pick(TxCommitOk)
    other.send(BasicAck(taken.tag))
    assert other.get("c") is None
    other.close_socket()
    cluster.advance(1_000)
    assert [drain(cluster["b2"].connect(), queue) for queue in "abc"] == DONE
