"""Last man standing: the electorate shrinks while brokers stay away, and grows when they return."""

from __future__ import annotations

import pytest

from rhizome.cluster.consensus import ConsensusSettings
from rhizome.cluster.consensus.membership import Membership, Voter, one_vote_per_machine
from rhizome.cluster.consensus.rule_switches import ALL_RULES, Rules
from rhizome.cluster.consensus.settings import SettingsError
from tests.interaction.consensus_stage import Stage
from tests.unit.cluster.consensus.invariant_watch import Audience

THREE = ("b1", "b2", "b3")
FIVE = ("b1", "b2", "b3", "b4", "b5")
REST_MS = 5_000
LAST_MAN = ConsensusSettings(rest_ms=REST_MS)


def at_work(primaries: tuple[str, ...] = THREE, rest_ms: int = REST_MS) -> Stage:
    stage = Stage(primaries, (), ConsensusSettings(rest_ms=rest_ms))
    Audience(stage)
    stage.start(*primaries)
    stage.run_until(lambda: len(stage.holders()) == len(primaries))
    stage.run(500)
    assert stage.roots() == ["b1"]
    return stage


def voting(stage: Stage, name: str = "b1") -> list[str]:
    return [voter.name for voter in stage.core(name).registry.membership.voting()]


def commits(stage: Stage, name: str) -> bool:
    """Whether the root can change the state."""
    core = stage.core(name)
    index: list[int | None] = []
    stage.order(name, lambda core, now: index.append(core.propose(b"x", now)))
    stage.run(500)
    return index[0] is not None and core.state.persistent.commit >= index[0]


def test_three_go_one_after_the_other_and_the_last_one_carries_on() -> None:
    stage = at_work()
    stage.kill("b2")
    stage.run(REST_MS - 100)
    assert voting(stage) == ["b1", "b2", "b3"]
    stage.run(1_000)
    assert voting(stage) == ["b1", "b3"]
    stage.kill("b3")
    stage.run(REST_MS + 1_000)
    assert voting(stage) == ["b1"]
    assert stage.roots() == ["b1"]
    assert commits(stage, "b1")


def test_the_last_one_is_root_again_after_a_restart() -> None:
    """Of two it could not be: electing needs both. Of one it can."""
    stage = at_work()
    stage.kill("b2")
    stage.run(REST_MS + 1_000)
    stage.kill("b3")
    stage.run(REST_MS + 1_000)
    stage.kill("b1")
    stage.run(1_000)
    stage.start("b1")
    stage.run(10_000)
    assert stage.roots() == ["b1"]


def test_who_comes_back_counts_again_once_it_has_caught_up() -> None:
    stage = at_work()
    stage.kill("b2")
    stage.run(REST_MS + 1_000)
    stage.kill("b3")
    stage.run(REST_MS + 1_000)
    assert commits(stage, "b1")
    stage.start("b2")
    stage.run(3_000)
    assert voting(stage) == ["b1", "b2"]
    stage.start("b3")
    stage.run(3_000)
    assert all(voting(stage, name) == ["b1", "b2", "b3"] for name in THREE)
    stage.kill("b1")
    stage.run(5_000)
    assert len(stage.roots()) == 1


def test_without_the_setting_nobody_rests() -> None:
    stage = at_work(rest_ms=0)
    stage.kill("b2")
    stage.run(60_000)
    assert voting(stage) == ["b1", "b2", "b3"]
    stage.kill("b3")
    stage.run(5_000)
    assert stage.roots() == []


def test_both_at_once_is_too_many() -> None:
    """The root resigns before anybody could rest: in order, or not at all."""
    stage = at_work()
    stage.kill("b2", "b3")
    stage.run(60_000)
    assert stage.roots() == []
    assert voting(stage) == ["b1", "b2", "b3"]


def test_those_who_rest_elect_nobody_without_the_last_one() -> None:
    """b3 has the membership of three, b2 that of two: neither has a quorum in its own (R3, R4)."""
    stage = at_work()
    stage.kill("b3")
    stage.run(REST_MS + 1_000)
    stage.kill("b2")
    stage.run(REST_MS + 1_000)
    assert commits(stage, "b1")
    stage.kill("b1")
    stage.start("b2", "b3")
    stage.run(60_000)
    assert stage.roots() == []
    stage.start("b1")
    stage.run(10_000)
    assert stage.roots() == ["b1"]
    assert sorted(voting(stage)) == ["b1", "b2", "b3"]


def test_without_completeness_in_votes_they_do() -> None:
    """Prove by breaking: R3 is what keeps them from it."""
    stage = Stage(THREE, (), LAST_MAN, rules=Rules(log_completeness_in_votes=False))
    stage.start(*THREE)
    stage.run_until(lambda: len(stage.holders()) == 3)
    stage.run(500)
    root = stage.roots()[0]
    second, third = (name for name in THREE if name != root)
    stage.kill(third)
    stage.run(REST_MS + 1_000)
    stage.kill(second)
    stage.run(REST_MS + 1_000)
    assert voting(stage, root) == [root]
    stage.kill(root)
    stage.start(second, third)
    stage.run(60_000)
    assert stage.roots() == [third]


def test_five_in_order() -> None:
    stage = at_work(FIVE)
    for gone, left in (("b5", 4), ("b2", 3), ("b4", 2), ("b3", 1)):
        stage.kill(gone)
        stage.run(REST_MS + 1_000)
        assert len(voting(stage)) == left
    assert stage.roots() == ["b1"]
    stage.start("b2", "b3", "b4", "b5")
    stage.run(10_000)
    assert len(voting(stage)) == 5


def test_a_root_that_dies_is_let_rest_by_the_next() -> None:
    stage = at_work()
    stage.kill("b1")
    stage.run(REST_MS + 5_000)
    (root,) = stage.roots()
    assert voting(stage, root) == ["b2", "b3"]
    assert commits(stage, root)


def test_another_change_leaves_those_who_rest_at_rest() -> None:
    stage = Stage((*THREE, "b4"), (), LAST_MAN)
    for actor in stage.actors.values():
        actor.bootstrap = THREE if actor.name in THREE else None
    Audience(stage)
    stage.start(*stage.actors)
    stage.run_until(lambda: len(stage.holders()) == 4)
    stage.kill("b2")
    stage.run(REST_MS + 1_000)
    stage.order("b1", lambda core, now: core.add_primary("b4", now))
    stage.run(100)
    assert voting(stage) == ["b1", "b3", "b4"]
    assert stage.core("b1").registry.membership.resting() == ("b2",)


def test_of_two_on_one_machine_the_other_votes_while_one_rests() -> None:
    voters = [Voter("b1", "1", "m"), Voter("b2", "2", "m"), Voter("b3", "3", "n")]
    made = Membership(one_vote_per_machine(voters, "b3", ALL_RULES))
    assert [each.votes for each in made.voters] == [True, False, True]
    assert made.resting() == ()
    rested = Membership(one_vote_per_machine(made.voters, "b3", ALL_RULES, ["b1"]))
    assert [each.votes for each in rested.voters] == [False, True, True]
    assert rested.resting() == ()
    both = Membership(one_vote_per_machine(made.voters, "b3", ALL_RULES, ["b1", "b2"]))
    assert [each.votes for each in both.voters] == [False, False, True]
    assert both.resting() == ("b1", "b2")


def test_a_time_that_a_restart_takes_is_refused() -> None:
    with pytest.raises(SettingsError, match="must be longer than home_lease"):
        ConsensusSettings(rest_ms=1_000)
