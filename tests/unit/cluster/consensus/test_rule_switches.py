"""What each rule prevents: the same story twice, and without the rule it ends badly.

A story is told on a stage with an audience that raises a Violation, or asserts by itself what the
rule is there for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import pytest

from rhizome.cluster.consensus import ALL_RULES, ConsensusSettings, Rules
from rhizome.cluster.consensus.consensus_messages import Append, Message, SnapshotChunk
from tests.interaction.consensus_stage import Stage
from tests.unit.cluster.consensus.invariant_watch import Audience, Violation

THREE = ("b1", "b2", "b3")
BIG = ConsensusSettings(append_entries_max=1, log_entries_max=10, log_entries_kept=2)

Story = Callable[[Rules], None]


def stage_of(
    rules: Rules,
    primaries: tuple[str, ...] = THREE,
    secondaries: tuple[str, ...] = (),
    settings: ConsensusSettings | None = None,
) -> Stage:
    """A cluster at work under b1, watched."""
    stage = Stage(primaries, secondaries, settings, rules=rules)
    Audience(stage)
    stage.start(*primaries, *secondaries)
    stage.run_until(lambda: len(stage.holders()) == len(stage.actors))
    assert stage.roots() == ["b1"]
    return stage


def commit(stage: Stage, root: str, data: bytes) -> None:
    index = stage.propose(root, data)
    assert index is not None
    stage.run_until(lambda: stage.core(root).commit_index >= index)


def election_quorum_majority(rules: Rules) -> None:
    stage = stage_of(rules)
    stage.kill("b1")
    stage.cut("b2", "b3")
    stage.run(5000)
    assert stage.roots() == []


def commit_quorum(rules: Rules) -> None:
    stage = stage_of(rules)
    stage.isolate("b1")
    stage.propose("b1", b"x")
    stage.run(5000)
    assert stage.roots() == ["b2"]


def synced_before_counted(rules: Rules) -> None:
    stage = stage_of(rules)
    stage.hang_disk("b2")
    stage.hang_disk("b3")
    stage.propose("b1", b"x")
    stage.run(100)
    stage.kill("b1", "b2", "b3")
    for name in ("b2", "b3"):
        stage.actors[name].hanging = False
    stage.start("b2", "b3")
    stage.run(5000)
    assert stage.roots() == ["b2"]


def only_own_term_by_counting(rules: Rules) -> None:
    """Figure 8 of the Raft paper, with three brokers."""
    stage = stage_of(rules, settings=BIG)
    stage.censor = lambda sender, receiver, message: isinstance(message, Append)
    stage.propose("b1", b"x")
    stage.run(10)
    stage.kill("b1")
    stage.run_until(lambda: stage.roots() == ["b2"])
    stage.run(10)
    stage.kill("b2")
    stage.start("b1")

    def all_but_x(sender: str, receiver: str, message: Message) -> bool:
        if not isinstance(message, Append):
            return False
        return any(entry.payload != b"x" for entry in message.entries)

    stage.censor = all_but_x
    stage.run_until(lambda: stage.roots() == ["b1"])
    stage.run(400)
    stage.kill("b1")
    stage.start("b2")
    stage.censor = lambda sender, receiver, message: False
    stage.run(5000)
    assert stage.roots() == ["b2"]


def vote_durable(rules: Rules) -> None:
    """b1's vote for b2 is lost in a crash, and it votes for b3 in the same term."""
    stage = stage_of(rules)
    stage.actors["b1"].starting = stage.core("b1").state.starting = True
    stage.cut("b2", "b3")
    stage.isolate("b1")
    stage.run(4000)
    assert stage.roots() == []
    stage.hang_disk("b1")
    stage.link("b1", "b2")
    stage.run(2000)
    stage.kill("b1")
    stage.isolate("b2")
    stage.actors["b1"].hanging = False
    stage._start(stage.actors["b1"])
    stage.link("b1", "b3")
    stage.run(5000)


def log_completeness_in_votes(rules: Rules) -> None:
    stage = stage_of(rules)
    stage.isolate("b3")
    commit(stage, "b1", b"x")
    stage.core("b2").state.starting = True
    stage.heal()
    stage.censor = lambda sender, receiver, message: receiver == "b3" and sender == "b1"
    stage.run(10)
    stage.kill("b1")
    stage.run(10_000)
    assert stage.roots() == []


def _with_learners(rules: Rules, learners: tuple[str, ...]) -> Stage:
    """Three primaries and brokers that have caught up but don't vote."""
    stage = Stage((*THREE, *learners), rules=rules)
    for actor in stage.actors.values():
        actor.bootstrap = THREE if actor.name in THREE else None
    Audience(stage)
    stage.start(*THREE, *learners)
    stage.run_until(lambda: len(stage.holders()) == len(stage.actors))
    return stage


def joint_membership(rules: Rules) -> None:
    """b4 is admitted by b1 and b4 alone, while b2 and b3 still are two of three."""
    stage = _with_learners(rules, ("b4",))
    stage.censor = lambda sender, receiver, message: (
        isinstance(message, Append) and receiver in ("b2", "b3")
    )
    stage.order("b1", lambda core, now: core.add_primary("b4", now))
    stage.run(50)
    stage.kill("b1")
    stage.isolate("b4")
    stage.run(5000)
    assert stage.roots() == ["b2"]


def one_change_at_a_time(rules: Rules) -> None:
    """Two changes at once: of the three configurations the oldest is asked no more."""
    stage = _with_learners(rules, ("b4", "b5"))
    stage.censor = lambda sender, receiver, message: (
        isinstance(message, Append) and receiver in ("b2", "b3")
    )
    stage.order("b1", lambda core, now: core.add_primary("b4", now))
    with pytest.raises(Exception, match="another change") if rules == ALL_RULES else _anything():
        stage.order("b1", lambda core, now: core.add_primary("b5", now))
    stage.run(50)
    stage.kill("b1")
    stage.isolate("b4", "b5")
    stage.run(5000)
    assert stage.roots() == ["b2"]


class _anything:  # noqa: N801
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def pre_vote(rules: Rules) -> None:
    """A broker that was cut off comes back and leaves the healthy root alone."""
    stage = stage_of(rules)
    stage.isolate("b3")
    stage.run(5000)
    stage.heal()
    stage.run(3000)
    if stage.core("b1").term != 1:
        raise Violation("b3 came back and deposed a healthy root")


def secondaries_never_vote(rules: Rules) -> None:
    stage = stage_of(rules, secondaries=("s1",))
    votes: list[str] = []
    stage.kill("b1")
    stage.run(3000)
    votes = [line for line in stage.lines if "s1 -> " in line and "you have my vote" in line]
    if votes:
        raise Violation(votes[0])


def wiped_store_is_new(rules: Rules) -> None:
    """b3 was counted for x, forgot it, and would elect somebody who never had it."""
    stage = stage_of(rules)
    stage.isolate("b2")
    commit(stage, "b1", b"x")
    stage.kill("b1", "b3")
    stage.actors["b3"].wipe()
    stage.start("b3")
    stage.run(10_000)
    assert stage.roots() == []


def founding_quorum(rules: Rules) -> None:
    stage = Stage(THREE, rules=rules)
    Audience(stage)
    for name in THREE:
        stage._start(stage.actors[name])
    stage.run(10_000)
    assert stage.roots() == []


def late_snapshot_ignored(rules: Rules) -> None:
    """A snapshot that b2 has long gone beyond arrives, and then b2 must vouch for what it had."""
    stage = stage_of(rules, secondaries=("s1",), settings=BIG)
    stage.isolate("s1")
    late: list[SnapshotChunk] = []

    def watch(sender: str, receiver: str, message: Message) -> bool:
        if isinstance(message, SnapshotChunk):
            late.append(message)
        return False

    stage.censor = watch
    for number in range(30):
        commit(stage, "b1", b"%d" % number)
    stage.heal()
    stage.run(1000)
    assert late
    stage.isolate("b3")
    commit(stage, "b1", b"x")
    stage.order("b2", lambda core, now: core.step("b1", late[0], now))
    stage.run(5)
    stage.kill("b1")
    stage.heal()
    stage.run(5000)


def lease_from_sending(rules: Rules) -> None:
    """Answers take 600 ms to b1; those of the time before it is cut off go on arriving."""
    stage = stage_of(rules)
    for name in ("b2", "b3"):
        stage.slow[(name, "b1")] = 600
    stage.run(3000)
    assert stage.roots() == ["b1"]
    stage.censor = lambda sender, receiver, message: "b1" in (sender, receiver)
    stage.run(3000)
    assert stage.roots() == ["b2"]


def lease_honoured(rules: Rules) -> None:
    """b2 can't see the root; b3 can, and must not help b2."""
    stage = stage_of(rules)
    stage.cut("b1", "b2")
    stage.run(5000)
    assert stage.roots() == ["b1"]


def disk_in_root_lease(rules: Rules) -> None:
    stage = stage_of(rules)
    stage.hang_disk("b1")
    stage.run(3000)
    if stage.roots() != ["b2"]:
        raise Violation("a root that can't write stays in office")


def takeover_delay(rules: Rules) -> None:
    stage = stage_of(rules)
    stage.kill("b1")
    stage.run(3000)


def settled_before_ok(rules: Rules) -> None:
    stage = stage_of(rules)
    stage.propose("b1", b"x")
    stage.run(100)
    assert stage.core("b3").settled_index == stage.core("b1").commit_index


def current_before_lease(rules: Rules) -> None:
    """s1 comes back and hears the root, but not yet what it missed."""
    stage = stage_of(rules, secondaries=("s1",))
    stage.isolate("s1")
    stage.run(5000)
    commit(stage, "b1", b"x")
    stage.run(100)
    stage.censor = lambda sender, receiver, message: (
        isinstance(message, Append) and receiver == "s1"
    )
    stage.heal()
    stage.run(1000)
    assert "s1" not in stage.holders()


def one_vote_per_machine(rules: Rules) -> None:
    """b2 and b3 share a host: the loss of b1 leaves one vote of two."""
    stage = Stage(THREE, rules=rules)
    for name in ("b2", "b3"):
        stage.actors[name].machine = "the same host"
    stage.start(*THREE)
    stage.run_until(lambda: len(stage.holders()) == 3)
    stage.kill("b1")
    stage.run(5000)
    if stage.roots():
        raise Violation(f"one host elected {stage.roots()}")


def death_of_one_incarnation(rules: Rules) -> None:
    """b2 is back when the certificate of its last incarnation comes."""
    stage = stage_of(rules)
    stage.kill("b2")
    stage.start("b2")
    stage.run_until(lambda: "b2" in stage.holders())
    stage.order("b1", lambda core, now: core.died("b2", "b2-1", now))
    stage.run(5000)
    if "b2" not in stage.holders():
        raise Violation("the certificate of an earlier incarnation has ended this one")


def accused_is_fenced(rules: Rules) -> None:
    """b2 lives, holds its lease, and has a certificate of death."""
    stage = stage_of(rules)
    stage.order("b1", lambda core, now: core.died("b2", "b2-1", now))
    stage.run(5000)
    assert stage.core("b2").retired


STORIES: dict[str, Story] = {
    story.__name__: story
    for story in (
        election_quorum_majority,
        commit_quorum,
        synced_before_counted,
        only_own_term_by_counting,
        vote_durable,
        log_completeness_in_votes,
        joint_membership,
        one_change_at_a_time,
        pre_vote,
        secondaries_never_vote,
        wiped_store_is_new,
        founding_quorum,
        late_snapshot_ignored,
        lease_from_sending,
        lease_honoured,
        disk_in_root_lease,
        takeover_delay,
        settled_before_ok,
        current_before_lease,
        one_vote_per_machine,
        death_of_one_incarnation,
        accused_is_fenced,
    )
}


def test_every_switch_has_its_story() -> None:
    assert list(STORIES) == [field.name for field in fields(Rules)]


@pytest.mark.parametrize("rule", STORIES)
def test_with_the_rule_all_is_well(rule: str) -> None:
    STORIES[rule](ALL_RULES)


@pytest.mark.parametrize("rule", STORIES)
def test_without_the_rule_it_ends_badly(rule: str) -> None:
    with pytest.raises(Violation):
        STORIES[rule](replace(ALL_RULES, **{rule: False}))
