"""Ctrl-C: what it does to a command, in processes of their own."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

SECONDS_MAX = 30
BEGIN = """
import asyncio, signal, subprocess, sys, time
from rhizome.cli import coroutine_runner, interrupts
interrupts.install()
"""


def interrupted(script: str, strikes: int = 1, ignored: bool = False) -> tuple[int, str, str]:
    """Run a script, interrupt it when it says `now`; its exit code, output and errors."""
    heed = "--ignore-signal=INT" if ignored else "--default-signal=INT"
    with subprocess.Popen(
        ["env", heed, sys.executable, "-c", BEGIN + script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for _ in range(strikes):
            assert process.stdout.readline() == "now\n"
            process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=SECONDS_MAX)
    return process.returncode, output, errors


def test_ctrl_c_ends_a_command_without_a_word() -> None:
    script = "print('now', flush=True)\nwhile True: import json, rhizome.cli.main"
    assert interrupted(script) == (130, "", "")


def test_ctrl_c_stays_ignored_where_it_was() -> None:
    script = "print('now', flush=True); time.sleep(0.2); print('done')"
    assert interrupted(script, ignored=True) == (0, "done\n", "")


def test_ctrl_c_cancels_what_a_loop_runs() -> None:
    script = """
async def work():
    try:
        print('now', flush=True)
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0)
        print('tidy')
try:
    coroutine_runner.run(work())
except KeyboardInterrupt:
    sys.exit(3)
"""
    assert interrupted(script) == (3, "tidy\n", "")


def test_second_ctrl_c_ends_work_that_goes_on() -> None:
    script = """
async def work():
    while True:
        try:
            print('now', flush=True)
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass
coroutine_runner.run(work())
"""
    assert interrupted(script, strikes=2) == (130, "", "")


def test_an_error_that_comes_of_the_cancellation_is_not_told() -> None:
    script = """
async def work():
    try:
        print('now', flush=True)
        await asyncio.sleep(60)
    finally:
        raise OSError("half open")
try:
    coroutine_runner.run(work())
except KeyboardInterrupt:
    sys.exit(3)
"""
    assert interrupted(script) == (3, "", "")


def test_noted_ctrl_c_raises_only_where_it_is_asked_for() -> None:
    script = """
with interrupts.noted() as interruption:
    print('now', flush=True)
    while not interruption.strikes:
        time.sleep(0.01)
    print('tidy', flush=True)
    try:
        interruption.check()
    except KeyboardInterrupt:
        sys.exit(3)
"""
    assert interrupted(script) == (3, "tidy\n", "")


@pytest.mark.parametrize("is_withheld", [True, False])
def test_a_process_started_while_ctrl_c_waits_never_sees_it(is_withheld: bool) -> None:
    """The other case shows that it would see it, and what that looks like."""
    script = f"""
import contextlib
ours = [sys.executable, "-c", "print('now', flush=True); input()"]
with interrupts.withheld() if {is_withheld} else contextlib.nullcontext():
    child = subprocess.Popen(ours, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
child.stdout.readline()
child.send_signal(signal.SIGINT)
child.communicate("go on\\n")
print(child.returncode == 0)
"""
    command = ["env", "--default-signal=INT", sys.executable, "-c", BEGIN + script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS_MAX)
    assert (done.returncode, done.stdout) == (0, f"{is_withheld}\n"), done.stderr
    assert ("Traceback" in done.stderr) == (not is_withheld)
