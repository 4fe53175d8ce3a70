"""Commands that take long are applied over several turns: whoever may set policies in one vhost
could otherwise have every broker stand still, and the cluster without a root, by many at once."""

from __future__ import annotations

from typing import Final

import pytest

from rhizome.broker.metadata.metadata_commands import DeclareQueue, DeletePolicy, PutPolicy
from rhizome.broker.metadata.vhost import REFRESH_WORK
from rhizome.broker.turn import TURN_WORK_MAX, Turn
from rhizome.cluster.committed_backlog import CommittedBacklog
from rhizome.cluster.consensus.consensus_events import LeaseGained, LeaseLost
from rhizome.cluster.consensus.consensus_output import Ready
from rhizome.cluster.consensus.log.cluster_store import Entry
from rhizome.cluster.consensus.log.log_entry_payloads import APPLICATION
from rhizome.testing.in_memory_cluster import TICK_MS, CoreCluster, Member, make_cluster

QUEUES: Final = 100
MANY_QUEUES: Final = TURN_WORK_MAX // REFRESH_WORK * 2
LONG_NAME: Final = "n" * 240
POLICIES: Final = 40
SLOW_PATTERN: Final = "(a|b){3}x$"
"""One that is searched character by character."""
AT_ONCE_MAX: Final = 6
"""How many of these policies fill a turn, with the one that exceeds it."""
PATIENCE_MS: Final = 60_000


@pytest.fixture
def cluster() -> CoreCluster:
    made = make_cluster(3, 1)
    root = made["b1"].node
    for number in range(QUEUES):
        root.propose(DeclareQueue("/", f"{number}{LONG_NAME}"), None)
    made.advance_until(lambda: queues_everywhere(made), PATIENCE_MS)
    return made


def queues_everywhere(cluster: CoreCluster, count: int = QUEUES) -> bool:
    return all(
        len(each.broker.state.vhosts["/"].queues) >= count for each in cluster.members.values()
    )


def policies_at(member: Member) -> int:
    return len(member.broker.state.vhosts["/"].policies)


def propose_policies(member: Member) -> None:
    for number in range(POLICIES):
        command = PutPolicy("/", f"p{number}", f"{SLOW_PATTERN}|{number}", {"max-length": 9})
        member.node.propose(command, None)


def most_in_one_turn(cluster: CoreCluster) -> int:
    """Let all brokers have turns until they are quiet; how many policies one of them has set in a
    single turn."""
    most = 0
    while True:
        ran = False
        for member in cluster.members.values():
            before = policies_at(member)
            ran = member.turn() or ran
            most = max(most, policies_at(member) - before)
        if not ran:
            return most


@pytest.mark.parametrize("asked", ["b1", "b2", "s1"])
def test_long_commands_do_not_fill_one_turn(cluster: CoreCluster, asked: str) -> None:
    propose_policies(cluster[asked])
    cluster[asked].busy = True
    most = most_in_one_turn(cluster)
    cluster.advance_until(
        lambda: all(policies_at(each) == POLICIES for each in cluster.members.values()),
        PATIENCE_MS,
    )
    assert 1 <= most <= AT_ONCE_MAX
    roots = {each.node.consensus.root for each in cluster.members.values()}
    assert roots == {"b1"}, "the root kept its role"
    assert not any(each.node.backlog.entries for each in cluster.members.values())


def test_a_broker_that_comes_back_catches_up(cluster: CoreCluster) -> None:
    propose_policies(cluster["b1"])
    cluster["b1"].settle()
    cluster.advance_until(lambda: policies_at(cluster["b3"]) == POLICIES, PATIENCE_MS)
    member = cluster["b3"]
    member.kill()
    member.start()
    assert not member.node.backlog.entries, "what it knows of is applied before it votes"
    cluster.advance_until(lambda: policies_at(member) == POLICIES, PATIENCE_MS)


def test_what_is_behind_a_policy_waits_until_it_is_in_force(cluster: CoreCluster) -> None:
    """Else what a command does would depend on how far a broker has come."""
    root = cluster["b1"].node
    for number in range(MANY_QUEUES):
        root.propose(DeclareQueue("/", f"q{number}"), None)
    cluster.advance_until(lambda: queues_everywhere(cluster, QUEUES + MANY_QUEUES), PATIENCE_MS)
    root.propose(PutPolicy("/", "p", "^q", {"copies": 3}), None)
    root.propose(DeclareQueue("/", "q-behind"), None)
    cluster["b1"].busy = True
    seen = []
    while not all("q-behind" in each.broker.state.vhosts["/"].queues for each in members(cluster)):
        ran = False
        for each in members(cluster):
            ran = each.turn() or ran
            vhost = each.broker.state.vhosts["/"]
            in_force = sum(queue.policy == "p" for queue in vhost.queues.values())
            seen.append(in_force)
            assert "q-behind" not in vhost.queues or in_force == MANY_QUEUES + 1
            begun = each.node.backlog.begun
            assert begun is None or int(each.node.applied.index) < begun[0].index
        if not ran:
            cluster.advance(TICK_MS)
    assert any(0 < count < MANY_QUEUES for count in seen), "in steps"


def test_a_snapshot_takes_the_place_of_an_entry_that_was_begun(cluster: CoreCluster) -> None:
    member = cluster["b3"]
    root = cluster["b1"]
    root.node.propose(PutPolicy("/", "p", ".*", {"max-length": 9}), None)
    cluster.advance_until(lambda: policies_at(root) == 1, PATIENCE_MS)
    snapshot, index = root.node.state.snapshot(), int(root.node.state.index)
    cluster.advance_until(lambda: policies_at(member) == 1, PATIENCE_MS)
    member.broker.state.begin(DeletePolicy("/", "p"))
    assert member.node.state.is_unfinished()
    member.node.state.restore(index, snapshot)
    assert not member.node.state.is_unfinished()
    vhost = member.broker.state.vhosts["/"]
    assert all(queue.options.length_max == 9 for queue in vhost.queues.values())


def members(cluster: CoreCluster) -> list[Member]:
    return list(cluster.members.values())


def test_a_lost_lease_does_not_wait_for_entries(cluster: CoreCluster) -> None:
    member = cluster["b3"]
    assert member.broker.may_deliver
    waiting = Ready(
        committed=[Entry(1 << 40, 1, APPLICATION, b"")], events=[LeaseLost(), LeaseGained()]
    )
    member.node.backlog.take(waiting)
    member.node._notice_lost_lease()
    assert not member.broker.may_deliver
    member.node.backlog.entries.clear()


def test_a_turn_that_entries_fill_is_followed_by_one_for_others() -> None:
    backlog, turn = CommittedBacklog(), Turn()
    backlog.take(Ready(committed=[Entry(1, 1, APPLICATION, b""), Entry(2, 1, APPLICATION, b"")]))
    assert backlog.takes_turn()
    backlog.rest(turn)
    assert turn.chores == [backlog], "there is another turn"
    assert [backlog.takes_turn() for _ in range(4)] == [False, True, False, True]
    backlog.entries.clear()
    assert backlog.run()
    assert backlog.takes_turn()
