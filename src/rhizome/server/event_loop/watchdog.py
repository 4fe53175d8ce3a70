"""Watchdog: notices that something holds the event loop, says what and where, and counts it.

The loop can't say so itself while it is held, so a thread looks at the loop's stopwatch now and
then. It takes a sample once the loop has been held for half of the limit: what the core said it was
doing, and the stack of the loop's thread. Compiled functions have no frames in that stack, so in a
compiled broker it often ends where the loop called the core; what the core was doing says more.

A process that was stopped, or that had to wait for a processor or a disk, has done nothing slow.
The processor time of the loop's thread tells the two apart, and nothing is blamed then.

C code that never lets the interpreter go (a regular expression, a large JSON document) keeps this
thread from running as well. It then samples at the first instant at which it can, which is right
after that code. If that instant never comes, a timer of processor time runs out, which this thread
winds up again each time that it looks: the stacks are written to standard error without the
interpreter's help.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

from rhizome.broker.connection.connection import Connection
from rhizome.broker.queue.queue import Queue
from rhizome.management.metrics.slow_turns import WAITED, WORK, SlowTurn, SlowTurns
from rhizome.security.rate_limited_log import RateLimitedLog
from rhizome.server.event_loop.stopwatch import Stopwatch, Stretch

logger = logging.getLogger("rhizome.watchdog")

PERIOD_S: Final = 0.1
ALERT_PERIOD_S: Final = 0.025
ALERT_LOOKS: Final = 2400
"""For a minute after a slow turn the watchdog looks more often, so that it samples more of those
that are only just slow. At rest each look costs some 50 microseconds, most of it in the kernel."""

HANG_S: Final = 3.0
"""The processor time of all threads after which a watchdog that could not look considers the loop
hung. Threads that hash passwords can't use that much between two looks."""

LINES_BURST: Final = 10
LINES_EVERY_MS: Final = 10_000
TELL_AGAIN_TIMES: Final = 10
"""What holds the loop is reported again when it has done so this many times longer."""

FRAMES_MAX: Final = 8
NS_PER_MS: Final = 1_000_000
WAITED_TEXT: Final = "the machine was busy, the process was stopped, or it waited for the disk"


class Watchdog:
    """Watches one event loop from `start`, which runs in that loop's thread, until `stop`.

    Invariant: a sample belongs to the stretch that began at ``sampled_ns``.
    """

    def __init__(
        self,
        stopwatch: Stopwatch,
        slow_turns: SlowTurns,
        wall_clock_ms: Callable[[], int],
        loop_cpu_ns: Callable[[], int] | None = None,
        loop_frame: Callable[[], FrameType | None] | None = None,
    ) -> None:
        self.stopwatch = stopwatch
        self.slow_turns = slow_turns
        self.wall_clock_ms = wall_clock_ms
        self.loop_cpu_ns = loop_cpu_ns or _cpu_clock_of_this_thread()
        self.loop_frame = loop_frame or _frames_of_this_thread()
        self.after_look: Callable[[], None] = _nothing
        self.sampled_ns = 0
        self.sample = ("", "")
        self.tell_at_ns = 0
        self._seldom = RateLimitedLog(LINES_BURST, LINES_EVERY_MS)
        self._numbers = 0
        self._alert = 0
        self._running = threading.Lock()
        self._thread: threading.Thread | None = None

    def configure(self, slow_turn_ms: int) -> None:
        """The time after which a turn is slow; 0: none is."""
        self.stopwatch.slow_ns = slow_turn_ms * NS_PER_MS
        self.slow_turns.limit_ms = slow_turn_ms

    # ---- the thread -----------------------------------------------------------------------------

    def start(self, tick_s: float) -> None:
        """The loop ticks every ``tick_s`` from now on; what was timed before was the start."""
        self.stopwatch.abandon()
        self.stopwatch.tick_ns = int(tick_s * 1e9)
        self.stopwatch.ticked()
        _print_stacks_on_hang()
        signal.setitimer(signal.ITIMER_VIRTUAL, HANG_S)
        self._running.acquire()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """The loop ends: it ticks no more."""
        self.stopwatch.ticked_ns = 0
        if self._thread is not None:
            self._running.release()
            self._thread.join()
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def _run(self) -> None:
        # A lock and no event: that one makes a lock for each wait.
        while not self._running.acquire(True, ALERT_PERIOD_S if self._alert else PERIOD_S):
            signal.setitimer(signal.ITIMER_VIRTUAL, HANG_S)
            try:
                self.look()
                self.after_look()
            except Exception:
                logger.exception("the watchdog failed, and goes on")

    # ---- what it sees ---------------------------------------------------------------------------

    def look(self) -> None:
        """Take a sample if the loop is held, and report what has ended."""
        stopwatch = self.stopwatch
        for stretch in stopwatch.take():
            self._ended(stretch)
        longest_ns, stopwatch.longest_ns = int(stopwatch.longest_ns), 0
        self.slow_turns.lasted(longest_ns, self.wall_clock_ms())
        now_ns = stopwatch.clock_ns()
        self._alert = max(0, self._alert - 1)
        since_ns = int(stopwatch.held_since_ns(now_ns))
        slow_ns = int(stopwatch.slow_ns)
        if since_ns and slow_ns and now_ns - since_ns >= slow_ns // 2:
            self._held(since_ns, now_ns - since_ns, slow_ns)

    def _held(self, since_ns: int, held_ns: int, slow_ns: int) -> None:
        if since_ns != self.sampled_ns:
            self.sampled_ns = since_ns
            self.sample = (described(self.stopwatch.turn.doing), self._where())
            self.tell_at_ns = slow_ns
        if held_ns < self.tell_at_ns:
            return
        self.tell_at_ns = held_ns * TELL_AGAIN_TIMES
        self.sample = (described(self.stopwatch.turn.doing), self._where())
        ran_ns = max(0, min(held_ns, self.loop_cpu_ns() - int(self.stopwatch.marked_cpu_ns)))
        if _cause(held_ns, ran_ns, slow_ns) == WORK:
            what, where = self.sample
            self._log("the event loop is held for %s up to now: %s; at %s", held_ns, what, where)

    def _ended(self, stretch: Stretch) -> None:
        began_ns, lasted_ns, ran_ns = stretch.began_ns, stretch.lasted_ns, stretch.ran_ns
        what, where = "", ""
        cause = _cause(lasted_ns, ran_ns, int(self.stopwatch.slow_ns))
        if cause == WORK:
            self._alert = ALERT_LOOKS
            what, where = self.sample if self.sampled_ns == began_ns else ("", "")
            what = what or described(stretch.doing)
            self._log(
                "a turn lasted %s, of which it ran %s: %s; at %s", lasted_ns, ran_ns, what, where
            )
        else:
            text = "a turn lasted %s, of which the event loop's thread ran %s: " + WAITED_TEXT
            self._log(text, lasted_ns, ran_ns)
        self._numbers += 1
        self.slow_turns.add(
            SlowTurn(
                self._numbers,
                self.wall_clock_ms(),
                lasted_ns // NS_PER_MS,
                ran_ns // NS_PER_MS,
                cause,
                what,
                where,
            )
        )

    def _log(self, text: str, *values: int | str) -> None:
        """Times among the values are nanoseconds."""
        held_back = self._seldom.held_back(text, self.wall_clock_ms())
        if held_back >= 0:
            shown = [_in_ms(each) if isinstance(each, int) else each or "?" for each in values]
            more = f" ({held_back} such lines were left out before)" if held_back else ""
            logger.warning("slow turn: " + text + "%s", *shown, more)

    def _where(self) -> str:
        """The stack of the loop's thread, innermost call first."""
        frame = self.loop_frame()
        calls: list[str] = []
        while frame is not None and len(calls) < FRAMES_MAX:
            code = frame.f_code
            path = "/".join(code.co_filename.split("/")[-2:])
            calls.append(f"{path}:{frame.f_lineno} {code.co_name}")
            frame = frame.f_back
        return " < ".join(calls)


def _nothing() -> None:
    pass


def _cause(lasted_ns: int, ran_ns: int, slow_ns: int) -> str:
    return WORK if ran_ns >= slow_ns or ran_ns * 2 >= lasted_ns else WAITED


def described(doing: object) -> str:
    """What the core said it was doing, in words."""
    if isinstance(doing, Connection):
        whose = f"user '{doing.identity.user}' on vhost '{doing.router.vhost}'"
        return f"input of connection {doing.name}, {whose}"
    if isinstance(doing, Queue):
        return f"queue '{doing.name}' in vhost '{doing.vhost}'"
    return doing if isinstance(doing, str) else ""


def _in_ms(time_ns: int) -> str:
    return f"{time_ns // NS_PER_MS} ms"


def _cpu_clock_of_this_thread() -> Callable[[], int]:
    clock = time.pthread_getcpuclockid(threading.get_ident())
    return lambda: time.clock_gettime_ns(clock)


def _frames_of_this_thread() -> Callable[[], FrameType | None]:
    ident = threading.get_ident()
    return lambda: sys._current_frames().get(ident)


def _print_stacks_on_hang() -> None:
    """Standard error and not a log file, because that is reopened on SIGHUP."""
    # Without a standard error that is a file this is left out.
    with contextlib.suppress(AttributeError, ValueError, OSError, io.UnsupportedOperation):
        faulthandler.register(signal.SIGVTALRM, sys.stderr, all_threads=True)
        return
    signal.signal(signal.SIGVTALRM, signal.SIG_IGN)
