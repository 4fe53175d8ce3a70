"""BusyPoll: polls the sockets a little longer before the process goes to sleep. Compiled.

A process that waits in epoll has let its processor halt. Waking that up (worst of all in a virtual
machine) can take longer than everything the broker does with a message. So while messages come at
short intervals, the loop keeps polling for at most ``window_us`` after the last of them. Six bounds
limit what that may cost:

- It begins only when input came twice within a window. A broker at rest, or one with a message now
  and then, never polls; its own ticks are no input.
- Between two polls it yields the processor, so whatever else can run, runs.
- It has a budget: a share of one processor, of which it may save up what a second allows. That is
  enough for dialogs of a client that waits for each answer. A steady stream of messages would have
  the broker spin without end for a little less delay, and uses the budget up: then polling stops
  for a while, and for longer each time that happens again.
- It must help on this machine. The watchdog's thread wakes the loop up now and then, and the time
  that this takes is what polling can save. Where it is short, nothing is polled.
- It stops as long as processors are in demand, that is, as long as any process on this machine,
  even another broker, waits for one for a good part of the time. Then processors don't halt, and
  the scheduler prefers processes that sleep to those that never do.
- If one poll after the other comes late, it stops for a while, and for longer each time that
  happens again: others wanted the processor, or the broker was at work and had no sleep to avoid.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, final

from mypy_extensions import i64

LATE_NS: Final = 1_000_000
"""A poll this long after the one before is late; another process's short turn takes less."""

PAUSE_NS_MIN: Final = 100_000_000
PAUSE_NS_MAX: Final = 3_200_000_000
UNTROUBLED_NS: Final = 1_000_000_000
"""After this long without a late poll the next pause is a short one again."""

HELPS_NS: Final = 20_000
"""A wake-up takes at least this long where polling helps; a turn costs about as much."""
PROBES: Final = 8
"""How many wake-ups are timed before it is judged whether polling helps. Half of them must take
long: some find the loop awake."""
USELESS_NS: Final = 60_000_000_000
"""How long nothing is polled where that does not help; then it is judged again."""
SECOND_NS: Final = 1_000_000_000

WANTED_PERCENT: Final = 25
"""Processors are in demand if some process waited for one in more than this fraction of the time. A
client that shares the broker's processor waits for the next yield with each message: some 5
percent."""


@final
class BusyPoll:
    """Invariant: ``polling`` is set exactly while ``_poll`` waits in the loop."""

    loop: Any
    window_ns: i64
    clock_ns: Callable[[], int]
    yield_processor: Callable[[], None]
    polling: bool
    input_ns: i64
    looked_ns: i64
    paused_until_ns: i64
    pause_ns: i64
    polls: i64
    judged_polls: i64
    wanted: bool
    waited_us: i64
    waited_at_ns: i64
    budget_percent: i64
    left_ns: i64
    """How long it may still poll, as of ``counted_ns``."""
    counted_ns: i64
    useless_until_ns: i64
    probes: i64
    slow_probes: i64

    def __init__(
        self,
        loop: Any,
        window_us: i64,
        clock_ns: Callable[[], int],
        yield_processor: Callable[[], None],
        budget_percent: i64 = 100,
    ) -> None:
        self.loop = loop
        self.window_ns = window_us * 1000
        self.clock_ns = clock_ns
        self.yield_processor = yield_processor
        self.polling = False
        # Long ago: the first input must not count as a second one.
        self.input_ns = -(1 << 62)
        self.looked_ns = 0
        self.paused_until_ns = 0
        self.pause_ns = PAUSE_NS_MIN
        self.polls = self.judged_polls = 0
        self.wanted = False
        self.waited_us = 0
        self.waited_at_ns = 0
        self.budget_percent = budget_percent
        self.left_ns = 0
        self.counted_ns = 0
        self.useless_until_ns = 0
        self.probes = 0
        self.slow_probes = 0

    def input_came(self) -> None:
        """Clients have sent something: if that was soon after the last time, expect more."""
        if self.window_ns == 0:
            return
        now_ns: i64 = self.clock_ns()
        gap_ns: i64 = now_ns - self.input_ns
        self.input_ns = now_ns
        if self.polling:
            self._spend(now_ns)
            self._look(now_ns)
        elif gap_ns <= self.window_ns and self._may_poll(now_ns):
            self.polling = True
            self.looked_ns = now_ns
            self.loop.call_soon(self._poll)

    def processors_waited_for(self, total_us: i64) -> None:
        """Called about once a second with how long processes have waited for a processor since the
        machine started.

        That is what Linux counts as pressure; where it is unknown, it does not grow.
        """
        now_ns: i64 = self.clock_ns()
        waited_ns: i64 = (total_us - self.waited_us) * 1000
        self.wanted = waited_ns * 100 > (now_ns - self.waited_at_ns) * WANTED_PERCENT
        self.waited_us = total_us
        self.waited_at_ns = now_ns

    def _poll(self) -> None:
        """Runs once per iteration of the loop, which looks at the sockets without waiting."""
        self.polls += 1
        now_ns: i64 = self.clock_ns()
        if self.looked_ns != self.input_ns:
            self._spend(now_ns)  # else the broker was at work
        self._look(now_ns)
        if now_ns - self.input_ns < self.window_ns and self._may_poll(now_ns):
            self.yield_processor()
            now_ns = self.clock_ns()
            self._spend(now_ns)
            self._look(now_ns)
            if self._may_poll(now_ns):
                self.loop.call_soon(self._poll)
                return
        self.polling = False

    def _may_poll(self, now_ns: i64) -> bool:
        return (
            not self.wanted and now_ns >= self.paused_until_ns and now_ns >= self.useless_until_ns
        )

    def wants_probe(self) -> bool:
        """Whether it has polled since it was judged last, so that its use is worth a look. For the
        watchdog's thread."""
        return self.judged_polls != self.polls

    def woken(self, asked_ns: int) -> None:
        """Run by the loop when the watchdog has woken it up, which it began to do at
        ``asked_ns``."""
        if self.polling:
            return  # there was no sleep to end
        now_ns: i64 = self.clock_ns()
        if now_ns - asked_ns >= HELPS_NS:
            self.slow_probes += 1
        self.probes += 1
        if self.probes == PROBES:
            if self.slow_probes * 2 < PROBES:
                self.useless_until_ns = now_ns + USELESS_NS
            self.probes = self.slow_probes = 0
            self.judged_polls = self.polls

    def _spend(self, now_ns: i64) -> None:
        """The time since the last look went by with polling."""
        allowed_ns: i64 = SECOND_NS // 100 * self.budget_percent
        elapsed_ns: i64 = min(now_ns - self.counted_ns, SECOND_NS)
        earned_ns: i64 = elapsed_ns * self.budget_percent // 100
        self.counted_ns = now_ns
        self.left_ns = min(allowed_ns, self.left_ns + earned_ns) - (now_ns - self.looked_ns)
        if self.left_ns < 0:
            self._stop_for_a_while(now_ns)

    def _look(self, now_ns: i64) -> None:
        late_ns: i64 = now_ns - self.looked_ns
        self.looked_ns = now_ns
        if late_ns >= LATE_NS:
            self._stop_for_a_while(now_ns)

    def _stop_for_a_while(self, now_ns: i64) -> None:
        if now_ns - self.paused_until_ns < UNTROUBLED_NS:
            self.pause_ns = min(self.pause_ns * 2, PAUSE_NS_MAX)
        else:
            self.pause_ns = PAUSE_NS_MIN
        self.paused_until_ns = now_ns + self.pause_ns
