"""Core supervisor: the parent process of the brokers of one machine (`rhizome serve --cores N`).

It serves nothing itself. It keeps the ports, starts one process per broker, prints `ready` once
when all are ready, restarts brokers that end unasked, and passes signals on:

- starting: all are started together. One that ends before it was ready ends the whole start.
- running: one that ends is started again, at once the first time, then after a delay that doubles
  until it is ready again. Clients go to the others meanwhile.
- SIGHUP: the brokers that are ready read their configuration again.
- stopping (SIGTERM, SIGINT): the secondaries stop first, then the first broker, which then has no
  other broker to tell. A second signal ends all at once.

It has no event loop and no thread, so that processes can be made by fork: a broker starts with
everything imported, and shares that memory with the others. A broker whose supervisor is killed
gets SIGTERM.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final

from rhizome.errors import RhizomeError
from rhizome.journal.errors import StoreInUse
from rhizome.journal.files import DirectoryLock, lock_owner
from rhizome.listen_sockets import bind
from rhizome.server.config.broker_config import Config
from rhizome.server.config.units import Address
from rhizome.server.log_output import configure_logging
from rhizome.server.multi_core.core_configs import CorePlan, store_directories
from rhizome.server.startup_errors import report_startup_error

logger = logging.getLogger("rhizome.cores")

RESTART_DELAY_S: Final = 0.5
RESTART_DELAY_MAX_S: Final = 10.0
STOP_SECONDS_MAX: Final = 30.0
ORPHANS_SECONDS_MAX: Final = 15.0
READ_BYTES: Final = 4096
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_PR_SET_PDEATHSIG: Final = 1

Read = Callable[[], Config]
Serve = Callable[[Config, Callable[[str], None], Read], int]
"""Runs a broker in this process, reports its `ready` line, reads its configuration again on SIGHUP,
and returns its exit code."""


class Core:
    """One broker's process. Invariant: ``pipe`` is open exactly while it runs (``pid`` is set).
    Only the process has the other end, so the pipe ends with it."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.name = config.broker.name
        self.pid = 0
        self.pipe = -1
        self.said = ""
        self.ready = ""
        self.failures = 0
        self.start_at_s = 0.0

    def ended(self, now_s: float) -> None:
        self.pid = 0
        self.pipe = -1
        delay_s = 0.0
        if self.failures:
            delay_s = RESTART_DELAY_S * 2.0 ** min(self.failures - 1, 10)
        self.failures += 1
        self.start_at_s = now_s + min(delay_s, RESTART_DELAY_MAX_S)
        self.said = self.ready = ""

    def heard(self, text: str) -> bool:
        """The process has written; return whether it is ready now."""
        self.said += text
        line, end, _ = self.said.partition("\n")
        if not end or self.ready:
            return False
        self.ready = line
        self.failures = 0
        return True


class Supervisor:
    """Invariant: ``stopping`` is the number of the first signal, 0 before."""

    def __init__(
        self, config: Config, serve: Serve, say: Callable[[str], None], read_again: Read
    ) -> None:
        self._serve = serve
        self._read_again = read_again
        self._say = say
        self._reserved, listening = reserve_ports(config)
        self.plan = CorePlan(config, listening)
        self.cores = [Core(each) for each in self.plan.configs()]
        self.stopping = 0
        self._told = False
        self._failed = 0
        self._selector = selectors.DefaultSelector()
        self._signals, self._signalled = socket.socketpair()

    def run(self) -> int:
        """Run until the last process has ended; return the exit code."""
        for end in (self._signals, self._signalled):
            end.setblocking(False)
        signal.set_wakeup_fd(self._signalled.fileno())
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGHUP, self._on_hangup)
        self._selector.register(self._signals, selectors.EVENT_READ, None)
        try:
            for core in self.cores:
                self._start(core)
            while not self.stopping and not self._failed:
                self._turn(self._next_start_s())
                self._start_due()
            return self._stop()
        finally:
            self._kill_all()
            self.plan.socket.unlink(missing_ok=True)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.stopping:
            logger.warning("second signal: stopping at once, stores are not closed cleanly")
            self._kill_all()
            os._exit(128 + number)
        self.stopping = number

    def _on_hangup(self, number: int, frame: FrameType | None) -> None:
        for core in self.cores:
            if core.pid and core.ready:
                os.kill(core.pid, signal.SIGHUP)

    # ---- processes ------------------------------------------------------------------------------

    def _start(self, core: Core) -> None:
        core.pipe, told = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._be(core, told, parent)
        os.close(told)
        core.pid = pid
        self.plan.pid_file(core.name).write_text(f"{pid}\n")
        self._selector.register(core.pipe, selectors.EVENT_READ, core)
        logger.info("broker %r is process %d", core.name, pid)

    def _be(self, core: Core, told: int, parent: int) -> None:
        """The main function of a new process; it never returns."""
        code = 1
        try:
            _leave_supervisor(parent)
            self._selector.close()
            for other in self.cores:
                if other.pipe >= 0:
                    os.close(other.pipe)
            for sock in (*self._reserved, self._signals, self._signalled):
                sock.close()
            code = self._serve(
                core.config,
                lambda line: _tell(told, line),
                lambda: self.plan.reread(core.name, self._read_again()),
            )
        except BaseException:
            logger.exception("a fault of the broker itself")
        finally:
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _turn(self, timeout_s: float | None) -> None:
        for key, _ in self._selector.select(timeout_s):
            core = key.data
            if core is None:
                self._signals.recv(READ_BYTES)
            else:
                self._listen_to(core)

    def _listen_to(self, core: Core) -> None:
        text = os.read(core.pipe, READ_BYTES)
        if not text:
            self._reap(core)
        elif core.heard(text.decode()):
            logger.info("broker %r is ready", core.name)
            if not self._told and all(each.ready for each in self.cores):
                self._told = True
                self._say(self.cores[0].ready)

    def _reap(self, core: Core) -> None:
        """The process has closed its end of the pipe: it has ended."""
        _, status = os.waitpid(core.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        self._selector.unregister(core.pipe)
        os.close(core.pipe)
        self.plan.pid_file(core.name).unlink(missing_ok=True)
        core.ended(time.monotonic())
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        if self.stopping or self._failed:
            if code:
                self._failed = 1
                logger.error("broker %r ended with %s", core.name, how)
        elif self._told:
            logger.error("broker %r ended with %s: starting it again", core.name, how)
        else:
            logger.error("broker %r ended with %s before it was ready", core.name, how)
            self._failed = 1

    def _next_start_s(self) -> float | None:
        waiting = [core.start_at_s for core in self.cores if not core.pid]
        return max(0.0, min(waiting) - time.monotonic()) if waiting else None

    def _start_due(self) -> None:
        now_s = time.monotonic()
        for core in self.cores:
            is_due = not core.pid and core.start_at_s <= now_s
            if is_due and not self.stopping and not self._failed:
                self._start(core)

    # ---- stopping -------------------------------------------------------------------------------

    def _stop(self) -> int:
        if self.stopping:
            logger.info("stopping on %s", signal.Signals(self.stopping).name)
        self._end(self.cores[1:])
        self._end(self.cores[:1])
        return self._failed

    def _end(self, cores: list[Core]) -> None:
        for core in cores:
            if core.pid:
                os.kill(core.pid, signal.SIGTERM)
        deadline_s = time.monotonic() + STOP_SECONDS_MAX
        while any(core.pid for core in cores):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                logger.error("brokers don't stop within %g s: killing them", STOP_SECONDS_MAX)
                self._kill_all()
                self._failed = 1
                left_s = 1.0
            self._turn(left_s)

    def _kill_all(self) -> None:
        for core in self.cores:
            if core.pid:
                os.kill(core.pid, signal.SIGKILL)


def run_cores(config: Config, serve: Serve, say: Callable[[str], None], read_again: Read) -> int:
    """Run the brokers of this machine until they are told to stop; the exit code."""
    configure_logging(config.log, "supervisor", in_background=False)  # it forks
    try:
        await_orphans(store_directories(config))
        return Supervisor(config, serve, say, read_again).run()
    except (RhizomeError, OSError) as error:
        return report_startup_error(error, config)


def await_orphans(directories: list[Path]) -> None:
    """Brokers of a supervisor that was killed may still be closing their stores."""
    deadline_s = time.monotonic() + ORPHANS_SECONDS_MAX
    for directory in directories:
        while True:
            try:
                DirectoryLock(directory).release()
                break
            except StoreInUse:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or not _has_ended(lock_owner(directory), left_s):
                    raise


def _has_ended(pid: int, seconds_max: float) -> bool:
    """Wait for a process to end; return whether it did."""
    if not pid:
        return False
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        ready, _, _ = select.select([handle], [], [], seconds_max)
        return bool(ready)
    finally:
        os.close(handle)


def reserve_ports(config: Config) -> tuple[list[socket.socket], list[Address]]:
    """Hold the ports that the brokers will share, and choose those that are 0.

    A bound socket that doesn't listen gets no connections, and keeps other programs away even while
    no broker runs. It is bound without sharing first, to find out whether another program listens
    there.
    """
    held: list[socket.socket] = []
    listening: list[Address] = []
    for address in (*config.listen.amqp, *config.listen.tls):
        if address.port:
            for sock in bind(address.host, address.port, "AMQP"):
                sock.close()
        sockets = bind(address.host, address.port, "AMQP", shared=True)
        held += sockets
        listening.append(Address(address.host, sockets[0].getsockname()[1]))
    return held, listening


def _leave_supervisor(parent: int) -> None:
    """In a new process: undo what its parent has set up for itself.

    In a session of its own it doesn't get the terminal's Ctrl-C beside the supervisor's SIGTERM:
    the second signal would end it at once.
    """
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the broker is there to handle it
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)


def _tell(pipe: int, line: str) -> None:
    os.write(pipe, line.encode() + b"\n")
