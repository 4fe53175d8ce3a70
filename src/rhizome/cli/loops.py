"""Running a coroutine from a command: on uvloop where it is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end. Ctrl-C cancels it and ends the command with KeyboardInterrupt."""
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        return runner.run(work)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
