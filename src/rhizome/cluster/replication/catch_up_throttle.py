"""Catch-up throttle: how fast a home sends what copies lack, so that its queues are hardly slowed.
Compiled."""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

BACKFILL_BYTES_MAX: Final = 24 * 1024 * 1024
"""How many bytes are sent in a second while the group is in use."""
PERIOD_MS: Final = 200
BUSY_BYTES: Final = 256 * 1024
BUSY_RECORDS: Final = 500
"""A group is in use if it has this many new bytes or records in a period."""


@final
class CatchUpThrottle:
    """Limits how fast one group's copies catch up.

    Invariant: in any second in which the group is in use, frames that were allowed have no more
    than `bytes_max` and one frame. An idle group isn't held back at all.
    """

    bytes_max: i64
    _busy: bool
    _period_ms: i64
    _records: i64
    _bytes: i64
    _next_ms: i64

    def __init__(self, bytes_max: i64, now_ms: i64) -> None:
        self.bytes_max = bytes_max
        self._busy = False
        self._period_ms = now_ms
        self._records = 0
        self._bytes = 0
        self._next_ms = now_ms

    def recorded(self, records: i64, size: i64) -> None:
        """The group has this much new."""
        self._records += records
        self._bytes += size

    def allows(self, now_ms: i64) -> bool:
        """Whether the next frame may be sent."""
        much = self._bytes >= BUSY_BYTES or self._records >= BUSY_RECORDS
        if much:
            self._busy = True
        if now_ms - self._period_ms >= PERIOD_MS:
            self._busy = much
            self._period_ms = now_ms
            self._records = 0
            self._bytes = 0
        return not self._busy or now_ms >= self._next_ms

    def sent(self, size: i64, now_ms: i64) -> None:
        """A frame has been sent; it sets the time of the next one."""
        due = max(self._next_ms, now_ms - PERIOD_MS)
        self._next_ms = due + size * 1000 // self.bytes_max
