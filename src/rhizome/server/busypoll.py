"""BusyPoll: looks at the sockets a little longer before the process goes to sleep. Compiled.

Whoever waits in epoll has let its processor halt, and to wake that (worst of all in a virtual
machine) can take longer than everything the broker does with a message. While messages come at
short intervals, the loop is therefore kept polling for at most ``window_us`` after the last of
them. There are three bounds on what that may cost:

- It begins only when input came twice within a window. A broker at rest, or one with a message
  now and then, never polls; its own ticks are no input.
- Between two looks it yields the processor. Whoever else can run, runs.
- If it then has to wait for the processor, others have use for it, and a process that sleeps is
  preferred to one that never does: it gives up polling for a while, and for longer if that happens
  again and again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, final

from mypy_extensions import i64

YIELD_LOST_NS: Final = 1_000_000
"""Yielding for this long means that the processor is wanted: less is a neighbour's short turn."""

PAUSE_NS_MIN: Final = 100_000_000
PAUSE_NS_MAX: Final = 1_000_000_000


@final
class BusyPoll:
    """Invariant: ``polling`` is set exactly while ``_poll`` waits in the loop."""

    loop: Any
    window_ns: i64
    clock_ns: Callable[[], int]
    yield_processor: Callable[[], None]
    polling: bool
    input_ns: i64
    paused_until_ns: i64
    pause_ns: i64
    polls: i64

    def __init__(
        self,
        loop: Any,
        window_us: i64,
        clock_ns: Callable[[], int],
        yield_processor: Callable[[], None],
    ) -> None:
        self.loop = loop
        self.window_ns = window_us * 1000
        self.clock_ns = clock_ns
        self.yield_processor = yield_processor
        self.polling = False
        # Long ago: the first input is no second one.
        self.input_ns = -(1 << 62)
        self.paused_until_ns = 0
        self.pause_ns = PAUSE_NS_MIN
        self.polls = 0

    def input_came(self) -> None:
        """Clients have sent something: if that was soon after the last time, expect more."""
        if self.window_ns == 0:
            return
        now_ns: i64 = self.clock_ns()
        gap_ns: i64 = now_ns - self.input_ns
        self.input_ns = now_ns
        if not self.polling and gap_ns <= self.window_ns and now_ns >= self.paused_until_ns:
            self.polling = True
            self.loop.call_soon(self._poll)

    def _poll(self) -> None:
        """Runs once per iteration of the loop, which looks at the sockets without waiting."""
        self.polls += 1
        now_ns: i64 = self.clock_ns()
        if now_ns - self.input_ns >= self.window_ns:
            self.polling = False
            return
        self.yield_processor()
        back_ns: i64 = self.clock_ns()
        if back_ns - now_ns >= YIELD_LOST_NS:
            self.polling = False
            self._pause(back_ns)
            return
        self.loop.call_soon(self._poll)

    def _pause(self, now_ns: i64) -> None:
        if now_ns - self.paused_until_ns < PAUSE_NS_MAX:
            self.pause_ns = min(self.pause_ns * 2, PAUSE_NS_MAX)
        else:
            self.pause_ns = PAUSE_NS_MIN
        self.paused_until_ns = now_ns + self.pause_ns
