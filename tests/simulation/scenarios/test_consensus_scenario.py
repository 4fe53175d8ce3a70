"""The consensus core under all faults at once: three to five primaries and secondaries."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rhizome.testing.sim.scenario_runner import run_named, run_seeds
from rhizome.testing.sim.seed_run import RunOptions

ROOT = Path(__file__).resolve().parents[3]
SHORT = RunOptions(brokers=(3, 5), secondaries=(0, 2), minutes=0.9)
"""A storm of some seconds; the rest is for healing."""

LONG = RunOptions(brokers=(3, 5), secondaries=(0, 2), minutes=5.0)
CHUNK = 25

RUN_ELSEWHERE = """
from rhizome.testing.sim.seed_run import RunOptions
from rhizome.testing.sim.scenario_runner import run_named
print(run_named("consensus", 7, RunOptions(brokers=(3, 5), secondaries=(0, 2), minutes=1.0)).digest)
"""


def check(seeds: range, options: RunOptions) -> None:
    outcomes = run_seeds("consensus", seeds, options, jobs=os.cpu_count() or 1)
    failed = [f"seed {each.seed}: {each.checker}: {each.text}" for each in outcomes if each.checker]
    assert not failed, "\n".join(sorted(failed))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(0, 100, CHUNK))
def test_no_seed_breaks_a_rule(first: int) -> None:
    check(range(first, first + CHUNK), SHORT)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(0, 10_000, 20 * CHUNK))
def test_ten_thousand_seeds_break_no_rule(first: int) -> None:
    check(range(first, first + 20 * CHUNK), SHORT)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(0, 1001, CHUNK))
def test_no_seed_breaks_a_rule_for_longer(first: int) -> None:
    check(range(first, first + CHUNK), LONG)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("brokers", [1, 2])
def test_few_primaries_heal_too(brokers: int) -> None:
    options = RunOptions(brokers=(brokers, brokers), secondaries=(0, 1), minutes=2.0)
    for seed in range(6):
        outcome = run_named("consensus", seed, options)
        assert outcome.passed, f"seed {seed}: {outcome.checker}: {outcome.text}"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("hash_seed", ["1", "4711"])
def test_a_seed_gives_the_same_trace_in_another_process(hash_seed: str) -> None:
    options = RunOptions(brokers=(3, 5), secondaries=(0, 2), minutes=1.0)
    here = run_named("consensus", 7, options)
    done = subprocess.run(
        [sys.executable, "-c", RUN_ELSEWHERE],
        env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == here.digest


def test_runs_do_something() -> None:
    outcomes = [run_named("consensus", seed, RunOptions(minutes=1.0)) for seed in range(4)]
    for outcome in outcomes:
        assert outcome.passed, outcome.text
        assert outcome.counts["BecameRoot"] >= 1
        assert outcome.counts["Accepted"] >= 1
        assert outcome.faults
    assert sum(outcome.counts["Accepted"] for outcome in outcomes) > 40
