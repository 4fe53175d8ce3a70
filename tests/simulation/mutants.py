"""Brokers whose code is changed on purpose, in the simulated world: do checkers see it?

Compiled modules call each other's methods directly, so this takes a process without them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass

SEEDS_MAX = 24

SCRIPT = """
from rhizome.testing.sim.seed_run import RunOptions
from rhizome.testing.sim.scenario_runner import run_untraced

{mutation}
options = RunOptions(
    brokers=(3, 3),
    minutes={minutes},
    faults={faults},
    pace={pace},
    leases={leases},
    keys={keys},
    flush={flush!r},
)
for seed in range({first}, {first} + {seeds}):
    outcome = run_untraced({scenario!r}, seed, options)
    if not outcome.passed:
        print(seed, outcome.checker, outcome.text.strip().splitlines()[-1], sep="\\t")
        break
"""


@dataclass(frozen=True)
class Mutant:
    """A change of the broker's code, the faults that bring out what it does wrong, and who must see
    it; `first` is a seed that showed it when this was written, where the search begins."""

    name: str
    mutation: str
    faults: tuple[str, ...]
    pace: float
    seen_by: tuple[str, ...]
    first: int = 0
    minutes: float = 1.0
    flush: str = "always"
    keys: bool = False

    def seen_in_some_seed(self, scenario: str, leases: bool = False) -> list[str]:
        """The first seed in which somebody sees it, who, and what."""
        script = SCRIPT.format(
            mutation=self.mutation,
            faults=self.faults,
            pace=self.pace,
            minutes=self.minutes,
            leases=leases,
            keys=self.keys,
            flush=self.flush,
            first=self.first,
            seeds=SEEDS_MAX,
            scenario=scenario,
        )
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "RHIZOME_PURE": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip().split("\t")

    def expect_to_be_seen(self, scenario: str, leases: bool = False) -> None:
        seen = self.seen_in_some_seed(scenario, leases)
        assert len(seen) == 3, f"nobody has seen it that {self.name}"
        assert seen[1] in self.seen_by, seen
