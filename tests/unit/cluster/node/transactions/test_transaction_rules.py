"""The rules of transactions over several groups, each broken on purpose (L4).

The client is connected to s1. The group of queue "a", at home at b1, is the first one and decides;
b1 is root, too. The groups of "b" and "c", at home at b2 and b3, take part.
"""

from __future__ import annotations

import pytest

from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import BasicAck, ChannelClose, TxCommit, TxCommitOk
from rhizome.cluster.transactions.prepared_transactions import (
    PreparedTransactions,
    TxRules,
    prepared_transactions_of,
)
from rhizome.cluster.transactions.transaction_status import LONG_MS, doubts
from rhizome.server.operator_views.copy_and_transaction_stalls import tx_stalls
from rhizome.testing.in_memory_broker import CoreClient
from rhizome.testing.in_memory_cluster import CoreCluster, make_cluster
from tests.unit.cluster.node.interleaved_cluster import Loose
from tests.unit.cluster.node.small_cluster import PERSISTENT, drain
from tests.unit.cluster.node.test_dead_letters_between_groups import home_of, standby_of
from tests.unit.cluster.node.transactions.test_transactions_across_groups import (
    DONE,
    NOTHING,
    QUEUES,
    begin,
    fill,
    is_settled,
)

BROKEN = [True, False]


@pytest.fixture
def cluster() -> CoreCluster:
    # Links are cut for long here, and homes have to stay where they are.
    return make_cluster(3, 1, unlinked_patience_ms=0)


def prepared_to_break(cluster: CoreCluster, rule: str, broken: bool) -> CoreClient:
    client = cluster["s1"].connect()
    begin(client)
    for queue in QUEUES:
        standby_of(cluster, queue)
    for member in cluster.running():
        assert getattr(member.node.roles.tx_transport.rules, rule) is True
        setattr(member.node.roles.tx_transport.rules, rule, not broken)
    return client


def commit(cluster: CoreCluster, client: CoreClient) -> Loose:
    """Have the broker of the client read its commit in the next turn, and do nothing yet."""
    client.connection.receive(fill(client) + method_frame(1, TxCommit()))
    cluster["s1"].busy = True
    return Loose(cluster, 1)


def prepared_txs(cluster: CoreCluster, queue: str) -> PreparedTransactions:
    """The docket of the group of a queue, at its home."""
    member = cluster[home_of(cluster, queue)]
    found = prepared_transactions_of(member.broker, int(member.queue(queue).definition.group))
    assert found is not None
    return found


def are_prepared(cluster: CoreCluster) -> bool:
    """Whether the others are; the first one knows of nothing."""
    return all(prepared_txs(cluster, queue).prepared for queue in "bc")


def is_told(cluster: CoreCluster) -> bool:
    """Whether the first one has just told the others, who have yet to hear it."""
    told = any(each.told_ms for each in prepared_txs(cluster, "a").decided.values())
    return told and are_prepared(cluster)


def found(cluster: CoreCluster) -> list[list[bytes]]:
    """What is in the queues when all is over."""
    cluster.advance_until(lambda: is_settled(cluster))
    cluster.advance(11_000)
    reader = cluster["b2"].connect()
    return [drain(reader, queue) for queue in QUEUES]


def restart(cluster: CoreCluster, *names: str) -> None:
    for name in names:
        cluster[name].start()
    cluster.settle()
    cluster.advance_until_ready()


def test_there_is_a_story_for_each_rule() -> None:
    stories = "".join([name for name in globals() if name.startswith("test_")])
    rules = list(vars(TxRules()))
    assert rules
    assert [rule for rule in rules if rule not in stories] == []


@pytest.mark.parametrize("broken", BROKEN)
def test_prepared_first(cluster: CoreCluster, broken: bool) -> None:
    """What is decided before all have it is lost in part, with the edge."""
    client = prepared_to_break(cluster, "prepared_first", broken)
    cluster.cut("s1", "b2")
    client.send_bytes(fill(client))
    client.send(TxCommit())
    cluster["s1"].kill()
    cluster.heal()
    cluster.advance(11_000)
    restart(cluster, "s1")
    assert found(cluster) == ([[b"x"], [], []] if broken else NOTHING)


@pytest.mark.parametrize("broken", BROKEN)
def test_on_disk(cluster: CoreCluster, broken: bool) -> None:
    """A power cut, right when the decision is committed: those in doubt must still have their
    parts, and the first group what it decided."""
    client = prepared_to_break(cluster, "on_disk", broken)
    loose = commit(cluster, client)
    loose.rounds(lambda: is_told(cluster))
    for name in ("b1", "b2", "b3"):
        loose.kill(name)
    restart(cluster, "b1", "b2", "b3")
    assert found(cluster) == ([[b"x"], [], []] if broken else DONE)
    assert any(isinstance(each, TxCommitOk) for each in client.take()) is not broken


@pytest.mark.parametrize(("victim", "broken"), [("b2", True), ("b2", False), ("b3", False)])
def test_taken_over_by_the_next_home_of_who_takes_part(
    cluster: CoreCluster, victim: str, broken: bool
) -> None:
    client = prepared_to_break(cluster, "taken_over", broken)
    loose = commit(cluster, client)
    loose.rounds(lambda: is_told(cluster))
    loose.kill(victim)
    cluster.settle()
    restart(cluster, victim)
    assert found(cluster) == ([[b"x"], [], []] if broken else DONE)


@pytest.mark.parametrize("broken", BROKEN)
def test_taken_over_by_the_next_home_of_who_decides(cluster: CoreCluster, broken: bool) -> None:
    """It must find that it has decided, and tell the others, who ask."""
    client = prepared_to_break(cluster, "taken_over", broken)
    loose = commit(cluster, client)
    loose.rounds(lambda: is_told(cluster))
    for name in ("b2", "b3"):
        # What b1 has told them comes too late.
        for end in cluster[name].ends:
            if end.other is not None and end.other.owner.name == "b1":
                end.incoming.clear()
    loose.kill("b1")
    loose.kill("s1")
    cluster.settle()
    cluster.advance_until(lambda: home_of(cluster, "a") != "b1")
    restart(cluster, "s1")
    assert found(cluster) == ([[b"x"], [], [b"held"]] if broken else DONE)


@pytest.mark.parametrize("broken", BROKEN)
def test_committed_first(cluster: CoreCluster, broken: bool) -> None:
    """The standby of the first group hears nothing of the decision, and is home next."""
    client = prepared_to_break(cluster, "committed_first", broken)
    near = standby_of(cluster, "a").name
    loose = commit(cluster, client)
    loose.rounds(lambda: are_prepared(cluster) and not cluster["s1"].broker.commits[0].deciding)
    loose.cut("b1", [near])
    cluster.settle()
    loose.kill("b1")
    loose.kill("s1")
    cluster.settle()
    cluster.heal()
    cluster.advance_until(lambda: home_of(cluster, "a") == near)
    restart(cluster, "s1")
    done = [[], [b"x"], [b"held"]] if near == "b3" else [[], [], []]
    assert found(cluster) == (done if broken else NOTHING)


def decided_against(cluster: CoreCluster, rule: str, broken: bool) -> CoreClient:
    """The edge can't reach the first group, so that the others ask it; then its wish comes."""
    client = prepared_to_break(cluster, rule, broken)
    loose = commit(cluster, client)
    loose.rounds(lambda: are_prepared(cluster))
    loose.cut("s1", ["b1"])
    cluster.settle()
    cluster.advance(11_000)
    assert not prepared_txs(cluster, "b").prepared
    cluster.heal()
    cluster.advance_until_ready()
    return client


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("rule", ["abort_noted", "decided_once"])
def test_abort_noted_before_it_is_told_and_decided_once(
    cluster: CoreCluster, rule: str, broken: bool
) -> None:
    client = decided_against(cluster, rule, broken)
    if not broken:
        assert found(cluster) == NOTHING
        assert "rolled back" in client.pick(ChannelClose).reply_text
    else:
        # The client has been told that it is committed; "held" is not acked.
        client.pick(TxCommitOk)
        assert found(cluster) == [[b"x"], [], []]
        assert cluster[home_of(cluster, "c")].queue("c").unacked == 1


@pytest.mark.parametrize("broken", BROKEN)
def test_edge_last(cluster: CoreCluster, broken: bool) -> None:
    """A group takes long to settle. Answered before, the client's next transaction could be done
    there first."""
    client = prepared_to_break(cluster, "edge_last", broken)
    loose = commit(cluster, client)
    loose.rounds(lambda: is_told(cluster))
    cluster["b2"].hold_disk()
    cluster.settle()
    cluster.advance(5_000)
    answers = [each for each in client.take() if isinstance(each, TxCommitOk)]
    assert len(answers) == (1 if broken else 0)
    cluster["b2"].let_disk_go()
    cluster.advance(1_000)
    answers += [each for each in client.take() if isinstance(each, TxCommitOk)]
    assert len(answers) == 1
    assert found(cluster) == DONE


def test_an_edge_without_a_root_begins_nothing(cluster: CoreCluster) -> None:
    """A secondary that can't see the root reads no publishes (A3), so that a commit waits in its
    connection, unread, and nobody is in doubt. It is done when the root is back, however late."""
    client = prepared_to_break(cluster, "asks", False)
    assert cluster.root() == "b1"
    cluster.cut("s1", "b1")
    client.send_bytes(fill(client))
    client.send(TxCommit())
    cluster.advance(20_000)
    assert not any(doubts(member.node.roles.tx_transport) for member in cluster.running())
    assert not cluster["s1"].broker.commits
    cluster.heal()
    cluster.advance_until_ready()
    client.pick(TxCommitOk)
    assert found(cluster) == DONE


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("rule", ["kept_until_settled", "asks"])
def test_decisions_are_kept_until_settled_and_who_is_in_doubt_asks(
    cluster: CoreCluster, rule: str, broken: bool
) -> None:
    """Who takes part (b2) can't hear the one that decides (b3) for longer than it is in doubt."""
    client = prepared_to_break(cluster, rule, broken)
    [held] = client.deliveries()
    data = client.published("", "b", b"x", PERSISTENT) + method_frame(1, BasicAck(held.tag))
    client.connection.receive(data + method_frame(1, TxCommit()))
    cluster["s1"].busy = True
    loose = Loose(cluster, 1)
    loose.rounds(lambda: bool(prepared_txs(cluster, "b").prepared))
    loose.cut("b2", ["b3"])
    cluster.settle()
    cluster.advance(13_000)
    assert home_of(cluster, "b") == "b2"
    cluster.heal()
    cluster.advance_until_ready()
    assert found(cluster) == [[], [] if broken else [b"x"], []]


def test_a_client_that_is_gone_before_it_is_decided_has_done_nothing(cluster: CoreCluster) -> None:
    """What it held of the group that decides is for others at once: they may have it by the time
    that its transaction could be decided."""
    client = cluster["b3"].connect()
    begin(client)
    for queue in QUEUES:
        standby_of(cluster, queue)
    other = cluster["s1"].connect()
    other.consume("c")
    client.connection.receive(fill(client) + method_frame(1, TxCommit()))
    cluster["b3"].busy = True
    loose = Loose(cluster, 1)
    loose.rounds(lambda: all(prepared_txs(cluster, queue).prepared for queue in "ab"))
    client.close_socket()
    cluster.advance(1_000)
    assert is_settled(cluster)
    assert [each.body for each in other.deliveries()] == [b"held"]
    assert [drain(cluster["b2"].connect(), queue) for queue in "ab"] == [[], []]


# ---- what people are told -----------------------------------------------------------------------


def test_what_is_in_doubt_for_long_is_told(cluster: CoreCluster) -> None:
    """The first group has no home: everybody else waits, and says for what."""
    client = prepared_to_break(cluster, "asks", False)
    loose = commit(cluster, client)
    loose.rounds(lambda: are_prepared(cluster))
    [edge] = doubts(cluster["s1"].node.roles.tx_transport)
    assert (edge.role, edge.state, edge.group) == ("edge", "preparing", 0)
    for name in ("b1", standby_of(cluster, "a").name):
        loose.kill(name)
    cluster.settle()
    [left] = [each.name for each in cluster.running() if each.name != "s1"]
    cluster.advance(LONG_MS // 2)
    assert tx_stalls(cluster[left].node) == []
    cluster.advance(LONG_MS // 2)
    [stall] = tx_stalls(cluster[left].node)
    assert (stall["broker"], stall["kind"]) == (left, "transaction")
    assert "waits for the decision of group 1" in str(stall["why"])
    restart(cluster, "b1", "b2" if left == "b3" else "b3")
    cluster.advance_until(lambda: is_settled(cluster))
    assert tx_stalls(cluster[left].node) == []


# ---- a home that is replaced while it lives ------------------------------------------------------


@pytest.mark.parametrize("victim", ["b2", "b3"])
def test_a_part_that_nobody_else_knows_to_be_done_is_not_done_twice(
    cluster: CoreCluster, victim: str
) -> None:
    """It does its part alone; the next home does it, too, and must not get it from the first."""
    client = prepared_to_break(cluster, "asks", False)
    loose = commit(cluster, client)
    loose.rounds(lambda: is_told(cluster))
    loose.cut(victim, [each for each in cluster.members if each != victim])
    queue = "b" if victim == "b2" else "c"
    cluster[victim].turn()
    assert not prepared_txs(cluster, queue).prepared
    cluster.settle()
    cluster.advance_until(lambda: home_of(cluster, queue) != victim)
    cluster.heal()
    cluster.advance_until_ready()
    assert found(cluster) == DONE
