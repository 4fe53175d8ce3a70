"""Deduplication by message id within a window of entries or time (``x-dedup: message-id``)."""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

WINDOW_ENTRIES_DEFAULT: Final = 100_000


@final
class DedupWindow:
    """Invariant: ``seen`` holds at most ``entries_max`` ids, oldest first."""

    entries_max: i64
    window_ms: i64
    seen: dict[str, int]

    def __init__(self, entries_max: i64, window_ms: i64) -> None:
        self.entries_max = entries_max if entries_max > 0 else WINDOW_ENTRIES_DEFAULT
        self.window_ms = window_ms
        self.seen = {}

    def is_duplicate(self, message_id: str, now_ms: i64) -> bool:
        at_ms = self.seen.get(message_id)
        if at_ms is None:
            return False
        return self.window_ms <= 0 or now_ms - at_ms < self.window_ms

    def remember(self, message_id: str, now_ms: i64) -> None:
        """An accepted message's id; only acceptance moves the window."""
        self.seen.pop(message_id, 0)
        self.seen[message_id] = now_ms
        while len(self.seen) > self.entries_max:
            oldest = next(iter(self.seen))
            del self.seen[oldest]
