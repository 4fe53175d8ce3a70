"""Seeds: the same one gives the same run, anywhere; a wrong program is found out."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rhizome.testing.sim.run import RunOptions, run_seed
from tests.simulation.toy import ToyScenario

ROOT = Path(__file__).resolve().parents[2]
CALM = RunOptions(minutes=1.5, faults=("slow",))
PARTITIONS = RunOptions(minutes=2.0, faults=("partition", "isolate"))

RUN_ELSEWHERE = """
from rhizome.testing.sim.run import RunOptions, run_seed
from tests.simulation.toy import ToyScenario
print(run_seed(ToyScenario(), 7, RunOptions(minutes=1.5, brokers=(3, 5))).digest)
"""


def test_a_seed_gives_the_same_trace_byte_for_byte() -> None:
    first, second = io.StringIO(), io.StringIO()
    one = run_seed(ToyScenario(), 3, PARTITIONS, first)
    other = run_seed(ToyScenario(), 3, PARTITIONS, second)
    assert first.getvalue() == second.getvalue()
    assert one.digest == other.digest


def test_another_seed_gives_another_trace() -> None:
    digests = {run_seed(ToyScenario(), seed, CALM).digest for seed in range(3)}
    assert len(digests) == 3


@pytest.mark.parametrize("hash_seed", ["0", "1", "4711"])
def test_a_seed_gives_the_same_trace_in_another_process(hash_seed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN_ELSEWHERE],
        env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=True,
    )
    here = run_seed(ToyScenario(), 7, RunOptions(minutes=1.5, brokers=(3, 5))).digest
    assert done.stdout.strip() == here


def test_a_wrong_program_passes_while_nothing_goes_wrong() -> None:
    for seed in range(3):
        outcome = run_seed(ToyScenario(), seed, RunOptions(minutes=1.0, faults=("stall",)))
        assert outcome.passed, outcome.text


def test_checkers_see_two_roots_behind_a_partition() -> None:
    seen = {run_seed(ToyScenario(), seed, PARTITIONS).checker for seed in range(12)}
    assert "CommittedStateNeverLost" in seen or "OneRootPerTerm" in seen
    assert "ProgramFailed" not in seen


def test_a_violation_tells_what_led_to_it() -> None:
    outcomes = [run_seed(ToyScenario(), seed, PARTITIONS) for seed in range(12)]
    failed = next(each for each in outcomes if each.checker not in ("", "NothingStuck"))
    assert failed.text
    assert failed.tail
    assert failed.virtual_us < PARTITIONS.minutes * 60_000_000
