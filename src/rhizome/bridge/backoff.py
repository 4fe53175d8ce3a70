"""How long to wait before the next try."""

from __future__ import annotations

from random import Random
from typing import Final

FIRST_S: Final = 0.2
FACTOR: Final = 2.0
JITTER: Final = 0.5


class Backoff:
    """Waits that double up to a maximum, each shortened by chance.

    Without the chance all bridges that one broker's end has cut off would come back at once.
    """

    def __init__(self, s_max: float, chance: Random) -> None:
        self._s_max = s_max
        self._chance = chance
        self._next_s = FIRST_S

    def next_s(self) -> float:
        """Seconds to wait now."""
        whole = min(self._next_s, self._s_max)
        self._next_s = min(self._next_s * FACTOR, self._s_max)
        return whole * (1 - JITTER * self._chance.random())

    def reset(self) -> None:
        """It works again: the next failure is a new one."""
        self._next_s = FIRST_S
