"""`rhizome sim`: seeds in, violations and how to replay them out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from rhizome.testing.broker_process import wait_until

Rhizome = Callable[..., Result]

SHORT = ("--minutes", "0.8")


def test_a_seed_that_passes_is_summed_up(rhizome: Rhizome) -> None:
    result = rhizome("sim", "--seed", "3", *SHORT)
    assert result.exit_code == 0, result.output
    assert "violations       0" in result.stdout
    assert "elections" in result.stdout


def test_json_has_the_summary(rhizome: Rhizome) -> None:
    result = rhizome("sim", "--seeds", "3..4", *SHORT, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["summary"]["seeds"] == 2
    assert document["violations"] == []


def test_the_trace_has_every_event_and_is_the_same_again(rhizome: Rhizome, tmp_path: Path) -> None:
    for name in ("one", "other"):
        result = rhizome("sim", "--seed", "3", *SHORT, "--trace", str(tmp_path / name))
        assert result.exit_code == 0, result.output
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    assert "BecameRoot" in (tmp_path / "one").read_text()


def test_a_violation_prints_its_seed_and_how_to_replay_it(rhizome: Rhizome) -> None:
    broken = ("--break", "commit_quorum", "--fault", "isolate", "--pace", "10", "--distant", "5")
    result = rhizome("sim", "--seeds", "0..30", "--minutes", "1.5", *broken)
    assert result.exit_code == 1
    replay = next(line for line in result.stdout.splitlines() if line.startswith("replay: "))
    again = rhizome(*replay.removeprefix("replay: rhizome ").split()[:-2])
    assert again.exit_code == 1
    assert replay in again.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--scenario", "nonsense"], "no scenario 'nonsense'; there are: consensus"),
        (["--fault", "nonsense"], "no fault 'nonsense'; there are: partition"),
        (["--break", "nonsense"], "no rule 'nonsense'; there are: election_quorum_majority"),
        (["--seed", "1", "--seeds", "1..2"], "exclude each other"),
        (["--seeds", "2..1"], "the smaller one first"),
        (["--brokers", "0"], "--brokers 0: give at least 1"),
        (["--brokers", "many"], "--brokers many: give a number"),
        (["--seeds", "1..2", "--trace", "x"], "--trace needs a single seed"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    rhizome: Rhizome, arguments: list[str], said: str
) -> None:
    result = rhizome("sim", *arguments)
    assert result.exit_code == (1 if said.startswith("no ") else 2)
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_workers_end_with_the_command_whatever_ends_it() -> None:
    """A SIGTERM to the command alone used to leave its workers to the end of their seeds."""
    sim = ("sim", "--seeds", "0..9", "-j", "2", "--minutes", "10000")
    command = subprocess.Popen((sys.executable, "-m", "rhizome", *sim), stdout=subprocess.DEVNULL)
    try:
        workers = wait_until(lambda: _workers_of(command.pid), "workers")
    finally:
        command.send_signal(signal.SIGTERM)
        command.wait()
    wait_until(lambda: not any(map(_runs, workers)), "the workers to end")


def _workers_of(pid: int) -> list[int]:
    """The processes that simulate, once both are amid a seed."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    found = [int(each) for each in children if b"spawn_main" in _command_line(each)]
    return found if len(found) == 2 and all(map(_is_busy, found)) else []


def _command_line(pid: str) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def _is_busy(pid: int) -> bool:
    """Whether it has worked for longer than it takes to begin."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) > 2 * os.sysconf("SC_CLK_TCK")


def _runs(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
