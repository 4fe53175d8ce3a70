"""Real broker processes for tests: start one, wait until it is ready, stop, kill and restart it.

A `BrokerProcess` runs `rhizome serve` of the same interpreter on loopback. Its ports are chosen
once and stay the same over restarts, as does its data directory, so a client can reconnect to "the
same" broker. What the process prints goes to a file beside the data, which failures quote.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, TypeVar

from rhizome.testing.free_ports import free_port

T = TypeVar("T")

READY_PREFIX: Final = "ready"
START_SECONDS_MAX: Final = 180.0
STOP_SECONDS_MAX: Final = 60.0
POLL_SECONDS: Final = 0.01
OUTPUT_CHARS_QUOTED_MAX: Final = 4000
CHEAP_PASSWORDS: Final = {"RHIZOME_SECURITY_PASSWORD_COST": "10"}
"""Each broker of each test hashes guest's password at its first start, and at its first login."""
# A killed test run can't stop its brokers. The guard of each waits for the end of its input,
# which comes when the run has gone, and then kills the broker; or for the end of the broker. It
# has a descriptor of the process: the number may be another's by the time the run ends.
_GUARD: Final = """
import select, signal, sys
broker = int(sys.argv[1])
ready, _, _ = select.select([sys.stdin, broker], [], [])
if broker not in ready:
    signal.pidfd_send_signal(broker, signal.SIGKILL)
"""


class BrokerProcessError(Exception):
    """The process did not do what was asked of it; the text quotes the end of its output."""


def wait_until(probe: Callable[[], T], what: str, seconds: float = 120.0) -> T:
    """The first true value that `probe` returns, asked until `seconds` have passed.

    `what` completes the sentence "timed out waiting for ...".
    """
    deadline = time.monotonic() + seconds
    while True:
        value = probe()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise TimeoutError(f"timed out waiting for {what} after {seconds:g} s; last: {value!r}")
        time.sleep(POLL_SECONDS)


class Broker(Protocol):
    """What a test may ask of a broker, however it was started."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def http_port(self) -> int: ...

    @property
    def user(self) -> str: ...

    @property
    def password(self) -> str: ...

    @property
    def url(self) -> str: ...

    @property
    def http_url(self) -> str: ...

    def restart(self) -> None: ...

    def kill(self) -> None: ...


def start_guard(pid: int) -> subprocess.Popen[bytes]:
    """`pid` must not have been waited for yet."""
    descriptor = os.pidfd_open(pid)
    try:
        command = [sys.executable, "-I", "-S", "-c", _GUARD, str(descriptor)]
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, start_new_session=True, pass_fds=[descriptor]
        )
    finally:
        os.close(descriptor)


class BrokerProcess:
    """One `rhizome serve` on loopback.

    Invariant: between `start` and `stop` or `kill` exactly one process of ours is running, and it
    has said that it is ready; unless it has ended by itself, after which `stop` tells its exit code
    and `start` starts another one. No guard outlives its broker.

    `arguments` are added to the command line, `environment` to the environment of this process and
    `CHEAP_PASSWORDS`. It listens on ``host``, and ``launcher`` goes before the command.
    """

    user: Final = "guest"
    password: Final = "guest"

    def __init__(
        self,
        directory: Path,
        *,
        arguments: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        host: str = "127.0.0.1",
        launcher: Sequence[str] = (),
    ) -> None:
        self.host = host
        self.directory = directory
        self.data = directory / "data"
        self.output = directory / "output.txt"
        self.port = free_port()
        self.http_port = free_port()
        self._arguments = tuple(arguments)
        self._launcher = tuple(launcher)
        self._environment = {**CHEAP_PASSWORDS, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._output_start = 0
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        """AMQP address of the default vhost."""
        return f"amqp://{self.user}:{self.password}@{self.host}:{self.port}/"

    @property
    def http_url(self) -> str:
        """Root of the HTTP API, without a slash at the end."""
        return f"http://{self.host}:{self.http_port}"

    @property
    def pid(self) -> int:
        """Process id of the running broker."""
        return self._running().pid

    def add_arguments(self, arguments: Sequence[str]) -> None:
        """Add to the command line of the starts to come."""
        self._arguments = (*self._arguments, *arguments)

    def command(self) -> list[str]:
        """The command line that `start` runs."""
        addresses = [
            "--listen",
            f"{self.host}:{self.port}",
            "--http",
            f"{self.host}:{self.http_port}",
        ]
        serve = [*self._launcher, sys.executable, "-m", "rhizome", "serve", *addresses]
        return [*serve, "--data", str(self.data), *self._arguments]

    def start(self) -> None:
        """Start the broker and return once it has printed its `ready` line."""
        self.launch()
        self.wait_until_ready()

    def wait_until_ready(self, seconds: float = START_SECONDS_MAX) -> None:
        """Wait for the `ready` line of a broker that was launched; without it there is none."""
        try:
            wait_until(self._said_ready, "the broker's ready line", seconds)
        except TimeoutError as error:
            self.close()
            raise BrokerProcessError(f"{error}\n{self.printed()}") from None
        except BaseException:
            # Also when a test's time is up: nobody else knows of the process.
            self.close()
            raise

    def launch(self) -> None:
        """Start the broker, which may never become ready."""
        if self.is_running():
            raise BrokerProcessError(f"broker {self.pid} is already running")
        with self.output.open("ab") as output:
            self._output_start = output.tell()
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self._environment},
            )
        try:
            self._guard = start_guard(self._process.pid)
        except BaseException:
            self.close()
            raise

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask the broker to close, wait for it, and return its exit code."""
        process = self._running()
        process.send_signal(number)
        try:
            code = process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerProcessError(
                f"{number.name} did not stop the broker\n{self.printed()}"
            ) from None
        self._forget()
        return code

    def kill(self) -> None:
        """End the process at once, as a crash would (SIGKILL)."""
        process = self._running()
        process.kill()
        process.wait(STOP_SECONDS_MAX)
        self._forget()

    def close(self) -> None:
        """Leave no process behind, whatever has happened; twice does no harm."""
        if self._process is not None:
            self.kill()

    def restart(self) -> None:
        """Stop cleanly and start again on the same ports and data."""
        self.stop_cleanly()
        self.start()

    def stop_cleanly(self) -> None:
        """Stop, and insist on exit code 0."""
        code = self.stop()
        if code != 0:
            raise BrokerProcessError(f"the broker exited with {code}\n{self.printed()}")

    def is_running(self) -> bool:
        """Whether our process exists and has not ended by itself."""
        if self._process is None:
            return False
        if self._process.poll() is not None:
            self._end_guard()
            return False
        return True

    def ended_by_itself(self) -> bool:
        """Whether our process has ended though nobody stopped or killed it through us."""
        return self._process is not None and not self.is_running()

    def printed(self) -> str:
        """The end of what the process has printed since its last start."""
        text = self._output_since_start()
        return text[-OUTPUT_CHARS_QUOTED_MAX:] or "(it printed nothing)"

    def wait_until_printed(self, text: str) -> None:
        """Wait for a line with a text: a thread writes the log, so it may come after an answer."""
        wait_until(lambda: text in self._output_since_start(), f"the broker to print {text!r}")

    def __enter__(self) -> BrokerProcess:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.is_running():
            self.stop()
        self.close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise BrokerProcessError("no broker is running: call start() first")
        return self._process

    def _forget(self) -> None:
        """The process has ended."""
        self._process = None
        self._end_guard()

    def _end_guard(self) -> None:
        guard, self._guard = self._guard, None  # several threads may ask whether the broker runs
        if guard is not None:
            guard.kill()
            guard.communicate()

    def _said_ready(self) -> bool:
        process = self._running()
        if process.poll() is not None:
            self._forget()
            printed = self.printed()
            raise BrokerProcessError(f"the broker exited with {process.returncode}\n{printed}")
        lines = self._output_since_start().splitlines()
        return any(line.startswith(READY_PREFIX) for line in lines)

    def _output_since_start(self) -> str:
        with self.output.open("rb") as output:
            output.seek(self._output_start)
            return output.read().decode(errors="replace")
