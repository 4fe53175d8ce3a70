"""Leases and what is settled (R9, R10)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rhizome.cluster.consensus import ConsensusSettings
from rhizome.cluster.consensus.consensus_events import BrokerLeaseOver, Event, IncarnationRetired
from rhizome.cluster.consensus.consensus_messages import (
    Append,
    AppendAnswer,
    Heartbeat,
    Message,
    Report,
)
from tests.interaction.consensus_stage import Actor, Stage
from tests.unit.cluster.consensus.invariant_watch import Audience

THREE = ("b1", "b2", "b3")


def at_work(settings: ConsensusSettings | None = None, secondaries: int = 1) -> Stage:
    stage = Stage(THREE, tuple(f"s{n + 1}" for n in range(secondaries)), settings)
    Audience(stage)
    stage.start(*stage.actors)
    stage.run_until(lambda: len(stage.holders()) == len(stage.actors))
    assert stage.roots() == ["b1"]
    return stage


def test_leases_are_renewed_as_long_as_all_is_well() -> None:
    stage = at_work()
    for _ in range(50):
        stage.run(400)
        assert len(stage.holders()) == 4
    assert stage.core("b1").term == 1


def test_homes_keep_their_leases_through_an_election() -> None:
    stage = at_work()
    stage.kill("b1")
    lost = 0
    for _ in range(60):
        stage.run(50)
        lost += "b3" not in stage.holders() or "s1" not in stage.holders()
    assert stage.roots() == ["b2"]
    assert lost == 0


def test_an_isolated_broker_knows_it_before_the_root_replaces_it() -> None:
    stage = at_work()
    over: list[int] = []

    def heard(actor: Actor, event: Event) -> None:
        if isinstance(event, BrokerLeaseOver) and event.name == "s1":
            over.append(stage.now_ms)

    stage.on_event = heard
    stage.isolate("s1")
    lost_after_ms = stage.run_until(lambda: "s1" not in stage.holders())
    assert lost_after_ms < 1600
    assert over == []
    stage.run(1000)
    assert len(over) == 1


@pytest.mark.parametrize("permille", [(975, 1025), (1025, 975)])
def test_clocks_that_drift_within_the_limit_break_no_lease(permille: tuple[int, int]) -> None:
    stage = Stage(THREE, ("s1",))
    Audience(stage)
    for actor in stage.actors.values():
        actor.clock_permille = permille[1]
    stage.actors["b1"].clock_permille = permille[0]
    stage.start(*stage.actors)
    stage.run_until(lambda: len(stage.holders()) == 4)
    (root,) = stage.roots()
    stage.isolate(root)
    stage.run(6000)
    stage.heal()
    stage.run(6000)
    stage.isolate("s1")
    stage.run(6000)


def test_what_is_settled_waits_for_a_broker_that_may_still_serve() -> None:
    stage = at_work()
    stage.isolate("s1")
    index = stage.propose("b1", b"x")
    assert index is not None
    stage.run(1000)
    assert stage.core("b1").commit_index >= index
    assert stage.core("b1").settled_index < index
    took_ms = 1000 + stage.run_until(lambda: stage.core("b2").settled_index >= index)
    assert 1600 < took_ms < 1750


def test_a_lost_root_is_not_waited_for() -> None:
    stage = at_work()
    stage.kill("b1")
    stage.run_until(lambda: stage.roots() == ["b2"])
    stage.run(50)
    index = stage.propose("b2", b"x")
    assert index is not None
    assert stage.run_until(lambda: stage.core("b3").settled_index >= index) < 50


def test_a_restarted_broker_is_waited_for_only_as_what_it_is_now() -> None:
    stage = at_work()
    stage.kill("s1")
    stage.start("s1")
    stage.run(300)
    index = stage.propose("b1", b"x")
    assert index is not None
    assert stage.run_until(lambda: stage.core("s1").settled_index >= index) < 50


def test_a_new_root_waits_for_everybody_but_the_old_one() -> None:
    """b3 dies together with the root: nobody but time can say that it serves no more."""
    stage = at_work(secondaries=2)
    stage.kill("b1", "s2")
    stage.run_until(lambda: stage.roots() == ["b2"])
    index = stage.propose("b2", b"x")
    assert index is not None
    took_ms = stage.run_until(lambda: stage.core("b2").settled_index >= index)
    assert 1600 < took_ms < 1750


def test_a_new_root_grants_no_lease_to_one_that_missed_what_was_settled_before_it() -> None:
    """s1 was away while x was settled; the root that knew it is gone."""
    stage = at_work()
    stage.isolate("s1")
    stage.run(5000)
    stage.propose("b1", b"x")
    stage.run(50)
    stage.kill("b1")
    stage.run_until(lambda: stage.roots() == ["b2"])
    stage.censor = lambda sender, receiver, message: (
        isinstance(message, Append) and receiver == "s1"
    )
    stage.heal()
    stage.run(3000)
    assert stage.core("s1").root == "b2"
    assert "s1" not in stage.holders()


def test_a_new_root_waits_for_one_whose_registration_it_did_not_know_to_be_committed() -> None:
    stage = Stage(THREE, ("s1",))
    Audience(stage)
    stage.start(*THREE)
    stage.run_until(lambda: len(stage.holders()) == 3)
    stage.run(200)
    stage.censor = lambda sender, receiver, message: (
        isinstance(message, Heartbeat) and receiver in ("b2", "b3")
    )
    stage.start("s1")
    stage.run_until(lambda: "s1" in stage.holders())
    assert stage.core("b2").registry.get("s1") is None
    stage.isolate("s1")
    stage.kill("b1")
    stage.censor = lambda sender, receiver, message: False
    stage.run_until(lambda: stage.roots() == ["b2"])
    assert "s1" in stage.holders()
    index = stage.propose("b2", b"x")
    assert index is not None
    stage.run_until(lambda: stage.core("b2").settled_index >= index)
    assert "s1" not in stage.holders()


def test_a_root_serves_only_when_it_has_applied_what_was_settled_before() -> None:
    """b2 has the entries, and is elected; its application is behind."""
    stage = at_work()
    stage.actors["b2"].is_lazy = True
    index = stage.propose("b1", b"x")
    assert index is not None
    stage.run_until(lambda: stage.core("b3").settled_index >= index)
    assert "b2" not in stage.holders()
    stage.kill("b1")
    stage.run_until(lambda: stage.roots() == ["b2"])
    stage.run(500)
    assert "b2" not in stage.holders()
    stage.catch_up("b2")
    stage.run(200)
    assert "b2" in stage.holders()


def test_one_that_was_root_for_a_moment_holds_no_lease_from_before() -> None:
    """b2 follows b1, loses touch with everybody, and b3 counts it as the root that is gone."""
    stage = at_work()
    stage.kill("b1")
    stage.start("b1")
    stage.run_until(lambda: stage.roots() == ["b2"])
    stage.run(2)
    stage.isolate("b2")
    stage.run_until(lambda: "b3" in stage.roots() or "b1" in stage.roots())
    assert "b2" not in stage.holders()


def test_a_broker_that_hangs_while_others_wait_loses_its_lease() -> None:
    """It answers heartbeats, but applies nothing."""
    stage = at_work()
    stage.censor = lambda sender, receiver, message: (
        isinstance(message, Append) and receiver == "s1"
    )
    index = stage.propose("b1", b"x")
    assert index is not None
    took_ms = stage.run_until(lambda: stage.core("b1").settled_index >= index)
    assert took_ms < 7000
    assert "s1" not in stage.holders()


def test_news_of_commits_and_settling_need_no_heartbeat() -> None:
    stage = at_work(ConsensusSettings(heartbeat_ms=300))
    index = stage.propose("b1", b"x")
    assert index is not None
    took_ms = stage.run_until(
        lambda: all(stage.core(name).settled_index >= index for name in stage.actors)
    )
    assert took_ms < 10


def test_an_idle_cluster_says_little() -> None:
    stage = at_work()
    sent: list[Message] = []
    stage.censor = lambda sender, receiver, message: bool(sent.append(message))
    stage.run(15_000)
    assert len(sent) <= 15_000 / 150 * 3 * 2 + 6


def test_a_farewell_ends_a_lease_at_once() -> None:
    stage = at_work()
    stage.order("s1", lambda core, now: core.leave(now))
    stage.run(20)
    index = stage.propose("b1", b"x")
    assert index is not None
    assert stage.run_until(lambda: stage.core("b1").settled_index >= index) < 50
    assert stage.core("b1").registry.get("s1") is None
    assert "s1" not in stage.holders()


def test_a_root_that_leaves_keeps_nobody_waiting() -> None:
    stage = at_work()
    stage.order("b1", lambda core, now: core.leave(now))
    assert stage.run_until(lambda: stage.roots() == ["b2"]) < 100
    stage.run(1000)
    assert stage.core("b1").root == "b2"


def test_a_secondary_that_stays_away_is_retired_and_must_come_as_a_new_one() -> None:
    stage = at_work(replace(ConsensusSettings(), retire_ms=5000))
    retired: list[str] = []

    def heard(actor: Actor, event: Event) -> None:
        if isinstance(event, IncarnationRetired):
            retired.append(event.incarnation)

    stage.on_event = heard
    stage.isolate("s1")
    stage.run(8000)
    assert stage.core("b1").registry.get("s1") is None
    stage.heal()
    stage.run(2000)
    assert retired == ["s1-1"]
    assert "s1" not in stage.holders()
    stage.kill("s1")
    stage.start("s1")
    stage.run(500)
    assert "s1" in stage.holders()


def test_one_that_is_being_retired_gets_no_lease_any_more() -> None:
    """s1 comes back while its retirement is written, but not committed yet."""
    stage = at_work(replace(ConsensusSettings(), retire_ms=5000))
    stage.isolate("s1")
    stage.run(4900)
    stage.censor = lambda sender, receiver, message: (
        isinstance(message, AppendAnswer) and sender in ("b2", "b3")
    )
    stage.run(300)
    assert stage.core("b1").status().last_index > stage.core("b1").commit_index
    stage.heal()
    stage.run(500)
    assert "s1" not in stage.holders()
    stage.censor = lambda sender, receiver, message: False
    stage.cut("b1", "b2")
    stage.link("b1", "b2")
    stage.run(500)
    assert stage.core("s1").retired


def test_a_secondary_that_was_retired_unseen_learns_it_when_it_returns() -> None:
    """Its registration was committed, and it never heard of that."""
    stage = at_work(replace(ConsensusSettings(), retire_ms=5000))
    stage.kill("s1")
    stage.start("s1")
    stage.run_until(lambda: stage.core("b1").registry.is_registered("s1", "s1-2"))
    stage.isolate("s1")
    stage.run(10_000)
    assert stage.core("b1").registry.retired == ("s1-2",)
    stage.heal()
    stage.run(1000)
    assert stage.core("s1").retired
    assert stage.core("b1").registry.get("s1") is None


def test_a_primary_that_stays_away_is_not_retired() -> None:
    stage = at_work(replace(ConsensusSettings(), retire_ms=5000))
    stage.isolate("b3")
    stage.run(20_000)
    stage.heal()
    stage.run(500)
    assert "b3" in stage.holders()


def test_an_answer_that_comes_too_late_renews_nothing() -> None:
    stage = at_work()
    for name in ("b2", "b3", "s1"):
        stage.slow[(name, "b1")] = 1000
    stage.run(3000)
    assert "b1" not in stage.roots()


def test_the_root_counts_the_disk_of_a_lone_primary() -> None:
    stage = Stage(("b1",))
    stage.start("b1")
    stage.run_until(lambda: stage.holders() == ["b1"])
    stage.run(5000)
    assert stage.holders() == ["b1"]
    stage.hang_disk("b1")
    stage.run(1000)
    assert stage.holders() == []
    stage.free_disk("b1")
    stage.run(1000)
    assert stage.holders() == ["b1"]


def test_reports_without_a_registration_ask_for_no_lease() -> None:
    stage = at_work()
    asked: list[int] = []

    def watch(sender: str, receiver: str, message: Message) -> bool:
        if isinstance(message, Report) and sender == "s1":
            asked.append(message.asked_ms)
        return False

    stage.kill("s1")
    stage.censor = watch
    stage.start("s1")
    stage.run(100)
    assert asked[0] == -1
    assert asked[-1] > 0


def test_secondaries_get_every_other_heartbeat_and_keep_their_leases() -> None:
    """There may be many of them, and the root's own lease needs none. One that gets lost costs them
    nothing either."""
    stage = at_work()
    heard: dict[str, int] = dict.fromkeys(("b2", "b3", "s1"), 0)
    lost = 0

    def count(sender: str, receiver: str, message: Message) -> bool:
        nonlocal lost
        if sender != "b1" or not isinstance(message, Heartbeat):
            return False
        heard[receiver] += 1
        lost += receiver == "s1" and heard[receiver] % 3 == 0
        return receiver == "s1" and heard[receiver] % 3 == 0

    stage.censor = count
    for _ in range(100):
        stage.run(100)
        assert stage.holders() == ["b1", "b2", "b3", "s1"]
    assert lost > 5
    assert heard["b2"] == heard["b3"]
    assert abs(2 * heard["s1"] - heard["b2"]) <= 4


def test_with_leases_of_few_heartbeats_secondaries_get_all_of_them() -> None:
    stage = at_work(ConsensusSettings(heartbeat_ms=300))
    heard: dict[str, int] = dict.fromkeys(("b2", "b3", "s1"), 0)

    def count(sender: str, receiver: str, message: Message) -> bool:
        if sender == "b1" and isinstance(message, Heartbeat):
            heard[receiver] += 1
        return False

    stage.censor = count
    stage.run(6000)
    assert heard["s1"] == heard["b2"] > 15
