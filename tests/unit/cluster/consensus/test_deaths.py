"""Certificates of death in the consensus core (R15): what is certain is not waited for."""

from __future__ import annotations

from rhizome.cluster.consensus.consensus_events import BrokerLeaseOver, Event, IncarnationRetired
from tests.interaction.consensus_stage import Actor, Stage
from tests.unit.cluster.consensus.invariant_watch import Audience

THREE = ("b1", "b2", "b3")


class Events(Audience):
    """Watches the rules, and keeps what happens and when."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.seen_events: list[tuple[int, str, Event]] = []

    def event(self, actor: Actor, event: Event) -> None:
        super().event(actor, event)
        self.seen_events.append((self.stage.now_ms, actor.name, event))

    def times(self, kind: type, incarnation: str) -> list[int]:
        return [
            at
            for at, _, event in self.seen_events
            if isinstance(event, kind) and getattr(event, "incarnation", "") == incarnation
        ]


def at_work(secondaries: tuple[str, ...] = ()) -> tuple[Stage, Events]:
    stage = Stage(THREE, secondaries)
    events = Events(stage)
    stage.start(*THREE, *secondaries)
    stage.run_until(lambda: len(stage.holders()) == len(stage.actors))
    assert stage.roots() == ["b1"]
    return stage, events


def certify(stage: Stage, incarnation: str, *to: str) -> None:
    name = incarnation.partition("-")[0]
    for each in to:
        stage.order(each, lambda core, now: core.died(name, incarnation, now))


def test_a_lease_ends_when_the_death_of_its_holder_is_committed() -> None:
    stage, events = at_work()
    stage.kill("b2")
    died_ms = stage.now_ms
    certify(stage, "b2-1", "b1")
    stage.run(100)
    assert events.times(BrokerLeaseOver, "b2-1")[0] - died_ms < 50
    assert "b2-1" in stage.core("b3").registry.retired


def test_without_a_certificate_the_lease_runs_out() -> None:
    stage, events = at_work()
    stage.kill("b2")
    died_ms = stage.now_ms
    stage.run(3000)
    assert events.times(BrokerLeaseOver, "b2-1")[0] - died_ms > 1000


def test_a_root_is_elected_at_once_when_the_death_of_the_last_is_certain() -> None:
    stage, _ = at_work()
    stage.kill("b1")
    certify(stage, "b1-1", "b2", "b3")
    took_ms = stage.run_until(lambda: stage.roots() == ["b2"])
    assert took_ms < 100
    stage.run_until(lambda: "b1-1" in stage.core("b3").registry.retired)


def test_one_primary_that_knows_elects_nobody_against_the_promise_of_another() -> None:
    """b3 keeps to the lease of b1 until it hears of the certificate, too."""
    stage, _ = at_work()
    stage.kill("b1")
    certify(stage, "b1-1", "b2")
    stage.run(300)
    assert stage.roots() == []
    certify(stage, "b1-1", "b3")
    assert stage.run_until(lambda: stage.roots() == ["b2"]) < 600


def test_a_certificate_that_comes_before_the_end_of_the_link_counts_from_that_end_on() -> None:
    stage, events = at_work()
    certify(stage, "b2-1", "b1", "b3")
    assert events.times(BrokerLeaseOver, "b2-1") == []
    stage.kill("b2")
    died_ms = stage.now_ms
    stage.run(100)
    assert events.times(BrokerLeaseOver, "b2-1")[0] - died_ms < 50


def test_a_certificate_of_the_root_that_comes_before_the_end_of_its_link_waits_for_that() -> None:
    stage, _ = at_work()
    certify(stage, "b1-1", "b2", "b3")
    stage.run(500)
    assert stage.roots() == ["b1"]
    stage.kill("b1")
    assert stage.run_until(lambda: stage.roots() == ["b2"]) < 100


def test_a_broker_that_lives_and_hears_that_it_was_declared_dead_serves_no_more() -> None:
    stage, events = at_work()
    certify(stage, "b2-1", "b2")
    assert "b2" not in stage.holders()
    assert events.times(IncarnationRetired, "b2-1") == [stage.now_ms]
    certify(stage, "b2-1", "b1", "b2")
    stage.run(5000)
    assert "b2" not in stage.holders()
    assert events.times(IncarnationRetired, "b2-1") == [events.times(IncarnationRetired, "b2-1")[0]]
    stage.kill("b2")
    stage.start("b2")
    stage.run_until(lambda: "b2" in stage.holders())


def test_a_root_that_lives_and_hears_that_it_was_declared_dead_resigns() -> None:
    stage, _ = at_work()
    certify(stage, "b1-1", "b1", "b2", "b3")
    assert "b1" not in stage.holders()
    assert stage.run_until(lambda: stage.roots() == ["b2"]) < 100
    stage.run(3000)
    assert stage.holders() == ["b2", "b3"]


def test_an_accused_broker_that_does_not_hear_of_it_keeps_the_lease_that_it_has() -> None:
    """It gets no other one, and is retired when that is over."""
    stage, events = at_work()
    accused_ms = stage.now_ms
    certify(stage, "b2-1", "b1")
    stage.run(500)
    assert "b2" in stage.holders()
    stage.run(2500)
    assert "b2" not in stage.holders()
    assert events.times(BrokerLeaseOver, "b2-1")[0] - accused_ms > 1000


def test_the_certificate_of_an_incarnation_that_is_over_changes_nothing() -> None:
    stage, events = at_work()
    stage.kill("b2")
    stage.start("b2")
    stage.run_until(lambda: "b2" in stage.holders())
    certify(stage, "b2-1", "b1", "b2", "b3")
    stage.run(3000)
    assert stage.holders() == ["b1", "b2", "b3"]
    assert events.times(IncarnationRetired, "b2-2") == []


def test_a_certificate_of_nobody_that_is_known_changes_nothing() -> None:
    stage, _ = at_work()
    for number in range(300):
        certify(stage, f"b{number + 7}-1", "b1", "b2")
    stage.run(3000)
    assert stage.holders() == ["b1", "b2", "b3"]
    assert len(stage.core("b2").machine.deaths) == 256


def test_a_secondary_that_died_leaves_the_registry() -> None:
    stage, _ = at_work(("s1",))
    stage.kill("s1")
    certify(stage, "s1-1", "b1")
    stage.run(50)
    assert stage.core("b1").registry.get("s1") is None


def test_a_root_that_begins_after_a_death_knows_of_it() -> None:
    """Root and home die together: the next root waits for no lease of the home."""
    stage = Stage(("b1", "b2", "b3", "b4", "b5"))
    events = Events(stage)
    stage.start(*stage.actors)
    stage.run_until(lambda: len(stage.holders()) == 5)
    stage.kill("b1", "b2")
    died_ms = stage.now_ms
    certify(stage, "b1-1", "b3", "b4", "b5")
    certify(stage, "b2-1", "b3", "b4", "b5")
    stage.run_until(lambda: bool(events.times(BrokerLeaseOver, "b2-1")))
    assert stage.now_ms - died_ms < 200
