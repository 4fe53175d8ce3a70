"""Home phase: what the home of a group does now. Compiled.

`home_group.py` draws the phases and says who causes each transition.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

RECOVERING: Final = 0
SERVING: Final = 1
HANDING_OVER: Final = 2
FAILED: Final = 3
ENDED: Final = 4
PHASES: Final = ("recovering", "serving", "handing over", "failed", "ended")
"""The phases by number, for people."""


@final
class HomePhase:
    """The phase of one home. Its ``HomeGroup`` alone changes it; the home's edge sessions read
    it."""

    now: i64

    def __init__(self) -> None:
        self.now = RECOVERING

    def is_recovering(self) -> bool:
        """Whether what edges present is collected, and compared later."""
        return self.now == RECOVERING

    def is_serving(self) -> bool:
        return self.now == SERVING

    def is_handing_over(self) -> bool:
        """Whether nothing is taken from edges any more."""
        return self.now == HANDING_OVER
