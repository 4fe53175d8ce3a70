"""Several bridges in one process: signals, status, exit code."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any, Final

from rhizome.bridge.bridge import Bridge
from rhizome.bridge.bridge_events import READY, BridgeEvent, Report
from rhizome.bridge.errors import BridgeError
from rhizome.bridge.settings import BridgeSettings
from rhizome.bridge.shovel_settings import OwnCluster, ParameterContext
from rhizome.bridge.shovel_supervisor import Read, ShovelIntervals, ShovelSupervisor

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

    async def run(self) -> int:
        """Returns the exit code: 0 if all bridges were stopped by a signal, else 1."""
        side_work = [
            asyncio.create_task(self._tell_ready()),
            asyncio.create_task(_statuses(self._tell_status, self._status_s)),
        ]
        try:
            return await until_signalled(self._run_all)
        finally:
            for task in side_work:
                task.cancel()
            await asyncio.gather(*side_work, return_exceptions=True)

    async def _run_all(self, stop: asyncio.Event) -> int:
        succeeded = await asyncio.gather(*(self._run(bridge, stop) for bridge in self._bridges))
        return EXIT_DONE if all(succeeded) else EXIT_FAILED

    async def _run(self, bridge: Bridge, stop: asyncio.Event) -> bool:
        try:
            await bridge.run(stop)
        except BridgeError:
            return False
        return True

    async def _tell_ready(self) -> None:
        for bridge in self._bridges:
            await bridge.running.wait()
        ids = [bridge.settings.id for bridge in self._bridges]
        self._report(BridgeEvent("", READY, f"{len(ids)} running: {', '.join(ids)}"))

    def _tell_status(self) -> None:
        for bridge in self._bridges:
            bridge.reporter.tell_status()


async def until_signalled(work: Callable[[asyncio.Event], Coroutine[Any, Any, int]]) -> int:
    """Do work that ends with an exit code, with an event for it that the first signal sets.

    The second signal cancels it, which is a failure.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(work(stop))

    def signalled() -> None:
        if stop.is_set():
            task.cancel()
        stop.set()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, signalled)
    try:
        return await task
    except asyncio.CancelledError:
        return EXIT_FAILED
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)


async def _statuses(tell: Callable[[], None], status_s: float) -> None:
    while status_s:
        await asyncio.sleep(status_s)
        tell()


async def run_bridges(
    bridges: Sequence[BridgeSettings], report: Report, *, status_s: float = 0.0
) -> int:
    """Run bridges until SIGTERM or SIGINT; returns the exit code of the program."""
    return await Program(bridges, report, status_s, Random()).run()


async def follow_parameters(
    read: Read,
    report: Report,
    *,
    template: BridgeSettings,
    own_uri: str = "",
    tls_files: str = "",
    status_s: float = 0.0,
    pauses: ShovelIntervals | None = None,
) -> int:
    """Run a bridge for each parameter until SIGTERM or SIGINT; returns the exit code.

    That is 0 after a signal: a parameter that can't be followed is told, and no failure of the
    program. Raises ParametersRefused if the parameters are refused at the start.
    """
    chance = Random()

    def make(settings: BridgeSettings, report: Report) -> Bridge:
        return Bridge(settings, report, chance)

    origin = ParameterContext(OwnCluster(), own_uri, template, tls_files)
    follower = ShovelSupervisor(read, origin, report, pauses or ShovelIntervals(), make)

    async def follow(stop: asyncio.Event) -> int:
        await follower.run(stop)
        return EXIT_DONE

    telling = asyncio.create_task(_statuses(follower.tell_status, status_s))
    try:
        return await until_signalled(follow)
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
