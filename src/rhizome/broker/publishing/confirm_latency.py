"""Confirm latency: how long publishes waited, as counts per upper bound, for the metrics.

A batch is noted at once, however many messages it has. Times come from the clock of turns, so they
are exact to the millisecond.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, final

from mypy_extensions import i64

BOUNDS_MS: Final = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000]


@final
class LatencyHistogram:
    """Invariant: ``counts`` has one entry per bound, and a last one for what is beyond all."""

    counts: list[int]
    total_ms: i64

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.total_ms = 0

    def add(self, took_ms: i64, count: i64) -> None:
        if took_ms < 0:
            took_ms = 0  # the clock was set back
        self.counts[bisect_left(BOUNDS_MS, took_ms)] += count
        self.total_ms += took_ms * count


@final
class ConfirmLatencies:
    """How long publishers waited for confirms, by what the confirms waited for: nothing or memory,
    including that of copies; disk, including those of copies; or a home on another broker."""

    memory: LatencyHistogram
    disk: LatencyHistogram
    forwarded: LatencyHistogram

    def __init__(self) -> None:
        self.memory = LatencyHistogram()
        self.disk = LatencyHistogram()
        self.forwarded = LatencyHistogram()
