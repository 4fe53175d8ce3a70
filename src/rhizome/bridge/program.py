"""Several bridges in one process: signals, status, exit code."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from random import Random
from typing import Final

from rhizome.bridge.bridge import Bridge
from rhizome.bridge.errors import BridgeError
from rhizome.bridge.events import READY, BridgeEvent, Report
from rhizome.bridge.settings import BridgeSettings

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
EXIT_DONE: Final = 0
EXIT_FAILED: Final = 1


class Program:
    """Runs bridges until a signal stops them; one that fails leaves the others alone."""

    def __init__(
        self, bridges: Sequence[BridgeSettings], report: Report, status_s: float, chance: Random
    ) -> None:
        self._report = report
        self._status_s = status_s
        self._bridges = [Bridge(settings, report, chance) for settings in bridges]
        self._stop = asyncio.Event()
        self._work: asyncio.Future[list[bool]] | None = None

    async def run(self) -> int:
        """Returns the exit code: 0 if all bridges were stopped by a signal, else 1."""
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._signalled)
        side_work = [asyncio.create_task(self._tell_ready()), asyncio.create_task(self._statuses())]
        try:
            self._work = asyncio.gather(*(self._run(bridge) for bridge in self._bridges))
            succeeded = await self._work
        except asyncio.CancelledError:
            return EXIT_FAILED
        finally:
            for task in side_work:
                task.cancel()
            await asyncio.gather(*side_work, return_exceptions=True)
            for number in STOP_SIGNALS:
                loop.remove_signal_handler(number)
        return EXIT_DONE if all(succeeded) else EXIT_FAILED

    def _signalled(self) -> None:
        """The first signal drains, the second ends at once."""
        if self._stop.is_set() and self._work is not None:
            self._work.cancel()
        self._stop.set()

    async def _run(self, bridge: Bridge) -> bool:
        try:
            await bridge.run(self._stop)
        except BridgeError:
            return False
        return True

    async def _tell_ready(self) -> None:
        for bridge in self._bridges:
            await bridge.running.wait()
        ids = [bridge.settings.id for bridge in self._bridges]
        self._report(BridgeEvent("", READY, f"{len(ids)} running: {', '.join(ids)}"))

    async def _statuses(self) -> None:
        while self._status_s:
            await asyncio.sleep(self._status_s)
            for bridge in self._bridges:
                bridge.reporter.tell_status()


async def run_bridges(
    bridges: Sequence[BridgeSettings], report: Report, *, status_s: float = 0.0
) -> int:
    """Run bridges until SIGTERM or SIGINT; returns the exit code of the program."""
    return await Program(bridges, report, status_s, Random()).run()
