"""Pace: long lists are made a little at a time, so that messages never wait for the HTTP API."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Final

WORK_SECONDS_MAX: Final = 0.001
ITEMS_BETWEEN_LOOKS: Final = 16


class Pace:
    """Says when a loop has held the event loop for long enough.

        if pace.is_due():
            await pace.rest()

    What was read before a rest may have changed or gone after it.
    """

    __slots__ = ("_items", "_since")

    def __init__(self) -> None:
        self._items = 0
        self._since = perf_counter()

    def is_due(self) -> bool:
        """Called once per item; looks at the clock now and then."""
        self._items += 1
        if self._items % ITEMS_BETWEEN_LOOKS:
            return False
        return perf_counter() - self._since > WORK_SECONDS_MAX

    async def rest(self) -> None:
        await asyncio.sleep(0)
        self._since = perf_counter()
