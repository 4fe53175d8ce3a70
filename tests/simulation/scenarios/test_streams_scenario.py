"""Streams of whole brokers, appended to and read under faults of all kinds."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from rhizome.testing.sim.scenario_runner import run_seeds
from rhizome.testing.sim.seed_run import Outcome, RunOptions

SHORT = RunOptions(brokers=(3, 4), secondaries=(0, 1), minutes=0.9, pace=3)
LONG = RunOptions(brokers=(3, 5), secondaries=(0, 1), minutes=1.3, pace=3)
BESIDE = replace(SHORT, pace=1, streams=True)
CHUNK = 100


def _told(outcome: Outcome) -> str:
    tail = "\n".join(outcome.tail)
    return f"seed {outcome.seed}: {outcome.checker}: {outcome.text}\n{tail}"


def _check(scenario: str, seeds: range, options: RunOptions) -> None:
    failed: list[str] = []
    counts = dict.fromkeys(("Appended", "AppendConfirmed", "Shown", "DoneWith"), 0)
    for outcome in run_seeds(scenario, seeds, options, jobs=os.cpu_count() or 1):
        if not outcome.passed:
            failed.append(_told(outcome))
        for kind in counts:
            counts[kind] += outcome.counts.get(kind, 0)
    assert not failed, "\n".join(sorted(failed))
    for kind, count in counts.items():
        assert count > 50 * len(seeds), f"seeds {seeds} show little: {count} {kind}"


@pytest.mark.timeout(900)
def test_streams_are_kept_under_faults() -> None:
    _check("streams", range(2), SHORT)


@pytest.mark.timeout(900)
def test_streams_are_kept_beside_queues() -> None:
    _check("messages", range(1, 2), BESIDE)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(0, 2_000, CHUNK))
def test_streams_are_kept_in_many_seeds(first: int) -> None:
    _check("streams", range(first, first + CHUNK), LONG)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(0, 500, CHUNK))
def test_streams_are_kept_beside_queues_in_many_seeds(first: int) -> None:
    _check("messages", range(first, first + CHUNK), BESIDE)
