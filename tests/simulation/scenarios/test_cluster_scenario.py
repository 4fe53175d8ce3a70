"""Whole brokers with applications on them, in a simulated world."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rhizome.testing.sim.scenario_runner import run_named
from rhizome.testing.sim.seed_run import Outcome, RunOptions

OPTIONS = RunOptions(brokers=(3, 4), secondaries=(0, 2), minutes=1.5)
DISTANT = RunOptions(brokers=(3, 3), secondaries=(1, 1), minutes=1, distant_ms=80)
SEEDS = range(3)
SOAK_SEEDS = range(3, 60)


def _check(outcome: Outcome) -> None:
    tail = "\n".join(outcome.tail)
    assert outcome.passed, f"seed {outcome.seed}: {outcome.checker}: {outcome.text}\n{tail}"
    for kind in ("Declared", "Confirmed", "Consumed", "NewsHeard"):
        assert outcome.counts.get(kind, 0) > 0, f"seed {outcome.seed} shows nothing: no {kind}"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.timeout(600)
def test_a_cluster_keeps_its_promises_under_faults(seed: int) -> None:
    _check(run_named("cluster", seed, OPTIONS))


@pytest.mark.soak
@pytest.mark.parametrize("seed", SOAK_SEEDS)
def test_many_clusters_keep_their_promises(seed: int) -> None:
    _check(run_named("cluster", seed, OPTIONS))


@pytest.mark.parametrize("seed", range(2))
def test_a_cluster_keeps_its_promises_with_a_broker_far_away(seed: int) -> None:
    """80 ms in each direction, for good, and faults besides."""
    _check(run_named("cluster", seed, DISTANT))


def test_a_broker_that_is_too_far_away_is_seen() -> None:
    """It never joins: the distance is there, and lasts when all faults are over."""
    outcome = run_named("cluster", 0, replace(DISTANT, minutes=0.7, distant_ms=20_000))
    assert outcome.checker in ("AllJoined", "DeclareOkMeansKnown"), outcome.text


def test_a_declare_ok_that_comes_too_early_is_caught() -> None:
    """R10 is broken on purpose."""
    broken = RunOptions(brokers=(3, 3), secondaries=(1, 1), minutes=1, broken=["settled_before_ok"])
    outcome = run_named("cluster", 0, broken)
    assert outcome.checker == "DeclareOkMeansKnown", outcome.text


def test_the_same_seed_gives_the_same_run() -> None:
    short = RunOptions(brokers=(3, 3), secondaries=(1, 1), minutes=0.1)
    first, second = (run_named("cluster", 7, short) for _ in range(2))
    assert first.events > 0
    assert first.digest == second.digest
