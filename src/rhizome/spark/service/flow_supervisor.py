"""Keeps the flows of a service running.

A flow that fails is started again after a pause that doubles with each failure, up to the longest;
the first batch that is done ends that. A batch that fails `tries` times in a row is looked at: if
the transformation can't take its messages though nothing else is involved, it is set aside with the
reason, and the flow goes on behind it. What fails for another cause (a broker is away, a disk is
full) is tried for ever. A flow that sets aside batch after batch is halted until the service is
started again.
"""

from __future__ import annotations

import enum
import json
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from rhizome.printable_text import shortened, without_passwords
from rhizome.spark.jobs.job_progress import WORKER_LATE
from rhizome.spark.service.flow_file import SET_ASIDE, FlowSettings, RetrySettings
from rhizome.spark.service.set_aside_batches import REASON_CHARS_MAX, PendingBatch

LOG: Final = logging.getLogger("rhizome.pipeline")
ERROR_CHARS_MAX: Final = 2000
INITIALIZING: Final = "Initializing"
# Behind these come stacks, and plans with all options.
_TRACEBACK: Final = ("JVM stacktrace:", "\n\tat ", "=== Streaming Query ===")
_PYTHON_TRACEBACK: Final = "Traceback (most recent call last)"
_RAISED: Final = re.compile(r"^[A-Za-z_][\w.]*: .", re.MULTILINE)


class State(enum.StrEnum):
    """What a flow does."""

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"
    HALTED = "halted"
    STOPPED = "stopped"


class Runnable(Protocol):
    """A flow, as the supervisor needs it (flow.Flow)."""

    name: str
    settings: FlowSettings

    def start(self) -> Any: ...
    def pending(self) -> PendingBatch | None: ...
    def transform_fails(self, batch: PendingBatch) -> str: ...
    def set_aside(self, batch: PendingBatch, reason: dict[str, Any]) -> int: ...
    def is_set_aside(self, batch: PendingBatch) -> bool: ...
    def set_aside_count(self) -> int: ...


@dataclass
class Figures:
    """What is known of a flow since the service was started. Times are seconds since 1970."""

    batch: int | None = None
    batches: int = 0
    rows: int = 0
    rows_per_second: float = 0.0
    batch_s: float = 0.0
    lag: dict[str, int] = field(default_factory=dict)
    seen_s: float = 0.0
    batch_done_s: float = 0.0
    restarts: int = 0
    set_aside: int = 0
    error: str = ""
    error_s: float = 0.0
    next_try_s: float = 0.0


class SupervisedFlow:
    """A flow and its query. Invariant: there is a query exactly while it starts or runs."""

    def __init__(self, flow: Runnable, retry: RetrySettings, clock: Callable[[], float]) -> None:
        self.flow = flow
        self.name = flow.name
        self.state = State.WAITING
        self.figures = Figures()
        self._retry = retry
        self._clock = clock
        self._query: Any = None
        self._failures = 0
        self._failed_batch: str = ""
        self._batch_failures = 0
        self._in_a_row = 0
        self._behind_set_aside = -1
        self._last_progress = -1
        self._started_once = False

    # --- one look

    def tend(self) -> None:
        """See how it does; start it if it is time."""
        if self._query is not None:
            self._observe()
            if not self._query.isActive:
                self._ended()
            elif self.state is State.STARTING and not self._is_initializing():
                self.state = State.RUNNING
        elif self.state is State.WAITING and self._clock() >= self.figures.next_try_s:
            self._begin()

    def is_starting(self) -> bool:
        return self.state is State.STARTING

    def is_due(self) -> bool:
        return self.state is State.WAITING and self._clock() >= self.figures.next_try_s

    def _is_initializing(self) -> bool:
        return str(self._query.status["message"]).startswith(INITIALIZING)

    def _begin(self) -> None:
        if self._started_once:
            self.figures.restarts += 1
        self._started_once = True
        self._last_progress = -1
        try:
            self.figures.set_aside = self.flow.set_aside_count()
            self._query = self.flow.start()
        except Exception as error:
            # Whatever it is, the other flows go on, and this one is tried again.
            self._failed(error_text(error), None)
            return
        self.state = State.STARTING

    def recount(self) -> None:
        """See how many batches are still set aside: somebody may have sent them again."""
        if self.figures.set_aside:
            try:
                self.figures.set_aside = self.flow.set_aside_count()
            except (OSError, ValueError) as error:
                LOG.warning("flow '%s': what is set aside can't be read: %s", self.name, error)

    # --- progress

    def _observe(self) -> None:
        last = self._query.lastProgress
        if last is None:
            return
        # Before any figure: nobody who reads the status sees rows of a flow that still starts.
        if self.state is State.STARTING:
            self.state = State.RUNNING
        document = json.loads(last.json)
        seen = [document]
        if document["batchId"] > self._last_progress + 1:
            recent = [json.loads(each.json) for each in self._query.recentProgress]
            seen = recent if recent else seen
        for each in seen:
            self._note(each)

    def _note(self, progress: dict[str, Any]) -> None:
        figures = self.figures
        figures.seen_s = self._clock()
        figures.lag = lag_of(progress) or figures.lag
        rows, number = int(progress["numInputRows"]), int(progress["batchId"])
        if rows == 0:
            figures.rows_per_second = 0.0
        # Idle queries tell of the next batch, which has not begun.
        if number <= self._last_progress or "addBatch" not in progress.get("durationMs", {}):
            return
        self._last_progress = number
        figures.batch = number
        figures.batches += 1
        figures.rows += rows
        figures.rows_per_second = float(progress.get("processedRowsPerSecond") or 0.0)
        figures.batch_s = float(progress.get("batchDuration") or 0) / 1000
        figures.batch_done_s = self._clock()
        self._failures = self._batch_failures = 0
        self._failed_batch = ""
        if number > self._behind_set_aside:
            self._in_a_row = 0

    # --- failures

    def _ended(self) -> None:
        error, self._query = self._query.exception(), None
        if self.state is State.STOPPED:
            return
        if error is None:
            self._failed("the query was stopped by somebody else", None)
            return
        try:
            batch = self.flow.pending()
        except Exception as unknown:
            LOG.warning("flow '%s': its checkpoint can't be read: %s", self.name, unknown)
            batch = None
        self._failed(error_text(error), batch)

    def _failed(self, error: str, batch: PendingBatch | None) -> None:
        figures = self.figures
        figures.error, figures.error_s = shortened(error, ERROR_CHARS_MAX), self._clock()
        LOG.warning("flow '%s' failed: %s", self.name, figures.error)
        if WORKER_LATE in error:
            # Spark could not start a process in time, and nothing else has happened.
            figures.next_try_s = self._clock() + self._retry.pause_s
            self.state = State.WAITING
            return
        self._failures += 1
        name = batch.name if batch is not None else ""
        self._batch_failures = self._batch_failures + 1 if name == self._failed_batch else 1
        self._failed_batch = name
        if batch is not None and batch.messages and self._batch_failures >= self._retry.tries:
            if self._consider(batch, error):
                return
        self._pause()

    def _pause(self) -> None:
        exponent = min(self._failures - 1, 32)
        pause_s = min(self._retry.pause_max_s, self._retry.pause_s * 2.0**exponent)
        self.figures.next_try_s = self._clock() + pause_s
        self.state = State.WAITING

    def _consider(self, batch: PendingBatch, error: str) -> bool:
        """Set a batch aside if it is at fault; whether that settles it."""
        if self.flow.is_set_aside(batch):
            return False
        shown = self.flow.transform_fails(batch)
        if not shown and self.flow.settings.on_sink_error != SET_ASIDE:
            return False
        if self._in_a_row >= self._retry.set_aside_in_a_row:
            LOG.error(
                "flow '%s' is halted: %d batches in a row were set aside, and the next one fails "
                "too; see what is wrong with the flow and start the service again",
                self.name,
                self._in_a_row,
            )
            self.state = State.HALTED
            return True
        return self._set_aside(batch, error, shown)

    def _set_aside(self, batch: PendingBatch, error: str, shown: str) -> bool:
        reason = {
            "time": datetime.fromtimestamp(self._clock(), UTC).isoformat(),
            "stage": "transform" if shown else "sink",
            "tries": self._batch_failures,
            "error": shortened(clean(shown) if shown else error, REASON_CHARS_MAX),
        }
        try:
            messages = self.flow.set_aside(batch, reason)
        except Exception as failure:
            LOG.error(
                "flow '%s': batch %d can't be set aside: %s",
                self.name, batch.number, clean(str(failure)),
            )  # fmt: skip
            return False
        LOG.error(
            "flow '%s': %d messages of batch %d were set aside: %s",
            self.name, messages, batch.number, reason["error"],
        )  # fmt: skip
        self._in_a_row += 1
        self._behind_set_aside = batch.number
        self._failures = self._batch_failures = 0
        self.figures.set_aside += 1
        self.figures.next_try_s = self._clock()
        self.state = State.WAITING
        return True

    # --- the end

    def is_amid_batch(self) -> bool:
        if self._query is None or not self._query.isActive:
            return False
        return bool(self._query.status["isTriggerActive"])

    def last_batch(self) -> int:
        """The number of the last batch that was done in this life of the query."""
        if self._query is not None:
            self._observe()
        return self._last_progress

    def stop(self) -> None:
        """Stop the query; the batch that it has done last is counted."""
        self.state = State.STOPPED
        if self._query is None:
            return
        try:
            self._query.stop()
            self._observe()
        except Exception as error:
            # The others are to be stopped too; what this one leaves undone is repeated.
            LOG.warning("flow '%s' does not stop: %s", self.name, error_text(error))
        self._query = None


class Supervisor:
    """All flows of a service. Queries start one after the other: Spark gives the process of a
    source ten seconds to start, which several at a time would take from each other."""

    def __init__(
        self, flows: Sequence[Runnable], retry: RetrySettings, clock: Callable[[], float]
    ) -> None:
        self.flows = [SupervisedFlow(each, retry, clock) for each in flows]
        self._clock = clock

    def tend(self) -> None:
        """See to all flows once."""
        for each in self.flows:
            if each.is_due() and any(other.is_starting() for other in self.flows):
                continue
            each.tend()

    def stop(self, timeout_s: float, wait: Callable[[], None]) -> bool:
        """Stop all flows, each at the end of the batch that it is amid of; after `timeout_s` all
        that are left at once. Returns whether none was cut short."""
        deadline = self._clock() + timeout_s
        before = {each.name: each.last_batch() for each in self.flows}
        left = list(self.flows)
        while left:
            for each in list(left):
                if not each.is_amid_batch() or each.last_batch() > before[each.name]:
                    each.stop()
                    left.remove(each)
            if left and self._clock() >= deadline:
                for each in left:
                    LOG.warning("flow '%s' is stopped amid a batch, which will be repeated",
                                each.name)  # fmt: skip
                    each.stop()
                return False
            if left:
                wait()
        return True


def lag_of(progress: dict[str, Any]) -> dict[str, int]:
    """How many messages of each stream or queue are still to be read."""
    found: dict[str, int] = {}
    for source in progress.get("sources", []):
        latest, end = _positions(source.get("latestOffset")), _positions(source.get("endOffset"))
        if latest is None or end is None:
            continue
        for name, offset in latest.items():
            found[name] = max(0, offset - end.get(name, 0))
    return found


def _positions(offset: Any) -> dict[str, int] | None:
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return None
    if not isinstance(offset, dict) or "next" not in offset:
        return None
    return {str(name): int(each) for name, each in offset["next"].items()}


def error_text(error: BaseException) -> str:
    return clean(str(error) or type(error).__name__)


def clean(text: str) -> str:
    """An error without stacks, plans and passwords. Of one that Python raised the last line, which
    says what, and what follows it."""
    for mark in _TRACEBACK:
        text = text.partition(mark)[0]
    raised = list(_RAISED.finditer(text)) if _PYTHON_TRACEBACK in text else []
    if raised:
        text = text[raised[-1].start() :]
    return "\n".join(without_passwords(line) for line in text.strip().splitlines())
