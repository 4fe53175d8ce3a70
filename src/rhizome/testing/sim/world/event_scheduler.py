"""The world of a simulation: virtual time, the order of events, random sources and the trace.

Time is a whole number of microseconds and moves only from event to event. Two events of the same
instant happen in the order in which they were scheduled.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Final, TextIO

MS: Final = 1_000
SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND

TRACE_BATCH_LINES: Final = 256
TRACE_TAIL_LINES: Final = 4 * TRACE_BATCH_LINES


class Trace:
    """Every event as one line of text, and the digest of all of them.

    Invariant: `digest` covers every line added so far. Only the last lines are kept in memory; a
    `sink` gets all of them.
    """

    def __init__(self, sink: TextIO | None = None) -> None:
        self.lines = 0
        self._sink = sink
        self._hash = hashlib.sha256()
        self._batch: list[str] = []
        self._tail: list[str] = []

    def add(self, line: str) -> None:
        self._batch.append(line)
        if len(self._batch) >= TRACE_BATCH_LINES:
            self._flush()

    def digest(self) -> str:
        self._flush()
        return self._hash.hexdigest()

    def tail(self, count: int, containing: str = "") -> list[str]:
        """The last lines, or the last of those that contain a text."""
        self._flush()
        return [line for line in self._tail if containing in line][-count:]

    def _flush(self) -> None:
        if not self._batch:
            return
        text = "\n".join(self._batch) + "\n"
        self.lines += len(self._batch)
        self._hash.update(text.encode())
        self._tail = self._tail[len(self._batch) - TRACE_TAIL_LINES :] + self._batch
        self._batch = []
        if self._sink is not None:
            self._sink.write(text)


class World:
    """Virtual time and the events to come.

    Invariant: `now_us` never falls, and is the time of the event that is under way. Nothing that
    happens depends on `traced`: without it there are no trace lines, and no time is spent on them.
    """

    def __init__(self, seed: int, sink: TextIO | None = None, traced: bool = True) -> None:
        self.seed = seed
        self.traced = traced
        self.now_us = 0
        self.events = 0
        self.trace = Trace(sink)
        self._numbers = 0
        self._heap: list[tuple[Any, ...]] = []
        """Time, number, action and arguments of each event."""

    def chance(self, name: str) -> random.Random:
        """The random source of one purpose.

        Each name has its own: a new user of randomness does not shift what the others draw.
        """
        return random.Random(f"{self.seed}/{name}")

    def at(self, when_us: int, action: Callable[..., None], *arguments: Any) -> None:
        """Call something at a time, or at once if that time has passed."""
        self._numbers += 1
        if when_us < self.now_us:
            when_us = self.now_us
        heappush(self._heap, (when_us, self._numbers, action, arguments))

    def after(self, delay_us: int, action: Callable[..., None], *arguments: Any) -> None:
        """Call something after a while."""
        self._numbers += 1
        heappush(self._heap, (self.now_us + delay_us, self._numbers, action, arguments))

    def note(self, line: str) -> None:
        """Add a line to the trace, with the time before it. Callers that add a line at
        every event check `traced` first."""
        if self.traced:
            self.trace.add(f"{self.now_us} {line}")

    def run_until(self, end_us: int) -> None:
        """Let everything happen that is due up to `end_us`, which is the time afterwards."""
        heap = self._heap
        while heap:
            event = heap[0]
            if event[0] > end_us:
                break
            heappop(heap)
            self.now_us = event[0]
            self.events += 1
            event[2](*event[3])
        self.now_us = max(self.now_us, end_us)


def shown_time(time_us: int) -> str:
    """A virtual time for people: minutes, seconds and microseconds."""
    minutes, rest = divmod(time_us, MINUTE)
    return f"{minutes}:{rest // SECOND:02d}.{rest % SECOND:06d}"
