"""Where other people's suites run: in a network that ends at this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tools"))

from loopback_only import LoopbackOnly, NoNamespace, unshare_command  # noqa: E402

SECONDS_MAX = 120
# An address that documentation may use (RFC 5737): nobody has it.
ELSEWHERE = "192.0.2.1"
DIAL = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 5) as near:
        near.sendall(b"hello")
        near.shutdown(socket.SHUT_WR)
        print(near.makefile("rb").read().decode())
except OSError as error:
    print(type(error).__name__, error.errno)
"""


def _echo(listener: socket.socket) -> None:
    while True:
        try:
            far, _ = listener.accept()
        except OSError:
            return
        with far:
            far.sendall(far.makefile("rb").read()[::-1])


@pytest.fixture
def port() -> Iterator[int]:
    """Of a server that sends back what it got, backwards."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_echo, args=(listener,))
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.fixture
def inside(port: int) -> Iterator[LoopbackOnly]:
    try:
        unshare_command()
    except NoNamespace as error:
        pytest.skip(f"no network namespaces here: {error}")
    with LoopbackOnly([port]) as found:
        yield found


def dialled(inside: LoopbackOnly, host: str, port: int) -> str:
    command = [*inside.prefix, sys.executable, "-c", DIAL, host, str(port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=True)
    return done.stdout.strip()


@pytest.mark.network
def test_the_broker_is_reached_at_its_own_port(inside: LoopbackOnly, port: int) -> None:
    assert [dialled(inside, "127.0.0.1", port) for _ in range(3)] == ["olleh"] * 3


@pytest.mark.network
def test_no_other_address_is_reached(inside: LoopbackOnly) -> None:
    assert dialled(inside, ELSEWHERE, 9).startswith("OSError 101")  # network is unreachable


@pytest.mark.network
def test_no_other_port_of_this_machine_is_reached(inside: LoopbackOnly) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert "ConnectionRefusedError" in dialled(inside, "127.0.0.1", other.getsockname()[1])


@pytest.mark.network
def test_a_broker_that_is_down_ends_the_connection(inside: LoopbackOnly) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        closed = gone.getsockname()[1]
    with LoopbackOnly([closed]) as other:
        assert "Timeout" not in dialled(other, "127.0.0.1", closed)


def suites(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "client_suites.py"), "py-amqp", *arguments]
    return subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def test_suites_are_not_run_against_a_broker_elsewhere() -> None:
    done = suites("--amqp", f"amqp://guest:guest@{ELSEWHERE}/")
    assert done.returncode == 2
    assert "must listen on 127.0.0.1, or give --with-network" in done.stderr


def test_suites_are_not_run_where_they_could_reach_others() -> None:
    done = suites(PATH="/nonexistent")
    assert done.returncode == 2
    assert "can't be kept off the network (unshare is not installed" in done.stderr
    assert "--with-network" in done.stderr
