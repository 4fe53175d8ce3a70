"""Cooperative yield: long lists are made a little at a time, so that messages never wait for the
HTTP API.

All requests share one line: in each round of the event loop one of them works for about a
millisecond, however many there are. Otherwise a hundred lists at once would each take their
millisecond in every round, and messages would wait for all of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import perf_counter
from typing import Final

WORK_SECONDS_MAX: Final = 0.001


class Line:
    """The requests that wait for their next piece of work, in one event loop. Invariant: a call is
    scheduled in the loop exactly while a request waits."""

    __slots__ = ("_waiting", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def turn(self) -> None:
        """Wait for a round of one's own."""
        mine: asyncio.Future[None] = self.loop.create_future()
        if not self._waiting:
            self.loop.call_soon(self._next)
        self._waiting.append(mine)
        await mine

    def _next(self) -> None:
        while self._waiting:
            first = self._waiting.popleft()
            if not first.done():  # the request may have been cancelled
                first.set_result(None)
                break
        if self._waiting:
            self.loop.call_soon(self._next)


_lines: Final[list[Line]] = []
"""The line of the running event loop; a broker has one."""


async def own_turn() -> None:
    """Wait until this round of the event loop is the caller's alone, as far as requests go."""
    loop = asyncio.get_running_loop()
    if not _lines or _lines[0].loop is not loop:
        _lines[:] = [Line(loop)]
    await _lines[0].turn()


class Pace:
    """Says when a piece of work has held the event loop for long enough.

        if pace.is_due():
            await pace.rest()

    What was read before a rest may have changed or gone after it.
    """

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since = perf_counter()

    def is_due(self) -> bool:
        """To be asked after every item."""
        return perf_counter() - self._since > WORK_SECONDS_MAX

    async def rest(self) -> None:
        await own_turn()
        self._since = perf_counter()
