"""What `make build` shows while it compiles: the stage, module i of n, and the seconds so far.

On a terminal it is one line that is rewritten. Elsewhere (a log, a pipe) it is a plain line when a
stage begins and at intervals after that, so that a log stays short and a reader sees it go on.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, TextIO

PERIOD_S: Final = 1.0
"""How often the line on a terminal is renewed, so that its seconds count."""
LINE_EVERY_S: Final = 10.0
"""The interval of plain lines."""
COLUMNS_MAX: Final = 79
REWRITE: Final = "\r\x1b[K"


class BuildProgress:
    """Invariant: at most one stage is under way; ``_done`` of its ``_total`` steps are finished.

    ``total`` is 0 for a stage whose steps can't be counted. Steps may end in any thread.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        ticking: bool = True,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()
        self._clock = clock
        self._begun = clock()
        self._shown_at = self._begun
        self._stage = ""
        self._done = 0
        self._total = 0
        self._name = ""
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._ticker: threading.Thread | None = None
        if ticking:
            self._ticker = threading.Thread(target=self._run, name="build-progress", daemon=True)
            self._ticker.start()

    def __enter__(self) -> BuildProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def stage(self, name: str, total: int = 0) -> None:
        """A stage begins; it has ``total`` steps."""
        with self._lock:
            self._stage, self._total, self._done, self._name = name, total, 0, ""
            self._show()

    def step(self, name: str) -> None:
        """A step of the stage is finished."""
        with self._lock:
            self._done += 1
            self._name = name
            if self._terminal or self._is_due():
                self._show()

    def tick(self) -> None:
        """Time has passed."""
        with self._lock:
            if self._stage and (self._terminal or self._is_due()):
                self._show()

    def close(self) -> None:
        """The build is over, well or not: what follows begins on an empty line."""
        self._over.set()
        if self._ticker is not None:
            self._ticker.join()
        with self._lock:
            if self._terminal and self._stage:
                self._write(REWRITE)
            self._stage = ""

    def line(self) -> str:
        """What is shown now."""
        seconds = f"{self._clock() - self._begun:.0f} s"
        if not self._total:
            return f"rhizome: {self._stage}, {seconds}"
        name = f": {self._name}" if self._name else ""
        return f"rhizome: {self._stage}, {self._done} of {self._total}, {seconds}{name}"

    def _is_due(self) -> bool:
        return self._clock() - self._shown_at >= LINE_EVERY_S

    def _show(self) -> None:
        self._shown_at = self._clock()
        if self._terminal:
            self._write(REWRITE + self.line()[:COLUMNS_MAX])
        else:
            self._write(self.line() + "\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

    def _run(self) -> None:
        while not self._over.wait(PERIOD_S):
            self.tick()
