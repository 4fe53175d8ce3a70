"""Who is elected, and when (R3, R5)."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations, product
from random import Random

import pytest

from rhizome.cluster.consensus import ALL_RULES, ConsensusSettings
from rhizome.cluster.consensus.consensus_messages import (
    Message,
    PreVote,
    PreVoteAnswer,
    Vote,
    VoteAnswer,
)
from rhizome.cluster.consensus.election import SECONDARY_NEVER_VOTES, Candidacy
from rhizome.cluster.consensus.log.cluster_store import Entry, Image
from rhizome.cluster.consensus.log.log_entry_payloads import APPLICATION
from rhizome.cluster.consensus.node_state import NodeState
from rhizome.cluster.link.broker_hello import WITNESS, Hello, hash_primaries
from tests.interaction.consensus_stage import Stage
from tests.unit.cluster.consensus.invariant_watch import Audience

THREE = ("b1", "b2", "b3")
FOUR = ("b1", "b2", "b3", "b4")


def at_work(primaries: tuple[str, ...] = THREE, secondaries: tuple[str, ...] = ()) -> Stage:
    stage = Stage(primaries, secondaries)
    Audience(stage)
    stage.start(*primaries, *secondaries)
    stage.run_until(lambda: len(stage.holders()) == len(stage.actors))
    assert stage.roots() == ["b1"]
    return stage


def test_the_most_senior_is_elected_when_the_logs_are_alike() -> None:
    stage = at_work()
    stage.kill("b1")
    stage.start("b1")
    stage.run(5000)
    stage.kill("b2")
    stage.run(3000)
    assert stage.roots() == ["b3"]  # b1 has registered again since


def test_who_is_in_sync_for_more_groups_goes_before_seniority() -> None:
    stage = at_work()
    stage.core("b3").prefer(2)
    stage.kill("b1")
    stage.run(3000)
    assert stage.roots() == ["b3"]


def test_a_longer_log_goes_before_everything() -> None:
    stage = at_work()
    stage.core("b2").prefer(9)
    stage.cut("b1", "b2")
    stage.propose("b1", b"x")
    stage.run(20)
    stage.kill("b1")
    stage.run(3000)
    assert stage.roots() == ["b3"]


def test_a_witness_is_root_only_if_nobody_else_can_be() -> None:
    stage = Stage(("a", "b", "c"))
    stage.actors["a"].role = stage.actors["b"].role = WITNESS
    stage.start("a", "b", "c")
    stage.run_until(lambda: len(stage.holders()) == 3)
    assert stage.roots() == ["c"]
    stage.kill("c")
    stage.run(3000)
    assert stage.roots() == ["a"]


def test_founding_waits_for_all_but_not_for_ever() -> None:
    stage = Stage(THREE)
    stage.start("b1", "b2")
    stage.run(2900)
    assert stage.roots() == []
    stage.run(1000)
    assert stage.roots() == ["b1"]
    assert not stage.core("b1").status().members[2].bound


def test_founding_needs_more_than_half() -> None:
    stage = Stage(THREE)
    stage.start("b2")
    stage.run(60_000)
    assert stage.roots() == []
    assert "too few" in stage.core("b2").status().waits_for


def test_lists_of_primaries_that_differ_found_nothing() -> None:
    stage = Stage(THREE)
    stage.actors["b2"].bootstrap = ("b1", "b2", "b4")
    stage.actors["b3"].bootstrap = ("b3", "b4", "b5")
    stage.start(*THREE)
    stage.run(10_000)
    assert stage.roots() == []


def test_status_says_why_brokers_that_are_here_dont_count() -> None:
    stage = Stage(THREE)
    stage.actors["b2"].machine = stage.actors["b1"].machine
    stage.actors["b3"].bootstrap = ("b1", "b3")
    stage.start(*THREE)
    stage.run(5000)
    waits_for = stage.core("b1").status().waits_for
    assert waits_for == (
        "links to more primaries: these are too few to elect a root; "
        "b2 doesn't count: it has the machine id of b1; "
        "b3 doesn't count: it is configured with another list of primaries than b1"
    )
    assert "b2 doesn't count" in stage.core("b2").status().waits_for


def test_status_says_that_a_wiped_store_is_not_admitted() -> None:
    stage = at_work()
    stage.kill(*THREE)
    stage.actors["b3"].wipe()
    stage.start("b1", "b3")
    stage.run(5000)
    assert "b3 doesn't count: the root hasn't admitted its store yet" in (
        stage.core("b1").status().waits_for
    )
    waits_for = stage.core("b3").status().waits_for
    assert waits_for == "the root of the cluster that it sees, to join it"


def test_a_starting_broker_is_waited_for_while_the_candidate_is_young() -> None:
    stage = Stage(THREE)
    stage.actors["b3"].starting = True
    stage.start(*THREE)
    stage.run(2900)
    assert stage.roots() == []
    stage.run(500)
    assert stage.roots() == ["b1"]


def test_a_broker_that_starts_for_long_holds_up_nobody_who_has_been_there() -> None:
    stage = at_work()
    stage.kill("b3")
    stage.run(4000)
    stage.actors["b3"].starting = True
    stage.start("b3")
    stage.run(100)
    stage.kill("b1")
    assert stage.run_until(lambda: stage.roots() == ["b2"]) < 2000


def test_a_restarted_broker_keeps_to_promises_that_it_has_forgotten() -> None:
    """b3 promised b1 a lease and restarts; b2, which can't see b1, must not get its vote."""
    stage = at_work()
    stage.cut("b1", "b2")
    stage.run(1500)
    stage.kill("b3")
    stage.start("b3")
    stage.cut("b1", "b3")
    stage.run(500)
    assert stage.roots() != ["b2"]


def test_a_paused_root_finds_that_it_is_none() -> None:
    stage = at_work()
    stage.censor = lambda sender, receiver, message: "b1" in (sender, receiver)
    stage.run_until(lambda: "b2" in stage.roots())
    assert stage.holders().count("b1") == 0


def test_an_earlier_batch_that_is_synced_is_not_the_own_vote() -> None:
    """R3: what counts is the sync of the batch with the vote in it."""
    me = Hello("b1", "u1", "i1", primaries_hash=hash_primaries(("b1",)))
    state = NodeState(me, Image("u1"), ConsensusSettings(), Random(1), 0, ("b1",), ALL_RULES)
    state.persistent.touch()
    earlier = state.persistent.take(0)
    assert earlier is not None
    candidacy = Candidacy(state)
    vote = state.persistent.take(0)
    assert vote is not None
    candidacy.written(earlier[0])
    assert not candidacy.won
    candidacy.written(vote[0])
    assert candidacy.won


def test_the_vote_of_a_term_is_given_once() -> None:
    stage = at_work()
    votes = [line for line in stage.lines if "you have my vote in term 1" in line]
    assert len(votes) == 2


def asked(stage: Stage, name: str, question: PreVote | Vote) -> list[Message]:
    """What a broker answers to a question that b3 puts to it."""
    answers: list[Message] = []

    def hear(sender: str, receiver: str, message: Message) -> bool:
        if (sender, receiver) == (name, "b3") and isinstance(message, (PreVoteAnswer, VoteAnswer)):
            answers.append(message)
        return True

    stage.censor = hear
    stage.order(name, lambda core, now_ms: core.step("b3", question, now_ms))
    stage.run(10)
    return answers


@pytest.mark.parametrize("kind", [PreVote, Vote])
def test_a_secondary_refuses_its_vote_to_whoever_a_primary_would_elect(kind: type) -> None:
    stage = at_work(FOUR, ("s1",))
    stage.kill("b1", "b2")
    stage.run(5000)
    assert stage.roots() == [], "two of four can elect nobody"
    log = stage.core("b3").state.persistent.log
    term = stage.core("b3").state.term + 1
    question: PreVote | Vote = Vote(term, log.last_term, log.last_index, 0)
    if kind is PreVote:
        question = PreVote(term, 9, log.last_term, log.last_index, 0, 1, True, False)
    [primary] = asked(stage, "b4", question)
    assert isinstance(primary, (PreVoteAnswer, VoteAnswer))
    assert primary.yes
    [secondary] = asked(stage, "s1", question)
    assert isinstance(secondary, (PreVoteAnswer, VoteAnswer))
    assert (secondary.yes, secondary.reason) == (False, SECONDARY_NEVER_VOTES)
    assert stage.core("s1").state.term < term, "it doesn't even take up the term"


def test_a_root_stays_when_exactly_half_is_left_and_none_can_be_elected() -> None:
    stage = at_work(("b1", "b2"))
    stage.kill("b2")
    stage.run(5000)
    assert stage.holders() == ["b1"]
    assert stage.propose("b1", b"alone") is not None
    stage.run(10)
    assert stage.actors["b1"].state == [b"alone"]


@pytest.mark.parametrize("seed", range(2))
def test_elections_in_a_row_are_quick(seed: int) -> None:
    stage = Stage(("b1", "b2", "b3", "b4", "b5"), seed=seed)
    Audience(stage)
    stage.start(*stage.actors)
    stage.run_until(lambda: len(stage.holders()) == 5)
    for _ in range(25):
        (root,) = stage.roots()
        stage.kill(root)
        assert stage.run_until(lambda: len(stage.roots()) == 1) < 2000
        stage.start(root)
        stage.run(1500)


@cache
def _images() -> dict[str, Image]:
    """What four primaries keep that have worked together for a moment."""
    stage = Stage(FOUR)
    stage.start(*FOUR)
    stage.run_until(lambda: len(stage.holders()) == 4)
    stage.kill(*FOUR)
    return {name: actor.store.image for name, actor in stage.actors.items()}


def _situation(linked: list[tuple[str, str]], lengths: tuple[int, ...]) -> Stage:
    """Four primaries of a cluster, of which the root is dead; logs of these lengths."""
    stage = Stage(FOUR)
    for name, length in zip(("b2", "b3", "b4"), lengths, strict=True):
        image = _images()[name]
        last = image.entries[-1].index
        more = tuple(Entry(last + 1 + n, 1, APPLICATION, b"x") for n in range(length))
        stage.actors[name].store.image = replace(image, entries=image.entries + more)
        stage._start(stage.actors[name])
    for a, b in linked:
        stage.link(a, b)
    return stage


def _electable(linked: list[tuple[str, str]], lengths: tuple[int, ...]) -> bool:
    """Whether some broker sees E = 3 whose logs aren't ahead of its own, itself included."""
    names = ("b2", "b3", "b4")
    length = dict(zip(names, lengths, strict=True))
    for me in names:
        seen = [o for o in names if o == me or (me, o) in linked or (o, me) in linked]
        if sum(length[o] <= length[me] for o in seen) >= 3:
            return True
    return False


def test_whoever_can_be_elected_is_whatever_the_others_say() -> None:
    """Every connection of three of four primaries, with every order of their logs."""
    pairs = list(combinations(("b2", "b3", "b4"), 2))
    electable = 0
    for chosen in product((False, True), repeat=3):
        linked = [pair for pair, there in zip(pairs, chosen, strict=True) if there]
        for lengths in product(range(3), repeat=3):
            stage = _situation(linked, lengths)
            if _electable(linked, lengths):
                electable += 1
                stage.run_until(lambda: bool(stage.roots()), 6000)  # noqa: B023
            else:
                stage.run(3000)
                assert not stage.roots()
    assert electable > 20
