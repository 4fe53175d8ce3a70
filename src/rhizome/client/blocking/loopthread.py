"""An event loop in a thread of its own, for callers that have none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from rhizome.client.errors import NotOpen

T = TypeVar("T")


class LoopThread:
    """An event loop in a daemon thread, for one connection."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="rhizome-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run `work` in the loop and wait for its result; TimeoutError cancels it."""
        if self._loop.is_closed() or threading.current_thread() is self._thread:
            work.close()
            raise NotOpen("the connection was closed, or this is a callback of its own thread")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except BaseException:
            # A timeout, or Ctrl-C in the waiting thread: don't leave the work behind.
            future.cancel()
            raise

    def stop(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
