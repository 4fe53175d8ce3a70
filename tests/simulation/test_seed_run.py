"""Seeds: the same one gives the same run, anywhere; a wrong program is found out."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rhizome.testing.sim.scenario_runner import run_seeds
from rhizome.testing.sim.seed_run import RunOptions, run_seed
from tests.simulation.toy_scenario import ToyScenario

ROOT = Path(__file__).resolve().parents[2]
CALM = RunOptions(minutes=1.5, faults=("slow",))
PARTITIONS = RunOptions(minutes=2.0, faults=("partition", "isolate"))

RUN_ELSEWHERE = """
from rhizome.testing.sim.seed_run import RunOptions, run_seed
from tests.simulation.toy_scenario import ToyScenario
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


def test_a_run_without_a_trace_is_the_same_run() -> None:
    for seed in range(4):
        traced = run_seed(ToyScenario(), seed, PARTITIONS)
        bare = run_seed(ToyScenario(), seed, PARTITIONS, traced=False)
        assert not bare.digest
        assert not bare.tail
        again = replace(bare, digest=traced.digest, tail=traced.tail, wall_s=traced.wall_s)
        assert again == traced


def test_of_many_seeds_those_that_fail_have_a_trace() -> None:
    broken = RunOptions(minutes=1.2, faults=("stall",), pace=3, broken=("disk_in_root_lease",))
    outcomes = list(run_seeds("consensus", range(2, 5), broken))
    failed = [each for each in outcomes if not each.passed]
    assert failed
    assert all(each.digest and each.tail for each in failed)
    assert not any(each.digest for each in outcomes if each.passed)
