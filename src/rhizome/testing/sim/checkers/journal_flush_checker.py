"""The checker of flush policies: what the journal of a broker that starts again still has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rhizome.testing.sim.checkers.checker import Checker
from rhizome.testing.sim.events.broker_events import JournalAt, JournalOpened
from rhizome.testing.sim.world.sim_disk import SimDisk

OFFSET_MASK: Final = 0xFFFFFFFF
"""Of a position: where in its segment it is."""


class JournalKeepsWhatItsFlushPromises(Checker):
    """A journal that is opened reaches as far as its flush policy promised when its broker ended:
    after a kill all that counted as durable, after a power cut all that was synced.

    Only flipped bits excuse less. That the broker opens it by itself, whatever the power left of
    it, is checked where it is opened: one that refuses fails (`ProgramFailed`).
    """

    def __init__(self) -> None:
        super().__init__()
        self.disks: dict[str, SimDisk] = {}
        """Of the brokers."""
        self._last: dict[str, JournalAt] = {}
        self._opened_us: dict[str, int] = {}

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {JournalAt: self._at, JournalOpened: self._opened}

    def _at(self, seen: JournalAt) -> None:
        self._last[seen.broker] = seen

    def _opened(self, seen: JournalOpened) -> None:
        disk = self.disks[seen.broker]
        last = self._last.get(seen.broker)
        before_us = self._opened_us.get(seen.broker, 0)
        self._opened_us[seen.broker] = self.watch.world.now_us
        if last is None or disk.flips:
            return
        cut = any(us >= before_us for us in disk.cuts_us)
        promised = last.synced if cut else last.written
        # A journal goes on in a new segment: before anything is synced there, that isn't promised.
        if promised & OFFSET_MASK and seen.end < promised:
            what = "lost power" if cut else "was killed"
            self.fail(
                f"{seen.broker} {what}, and its journal ends at {seen.end:#x}: it was "
                f"{'synced' if cut else 'written'} up to {promised:#x}"
            )
