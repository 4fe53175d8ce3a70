"""Brokers that get no processor for a while take nobody's silence for granted, but their own."""

from __future__ import annotations

import pytest

from rhizome.cluster.consensus import ConsensusSettings
from rhizome.cluster.consensus.consensus_events import BrokerLeaseOver, Event, RootLost
from rhizome.cluster.consensus.settings import EXCUSES_MAX
from tests.interaction.consensus_stage import Actor, Stage
from tests.unit.cluster.consensus.invariant_watch import Audience

FIVE = ("b1", "b2", "b3", "b4", "b5")
LEASE_MS = 900


def at_work(*names: str) -> Stage:
    stage = Stage(names or FIVE, ("s1",))
    Audience(stage)
    stage.start(*stage.actors)
    stage.run_until(lambda: len(stage.holders()) == len(stage.actors))
    assert stage.roots() == ["b1"]
    return stage


def stall(stage: Stage, name: str, ms: int) -> None:
    stage.stall(name)
    stage.run(ms)
    stage.wake(name)


def leases_over(stage: Stage) -> list[str]:
    """Whose leases the root takes for over from here on."""
    over: list[str] = []

    def heard(actor: Actor, event: Event) -> None:
        if isinstance(event, BrokerLeaseOver):
            over.append(event.name)

    stage.on_event = heard
    return over


def test_a_root_that_stood_still_stays_root_if_the_others_have_waited() -> None:
    stage = at_work()
    # They keep to its lease for a little longer than it holds it.
    stall(stage, "b1", LEASE_MS + 20)
    assert stage.roots() == ["b1"]
    assert "b1" not in stage.holders(), "its lease is over all the same (R9)"
    stage.run(50)
    assert stage.roots() == ["b1"]
    assert "b1" in stage.holders()
    assert stage.core("b2").term == 1


def test_a_root_that_stood_still_for_longer_has_a_successor() -> None:
    stage = at_work()
    stage.stall("b1")
    stage.run_until(lambda: len(stage.roots()) == 2)
    stage.wake("b1")
    stage.run(500)
    assert stage.roots() == ["b2"]
    assert stage.core("b1").term == stage.core("b2").term == 2


def test_a_root_that_nobody_answers_resigns_after_one_more_lease() -> None:
    stage = at_work()
    stage.isolate("b1")
    stall(stage, "b1", LEASE_MS + 20)
    assert stage.core("b1").is_root
    assert stage.run_until(lambda: not stage.core("b1").is_root) <= LEASE_MS


def test_standing_still_again_and_again_is_no_excuse_without_an_answer() -> None:
    stage = at_work()
    stage.isolate("b1")
    for _ in range(3):
        stall(stage, "b1", LEASE_MS)
    assert not stage.core("b1").is_root


def test_who_stood_still_hears_its_root_before_it_judges() -> None:
    stage = at_work()
    lost: list[str] = []

    def heard(actor: Actor, event: Event) -> None:
        if isinstance(event, RootLost):
            lost.append(actor.name)

    stage.on_event = heard
    stall(stage, "b3", 3 * LEASE_MS)
    stage.run(200)
    assert lost == []
    assert stage.core("b3").root == "b1"


def test_a_dead_root_is_missed_also_by_those_who_stand_still_all_the_time() -> None:
    stage = at_work("b1", "b2", "b3")
    stage.kill("b1")
    for _ in range(12):
        for name in ("b2", "b3"):
            stage.stall(name)
        stage.run(300)
        for name in ("b2", "b3"):
            stage.wake(name)
        stage.run(20)
    assert stage.roots() != []


def test_a_root_that_stood_still_takes_no_lease_for_over_that_was_asked_for() -> None:
    stage = at_work()
    over = leases_over(stage)
    for name in FIVE[1:]:
        stage.stall(name)
    stall(stage, "b1", 2 * LEASE_MS)
    for name in FIVE[1:]:
        stage.wake(name)
    stage.run(1000)
    assert "s1" not in over
    assert stage.roots() == ["b1"]
    assert stage.core("b1").term == 1


def test_the_time_that_a_root_stood_still_is_not_counted_against_those_who_answer_late() -> None:
    stage = at_work("b1", "b2", "b3")
    over = leases_over(stage)
    for name in ("b2", "b3"):
        stage.stall(name)
    stall(stage, "b1", 1_500)
    stage.wake("b2")
    # Longer than it takes to be heard, and much shorter than a lease.
    stage.run(800)
    stage.wake("b3")
    stage.run(200)
    assert over == []
    assert stage.roots() == ["b1"]


@pytest.mark.parametrize("still_ms", [300, 10_000])
def test_a_dead_broker_is_missed_by_a_root_that_stands_still_all_the_time(still_ms: int) -> None:
    stage = at_work("b1", "b2", "b3")
    over = leases_over(stage)
    stage.kill("b3")
    for _ in range(EXCUSES_MAX):
        stage.stall("b2")
        stall(stage, "b1", still_ms)
        stage.wake("b2")
        stage.run(50)
        assert over == []
    for _ in range(6):
        stage.stall("b2")
        stall(stage, "b1", 300)
        stage.wake("b2")
        stage.run(50)
    assert over == ["b3"]


def test_a_new_root_hears_from_the_one_before_if_that_lives() -> None:
    stage = at_work("b1", "b2", "b3")
    stage.stall("b1")
    stage.run_until(lambda: len(stage.roots()) == 2)
    new = next(name for name in stage.roots() if name != "b1")
    assert stage.core(new).hears("b1"), "it may be about to answer"
    stage.run(ConsensusSettings().election_patience_ms + 50)
    assert not stage.core(new).hears("b1")
    stage.wake("b1")
    stage.run(50)
    assert stage.core(new).hears("b1")
    assert stage.core("b1").root == new


@pytest.mark.parametrize("how", ["leave", "kill"])
def test_who_is_gone_isn_t_heard(how: str) -> None:
    stage = at_work("b1", "b2", "b3")
    assert stage.core("b1").hears("b2")
    if how == "leave":
        stage.order("b2", lambda core, now: core.leave(now))
        stage.run(5)
    else:
        stage.kill("b2")
        stage.run(50)
    assert not stage.core("b1").hears("b2")
    assert not stage.core("b3").hears("b2"), "only a root hears anybody"


@pytest.mark.parametrize("sync_ms", [100, 250, 420])
def test_slow_disks_cost_no_more_than_a_few_terms(sync_ms: int) -> None:
    """A vote is answered when it is on disk (R3), which may take longer than a patience."""
    stage = Stage(FIVE)
    Audience(stage)
    stage.sync_delay = lambda: sync_ms
    stage.start(*stage.actors)
    stage.run(15_000)
    assert len(stage.roots()) == 1
    (root,) = stage.roots()
    assert stage.core(root).term <= 3, stage.play()
    stage.kill(root)
    stage.run(15_000)
    assert len(stage.roots()) == 1
    assert stage.core(stage.roots()[0]).term <= 6, stage.play()
