"""Leases of a work queue under faults of all kinds, and brokers that don't keep them."""

from __future__ import annotations

import os

import pytest

from rhizome.testing.sim.scenario_runner import run_seeds
from rhizome.testing.sim.seed_run import Outcome, RunOptions
from tests.simulation.mutants import Mutant

SHORT = RunOptions(brokers=(3, 4), secondaries=(0, 1), minutes=0.9, leases=True)
CHUNK = 100

NOT_RECORDED = """
from rhizome.broker.queue_leases.active_leases import Leases
Leases._record = lambda self, queue: queue.write_settled() if queue.recorded else None
"""

OVER_TOO_SOON = """
from rhizome.broker.queue_leases.active_leases import Leases
def refresh(self, lease, keep_ms):
    lease.keep_ms = 1000
    lease.until_ms = self.broker.turn.now_ms + 300
Leases._refresh = refresh
"""

SETTLED_COMES_BACK = """
from rhizome.broker.queue_leases.active_leases import Leases
settle = Leases._settle
def give_back(self, queue, lease, up_to):
    messages = lease.drop_to(up_to) if lease.base < up_to <= lease.end() else []
    for message in messages:
        queue.requeue(message)
    return bool(messages)
Leases._settle = give_back
"""

MUTANTS = [
    Mutant(
        "leases are not recorded",
        NOT_RECORDED,
        ("kill", "move"),
        3,
        ("LeasedGoesToNobodyElse", "LeasesLast", "PositionMeansOneMessage"),
    ),
    Mutant(
        "leases are over too soon",
        OVER_TOO_SOON,
        ("kill-app",),
        2,
        ("LeasesLast", "LeasedGoesToNobodyElse"),
    ),
    Mutant(
        "what was settled comes back",
        SETTLED_COMES_BACK,
        ("drift",),
        1,
        ("LeasedGoesToNobodyElse", "PositionMeansOneMessage"),
    ),
]


def _told(outcome: Outcome) -> str:
    tail = "\n".join(outcome.tail)
    return f"seed {outcome.seed}: {outcome.checker}: {outcome.text}\n{tail}"


def _check(seeds: range, options: RunOptions) -> None:
    failed: list[str] = []
    counts = dict.fromkeys(("LeaseAsked", "LeaseAnswered", "LeaseRead"), 0)
    for outcome in run_seeds("messages", seeds, options, jobs=os.cpu_count() or 1):
        if not outcome.passed:
            failed.append(_told(outcome))
        for kind in counts:
            counts[kind] += outcome.counts.get(kind, 0)
    assert not failed, "\n".join(sorted(failed))
    for kind, count in counts.items():
        assert count > 20 * len(seeds), f"seeds {seeds} show little: {count} {kind}"


@pytest.mark.timeout(900)
def test_leases_are_kept_under_faults() -> None:
    _check(range(2), SHORT)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(0, 1_000, CHUNK))
def test_leases_are_kept_in_many_seeds(first: int) -> None:
    _check(range(first, first + CHUNK), SHORT)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(MUTANTS[0], id=MUTANTS[0].name),
        *[pytest.param(each, id=each.name, marks=pytest.mark.soak) for each in MUTANTS[1:]],
    ],
)
def test_a_broker_that_does_not_keep_leases_is_seen(mutant: Mutant) -> None:
    mutant.expect_to_be_seen("messages", leases=True)
