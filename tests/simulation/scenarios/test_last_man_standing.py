"""Electorates that shrink and grow by themselves, under all faults at once (R4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rhizome.testing.sim.checkers.checker import Checker
from rhizome.testing.sim.events.broker_events import MembershipAt
from rhizome.testing.sim.scenarios.consensus_scenario import ConsensusScenario
from rhizome.testing.sim.seed_run import RunOptions, run_seed

HASTY = {"heartbeat_ms": 150, "root_lease_ms": 900, "home_lease_ms": 2_900, "rest_ms": 3_000}
STORMY = RunOptions(
    brokers=(3, 5),
    secondaries=(0, 1),
    minutes=1.0,
    faults=("kill", "power-cut", "isolate", "partition", "stall", "hand-over", "membership"),
)


class Sizes(Checker):
    """Sees how many vote, and nothing wrong with that."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.sizes = sizes

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {MembershipAt: self._seen}

    def _seen(self, seen: MembershipAt) -> None:
        self.sizes.append(len(seen.voters))


def storm(seeds: range) -> list[list[int]]:
    """The sizes of the electorates of each seed, in the order in which they came."""
    found: list[list[int]] = []
    for seed in seeds:
        sizes = Sizes([])
        found.append(sizes.sizes)
        watching: list[Checker] = [sizes]
        outcome = run_seed(ConsensusScenario(watching.copy, HASTY), seed, STORMY)
        assert outcome.passed, f"seed {seed}: {outcome.checker}: {outcome.text}"
    return found


@pytest.mark.timeout(600)
def test_no_seed_breaks_a_rule() -> None:
    found = storm(range(6))
    shrunk = [sizes for sizes in found if min(sizes) < max(sizes)]
    assert len(shrunk) > 1
    grown = [sizes for sizes in shrunk if sizes[-1] > min(sizes)]
    assert grown


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(0, 1000, 100))
def test_a_thousand_seeds_break_no_rule(first: int) -> None:
    storm(range(first, first + 100))
