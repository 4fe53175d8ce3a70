"""Seldom: lines of a log that somebody outside can cause are held back when there are too many.

Who knocks a thousand times a second must not fill the disk, or push what matters out of a log of
bounded size.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

KEYS_MAX: Final = 10_000

STRANGER: Final = "stranger"
"""The attribute of a log record that says who has caused it, if it is somebody outside."""


def caused_by(source: str) -> dict[str, str]:
    """For `extra` of a line of the log: it is held back if this source causes too many of its kind.

    `source` is an address, or a user at an address.
    """
    return {STRANGER: source}


class RateLimitedLog:
    """Lets `burst` lines of a key through at once, and one more per `interval_ms`.

    Invariant: at most KEYS_MAX keys are known; the one that was quiet for longest gives way.
    """

    def __init__(self, burst: int, interval_ms: int) -> None:
        self._burst = burst
        self._interval_ms = interval_ms
        # Key -> (lines left, when that was, lines held back since the last that went through)
        self._keys: OrderedDict[str, tuple[int, int, int]] = OrderedDict()

    def held_back(self, key: str, now_ms: int) -> int:
        """How many lines were held back before this one, which goes through; -1: so is this."""
        left, since_ms, held = self._keys.pop(key, (self._burst, now_ms, 0))
        since_ms = min(since_ms, now_ms)  # a clock that was set back must not silence anybody
        gained = (now_ms - since_ms) // self._interval_ms
        left = min(self._burst, left + gained)
        since_ms += gained * self._interval_ms
        self._keys[key] = (left - 1, since_ms, 0) if left > 0 else (0, since_ms, held + 1)
        while len(self._keys) > KEYS_MAX:
            self._keys.popitem(last=False)
        return held if left > 0 else -1
