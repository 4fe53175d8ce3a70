"""The broker processes of a local cluster: start, watch, stop, and what an earlier `up` left.

A broker runs in a session of its own, so that Ctrl-C at the terminal reaches `up` alone, which
stops the brokers in order.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from rhizome.cli.errors import CliError
from rhizome.cli.local_cluster.directory_layout import HOST, Layout, LocalBroker, read_shape

START_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 20.0
LOG_LINES_QUOTED: Final = 8
READY_PREFIX: Final = b"ready"


class LocalBrokerProcess:
    """One run of a broker, from its start to its end.

    Invariant: the pid file names this process from before it says that it is ready until its end.
    """

    def __init__(self, place: LocalBroker, process: asyncio.subprocess.Process) -> None:
        self.place = place
        self.process = process
        self.is_stopping = False
        self._is_ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._output = asyncio.create_task(self._read_output(), name=f"output of {place.name}")
        self.ended = asyncio.create_task(self._wait(), name=f"end of {place.name}")

    @classmethod
    async def start(
        cls, place: LocalBroker, command: list[str], environment: Mapping[str, str]
    ) -> LocalBrokerProcess:
        with place.open_log() as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=dict(environment),
                start_new_session=True,
            )
        place.write_pid(process.pid)
        return cls(place, process)

    @property
    def pid(self) -> int:
        return self.process.pid

    async def ready(self) -> None:
        """Wait until the broker takes connections; raises CliError if it ends before, or never."""
        try:
            async with asyncio.timeout(START_SECONDS_MAX):
                if await asyncio.shield(self._is_ready):
                    return
                await asyncio.shield(self.ended)
        except TimeoutError:
            raise CliError(
                f"{self.place.name} is not ready after {START_SECONDS_MAX:g} s; see"
                f" {self.place.log}"
            ) from None
        raise self.early_end()

    def early_end(self) -> CliError:
        """That the broker ended when it should not have, with the end of its log."""
        return CliError(f"{self.place.name} {self.how_it_ended()}{quoted_log(self.place)}")

    async def _read_output(self) -> None:
        """Read to the end: a broker must not wait for a full pipe. Its log gets it too."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            with self.place.open_log() as log:
                log.write(line)
            if line.startswith(READY_PREFIX) and not self._is_ready.done():
                self._is_ready.set_result(True)
        if not self._is_ready.done():
            self._is_ready.set_result(False)

    async def _wait(self) -> int:
        code = await self.process.wait()
        await self._output
        if self.place.read_pid() == self.pid:
            self.place.pid_file.unlink(missing_ok=True)
        return code

    def how_it_ended(self) -> str:
        code = self.process.returncode
        assert code is not None, "asked of a broker that runs"
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    async def stop(self) -> bool:
        """End the broker; returns whether it ended by itself when asked to."""
        self.is_stopping = True
        if self.ended.done():
            return True
        self._signal(signal.SIGTERM)
        done, _ = await asyncio.wait([self.ended], timeout=STOP_SECONDS_MAX)
        if not done:
            self.kill()
            await self.ended
        return bool(done)

    def kill(self) -> None:
        self.is_stopping = True
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        try:
            self.process.send_signal(number)
        except ProcessLookupError:
            pass


def serve_command(place: LocalBroker) -> list[str]:
    return [sys.executable, "-m", "rhizome", "serve", "--config", str(place.config)]


def quoted_log(place: LocalBroker) -> str:
    """The end of a broker's log, as a continuation of a sentence."""
    lines = [line.strip() for line in place.log_tail(LOG_LINES_QUOTED) if line.strip()]
    if not lines:
        return f"; its log, {place.log}, is empty"
    return f"; its log, {place.log}, ends: " + " | ".join(lines)


# ---- before the start ---------------------------------------------------------------------------


def check_ports(places: Mapping[str, LocalBroker]) -> None:
    """Report brokers whose ports are taken, before anything is started."""
    taken = [
        f"{port} ({place.name}, {option})"
        for place in places.values()
        for port, option in ((place.port, "--base-port"), (place.http_port, "--http-base-port"))
        if not is_free(port)
    ]
    if taken:
        raise CliError(
            f"{'port is' if len(taken) == 1 else 'ports are'} in use on {HOST}:"
            f" {', '.join(taken)}; stop what listens there, or choose other ports"
        )


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def leftovers(directory: Path) -> dict[str, int]:
    """Broker -> process id, of the brokers that a crashed `up` on this directory left running."""
    found: dict[str, int] = {}
    for pid_file in sorted(directory.glob("*/pid")):
        place = LocalBroker(pid_file.parent.name, "", 0, 0, pid_file.parent)
        pid = place.read_pid()
        if pid is not None and runs_broker(pid, place.config):
            found[place.name] = pid
        else:
            pid_file.unlink(missing_ok=True)
    return found


def running_places(directory: Path) -> list[LocalBroker]:
    """The brokers of a local cluster that run; none if there is no cluster in the directory."""
    shape = read_shape(directory)
    places = Layout(directory, shape).places.values() if shape is not None else ()
    return [
        place
        for place in places
        if (pid := place.read_pid()) is not None and runs_broker(pid, place.config)
    ]


def runs_broker(pid: int, config: Path) -> bool:
    """Whether a process is the broker of this configuration: process ids are reused."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"serve" in arguments and os.fsencode(config) in arguments


def end_leftovers(found: Mapping[str, int], directory: Path, say: Callable[[str], None]) -> None:
    """Stop brokers that a crashed `up` left running; they close their stores cleanly."""
    handles: dict[str, int] = {}
    try:
        for name, pid in found.items():
            say(f"{name} still runs (process {pid}), left by an `up` that crashed: stopping it")
            try:
                handles[name] = os.pidfd_open(pid)
                signal.pidfd_send_signal(handles[name], signal.SIGTERM)
            except ProcessLookupError:
                continue
        for name, handle in handles.items():
            if not _has_ended(handle, STOP_SECONDS_MAX):
                say(f"{name} does not stop: killing it")
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                _has_ended(handle, STOP_SECONDS_MAX)
    finally:
        for handle in handles.values():
            os.close(handle)
    for name in found:
        (directory / name / "pid").unlink(missing_ok=True)


def _has_ended(handle: int, seconds_max: float) -> bool:
    readable, _, _ = select.select([handle], [], [], seconds_max)
    return bool(readable)
