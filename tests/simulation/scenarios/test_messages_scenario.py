"""Whole brokers and applications on hosts of their own, under faults of all kinds."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rhizome.testing.sim.scenario_runner import run_named, run_seeds
from rhizome.testing.sim.seed_run import Outcome, RunOptions

ROOT = Path(__file__).resolve().parents[3]
SHORT = RunOptions(brokers=(3, 4), secondaries=(0, 1), minutes=0.9)
LONG = RunOptions(brokers=(3, 5), secondaries=(0, 2), minutes=3.0)
SEEDS = range(100)
CHUNK = 50
MANY = 200

RUN_ELSEWHERE = """
from rhizome.testing.sim.seed_run import RunOptions
from rhizome.testing.sim.scenario_runner import run_named
print(run_named("messages", 7, RunOptions(brokers=(3, 3), secondaries=(1, 1), minutes=0.2)).digest)
"""


def _told(outcome: Outcome) -> str:
    tail = "\n".join(outcome.tail)
    return f"seed {outcome.seed}: {outcome.checker}: {outcome.text}\n{tail}"


def _check(seeds: range, options: RunOptions) -> None:
    failed: list[str] = []
    counts = dict.fromkeys(("Sent", "Confirmed", "Delivered", "SettledBy"), 0)
    for outcome in run_seeds("messages", seeds, options, jobs=os.cpu_count() or 1):
        if not outcome.passed:
            failed.append(_told(outcome))
        for kind in counts:
            counts[kind] += outcome.counts.get(kind, 0)
    assert not failed, "\n".join(sorted(failed))
    for kind, count in counts.items():
        assert count > 100 * len(seeds), f"seeds {seeds} show little: {count} {kind}"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", SEEDS[::CHUNK])
def test_messages_are_kept_under_faults(first: int) -> None:
    _check(range(first, first + CHUNK), SHORT)


def test_a_message_that_dies_while_its_home_is_replaced_is_not_lost() -> None:
    """The next home was told that it was acked, and its dead letter went down with the old one."""
    options = RunOptions(brokers=(3, 3), secondaries=(0, 0), minutes=1.0, streams=True)
    outcome = run_named("messages", 90, options)
    assert outcome.passed, _told(outcome)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(0, 10_000, MANY))
def test_messages_are_kept_in_ten_thousand_seeds(first: int) -> None:
    _check(range(first, first + MANY), SHORT)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("faults", [(), ("drop-app", "drain", "move"), ("kill", "cut-app")])
def test_clients_that_come_back_hold_what_they_held(faults: tuple[str, ...]) -> None:
    _check(range(3), replace(SHORT, faults=faults, pace=2, sessions=True))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(0, 2_000, MANY))
@pytest.mark.parametrize("faults", [(), ("drop-app", "drain", "move"), ("kill", "cut-app")])
def test_clients_that_come_back_hold_what_they_held_in_many_seeds(
    faults: tuple[str, ...], first: int
) -> None:
    _check(range(first, first + MANY), replace(SHORT, faults=faults, pace=2, sessions=True))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(0, 500, 20))
def test_messages_are_kept_under_faults_for_longer(first: int) -> None:
    _check(range(first, first + 20), LONG)


@pytest.mark.timeout(900)
def test_runs_show_all_that_applications_do() -> None:
    """Over some calm seeds, as many as it takes: every kind of observation."""
    calm = RunOptions(brokers=(3, 3), minutes=1.1, faults=("drift",))
    wanted = {"Nacked", "Returned", "TransactionEnded", "CancelSent", "Consuming", "Takes"}
    seen: set[str] = set()
    seed = 0
    while not wanted <= seen:
        assert seed < 20, f"no run shows {wanted - seen}"
        outcome = run_named("messages", seed, calm)
        assert outcome.passed, _told(outcome)
        seen |= set(outcome.counts)
        seed += 1


@pytest.mark.timeout(300)
@pytest.mark.parametrize("hash_seed", ["1", "4711"])
def test_a_seed_gives_the_same_trace_in_another_process(hash_seed: str) -> None:
    options = RunOptions(brokers=(3, 3), secondaries=(1, 1), minutes=0.2)
    here = run_named("messages", 7, options)
    done = subprocess.run(
        [sys.executable, "-c", RUN_ELSEWHERE],
        env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == here.digest


@pytest.mark.timeout(900)
def test_queues_go_on_though_messages_are_damaged_at_rest() -> None:
    """Nothing confirmed is lost, since others have it; and nothing is stuck behind it."""
    damage = RunOptions(
        brokers=(3, 3),
        secondaries=(0, 0),
        minutes=1.0,
        faults=("flip-message", "slow", "kill"),
        pace=4.0,
    )
    flipped = 0
    for outcome in run_seeds("messages", range(1, 4), damage, jobs=os.cpu_count() or 1):
        assert outcome.passed, _told(outcome)
        flipped += outcome.faults.get("flip-message", 0)
    assert flipped > 10
