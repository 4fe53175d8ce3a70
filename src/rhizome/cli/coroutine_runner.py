"""Runs a coroutine for a command, on uvloop where it is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from rhizome.cli import interrupts

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end. Ctrl-C cancels it and ends the command with KeyboardInterrupt."""
    cancellable = _Cancellable(work)
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        try:
            return runner.run(cancellable.run())
        except (asyncio.CancelledError, Exception):
            # The outcome of the cancellation, perhaps the error of a half-open connection.
            if not cancellable.struck:
                raise
    raise KeyboardInterrupt


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end. The caller decides what Ctrl-C does meanwhile."""
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        return runner.run(work)


class _Cancellable(Generic[T]):
    """Work that Ctrl-C cancels; a second one ends the process, should the first have no effect."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self.struck = False

    async def run(self) -> T:
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._work)

        def strike() -> None:
            if self.struck:
                interrupts.leave()
            self.struck = True
            loop.call_soon_threadsafe(task.cancel)

        with interrupts.handled(strike):
            return await task


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
