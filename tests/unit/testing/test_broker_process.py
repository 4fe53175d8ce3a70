"""The helpers that run real broker processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rhizome.testing.broker_process import BrokerProcess, BrokerProcessError, wait_until


def test_waiting_returns_the_first_true_value() -> None:
    values = iter([0, "", None, 7, 8])
    assert wait_until(lambda: next(values), "a value") == 7


def test_waiting_gives_up_and_says_what_it_waited_for() -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="waiting for a miracle after"):
        wait_until(lambda: False, "a miracle", 0.05)
    assert time.monotonic() - began >= 0.05


def test_a_broker_that_does_not_start_is_reported_with_what_it_said(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, arguments=["--no-such-option"])
    with pytest.raises(BrokerProcessError, match="no-such-option"):
        broker.start()
    assert not broker.is_running()


def test_nothing_can_be_stopped_before_it_was_started(tmp_path: Path) -> None:
    with pytest.raises(BrokerProcessError, match="call start"):
        BrokerProcess(tmp_path).stop()


@pytest.mark.timeout(60)
def test_a_broker_keeps_its_ports_over_restarts_and_crashes(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    with broker:
        port, first = broker.port, broker.pid
        with pytest.raises(BrokerProcessError, match="already running"):
            broker.start()
        broker.restart()
        assert (broker.port, broker.pid != first) == (port, True)
        broker.kill()
        assert not broker.is_running()
        broker.start()
        socket.create_connection((broker.host, broker.port), 5).close()
    assert not broker.is_running()


@pytest.mark.timeout(60)
def test_sigint_closes_as_cleanly_as_sigterm(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        assert broker.stop(signal.SIGINT) == 0


KILLED_RUN = """
import sys, threading
from pathlib import Path
from rhizome.testing.broker_process import BrokerProcess
broker = BrokerProcess(Path(sys.argv[1]))
broker.start()
print(broker.pid, flush=True)
threading.Event().wait()
"""


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it isn't only waiting to be reaped."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.timeout(60)
def test_a_broker_ends_when_the_run_that_started_it_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED_RUN, str(tmp_path)]
    run = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert run.stdout is not None
    pid = int(run.stdout.readline())
    run.kill()
    run.communicate()
    wait_until(lambda: not is_alive(pid), "the broker to end")


def guards_of(broker_pid: int) -> list[int]:
    """Processes of ours that hold a descriptor of that process."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            infos = [path.read_text() for path in (entry / "fdinfo").iterdir()]
        except (FileNotFoundError, NotADirectoryError, ProcessLookupError, PermissionError):
            continue
        if entry.name.isdigit() and any(f"\nPid:\t{broker_pid}\n" in info for info in infos):
            found.append(int(entry.name))
    return found


@pytest.mark.timeout(60)
def test_the_guard_of_a_broker_that_died_by_itself_goes_too(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    (guard,) = wait_until(lambda: guards_of(broker.pid), "the guard")
    os.kill(broker.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(guard), "the guard to end without being asked")
    assert not broker.is_running()
    assert not Path(f"/proc/{guard}").exists(), "nobody has waited for the guard"
    assert broker.stop() == -signal.SIGKILL


@pytest.mark.timeout(60)
def test_a_broker_that_died_by_itself_can_be_started_again(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        first = broker.pid
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: not broker.is_running(), "the broker to end")
        broker.start()
        assert broker.pid != first
    assert not broker.is_running()


@pytest.mark.timeout(60)
def test_who_ended_by_itself_is_told_from_who_was_stopped_or_killed(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    assert not broker.ended_by_itself()
    broker.start()
    assert not broker.ended_by_itself()
    broker.stop_cleanly()
    assert not broker.ended_by_itself()
    broker.start()
    broker.kill()
    assert not broker.ended_by_itself()
    broker.start()
    os.kill(broker.pid, signal.SIGKILL)
    wait_until(broker.ended_by_itself, "the broker to end")
    broker.close()


def test_closing_twice_and_before_a_start_does_no_harm(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.close()
    broker.start()
    pid = broker.pid
    broker.close()
    broker.close()
    assert not is_alive(pid)
