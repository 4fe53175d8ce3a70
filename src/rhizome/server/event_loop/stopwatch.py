"""Stopwatch: times what runs in the event loop. Compiled.

One stretch is timed at a time: a turn, a step of an HTTP request, or both if one begins within the
other. That takes two readings of the monotonic clock per turn and no system call. The processor
time of the thread, which needs one, is read at most every ``MARK_NS``. The watchdog's thread reads
all of this while the loop is held, so nothing here may depend on the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from mypy_extensions import i64

from rhizome.broker.turn import Turn

MARK_NS: Final = 20_000_000
"""The processor time of a stretch is measured from the latest mark before it, so it is at most this
much too long."""

STRETCHES_MAX: Final = 100
"""How many slow stretches are kept until the watchdog fetches them. It looks far more often than
that many can come; without a watchdog they must not pile up."""


@final
class Stretch:
    """Something that held the event loop for too long. ``ran_ns`` is the processor time of the
    loop's thread in that time."""

    began_ns: i64
    lasted_ns: i64
    ran_ns: i64
    doing: object

    def __init__(self, began_ns: i64, lasted_ns: i64, ran_ns: i64, doing: object) -> None:
        self.began_ns = began_ns
        self.lasted_ns = lasted_ns
        self.ran_ns = ran_ns
        self.doing = doing


@final
class Stopwatch:
    """Invariant: ``began_ns`` is 0 exactly while nothing is timed."""

    turn: Turn
    clock_ns: Callable[[], int]
    cpu_ns: Callable[[], int]
    slow_ns: i64
    """The limit above which a stretch is noted; 0: none is."""
    tick_ns: i64
    began_ns: i64
    ticked_ns: i64
    """When the loop's regular tick last came; 0: none is expected."""
    noted_ns: i64
    marked_ns: i64
    marked_cpu_ns: i64
    longest_ns: i64
    """The longest stretch since the watchdog last took this, however short."""
    blamed: object
    """The connection whose input made the turn slow already, or None."""
    stretches: list[Stretch]

    def __init__(self, turn: Turn, clock_ns: Callable[[], int], cpu_ns: Callable[[], int]) -> None:
        self.turn = turn
        self.clock_ns = clock_ns
        self.cpu_ns = cpu_ns
        self.slow_ns = 0
        self.tick_ns = 0
        self.began_ns = 0
        self.ticked_ns = 0
        self.noted_ns = 0
        self.marked_ns = -(1 << 62)
        self.marked_cpu_ns = 0
        self.longest_ns = 0
        self.blamed = None
        self.stretches = []

    def begin(self) -> None:
        """A turn or a step begins, perhaps within another."""
        if self.began_ns != 0:
            return
        now_ns: i64 = self.clock_ns()
        self.began_ns = now_ns
        if now_ns - self.marked_ns > MARK_NS:
            self._mark(now_ns)

    def input_taken(self) -> None:
        """A turn has taken its input: remember whose it was if the turn is slow already."""
        if self.slow_ns > 0 and self.began_ns != 0:
            now_ns: i64 = self.clock_ns()
            if now_ns - self.began_ns > self.slow_ns:
                self.blamed = self.turn.doing

    def end(self) -> None:
        """The timed stretch is over."""
        began_ns = self.began_ns
        if began_ns == 0:
            return
        now_ns: i64 = self.clock_ns()
        lasted_ns = now_ns - began_ns
        self.began_ns = 0
        if lasted_ns > self.longest_ns:
            self.longest_ns = lasted_ns
        if lasted_ns > self.slow_ns and self.slow_ns > 0:
            self._note(began_ns, now_ns, lasted_ns)
        self.turn.doing = None
        self.blamed = None

    def abandon(self) -> None:
        """The timed stretch failed, and so ended without a call of ``end``."""
        self.began_ns = 0
        self.blamed = None

    def ticked(self) -> None:
        """The loop's regular tick has come. If it is late and no stretch explains that, the loop
        was held by something that is not timed, or by many short things."""
        now_ns: i64 = self.clock_ns()
        due_ns = self.ticked_ns + self.tick_ns
        if self.ticked_ns != 0 and self.slow_ns > 0 and now_ns - due_ns > self.slow_ns:
            if self.noted_ns <= self.ticked_ns:
                self.longest_ns = max(self.longest_ns, now_ns - due_ns)
                self._note(due_ns, now_ns, now_ns - due_ns)
        self.ticked_ns = now_ns

    def held_since_ns(self, now_ns: i64) -> i64:
        """Since when the loop has been held, or 0. For the watchdog's thread."""
        if self.began_ns != 0:
            return self.began_ns
        due_ns = self.ticked_ns + self.tick_ns
        return due_ns if self.ticked_ns != 0 and now_ns > due_ns else 0

    def take(self) -> list[Stretch]:
        """The slow stretches since the last call. For the watchdog's thread."""
        taken = self.stretches
        self.stretches = []
        return taken

    def _note(self, began_ns: i64, now_ns: i64, lasted_ns: i64) -> None:
        cpu_before_ns = self.marked_cpu_ns
        self._mark(now_ns)
        self.noted_ns = now_ns
        if len(self.stretches) < STRETCHES_MAX:
            ran_ns = min(lasted_ns, self.marked_cpu_ns - cpu_before_ns)
            doing = self.turn.doing if self.blamed is None else self.blamed
            self.stretches.append(Stretch(began_ns, lasted_ns, ran_ns, doing))

    def _mark(self, now_ns: i64) -> None:
        self.marked_ns = now_ns
        self.marked_cpu_ns = self.cpu_ns()
