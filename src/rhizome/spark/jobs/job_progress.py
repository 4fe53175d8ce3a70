"""Progress of what Spark does, told while it runs.

A job is given a function `tell` that it calls a few times a second with `Figures`; who doesn't want
to know gives none.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from rhizome.errors import RhizomeError
from rhizome.spark import spark_master

T = TypeVar("T")

TELL_SECONDS: Final = 0.25
WORKER_LATE: Final = "failed to connect back"
"""Spark gives the Python process of a streaming source ten seconds to connect, which no setting
changes and a busy machine may not keep; sessions that we start get by with less
(worker_launcher.py). A query that fails for this has done nothing yet."""


class JobError(RhizomeError):
    """A job can't do what it was asked; the text says why and what to do."""


@dataclass(frozen=True)
class Figures:
    """How far a job is. What isn't known is None."""

    stage: str
    rows: int | None = None
    rows_per_second: float | None = None
    behind: int | None = None
    batch: int | None = None
    tasks_done: int | None = None
    tasks: int | None = None


Tell = Callable[[Figures], None]


def silently(figures: Figures) -> None:
    """For those who don't want to know."""


@dataclass
class QueryTotals:
    """What a streaming query has done in this run."""

    rows: int = 0
    batches: int = 0
    _last: int = -1

    def observe(self, progress: dict[str, Any]) -> None:
        if progress["batchId"] > self._last and progress["numInputRows"] > 0:
            self._last = progress["batchId"]
            self.rows += progress["numInputRows"]
            self.batches += 1


def never() -> bool:
    """For those who let a query run until it ends."""
    return False


def watch_query(
    query: Any, stage: str, tell: Tell, stopping: Callable[[], bool] = never
) -> QueryTotals:
    """Wait until a streaming query ends, telling how it gets on; raises what it failed with.

    Once `stopping` answers yes the query is stopped; its next run goes on from there.
    """
    totals = QueryTotals()
    while not query.awaitTermination(TELL_SECONDS):
        _observe(query, totals, stage, tell)
        if stopping():
            query.stop()
    _observe(query, totals, stage, tell)
    return totals


def _observe(query: Any, totals: QueryTotals, stage: str, tell: Tell) -> None:
    for progress in query.recentProgress:
        totals.observe(progress_document(progress))
    last = query.lastProgress
    if last is None:
        tell(Figures(stage))
        return
    document = progress_document(last)
    tell(
        Figures(
            stage,
            rows=totals.rows,
            rows_per_second=document.get("processedRowsPerSecond"),
            behind=_behind(document),
            batch=document["batchId"],
        )
    )


def progress_document(progress: Any) -> dict[str, Any]:
    """What a query says of a batch. Spark Connect leaves out sums, and has offsets as texts."""
    document: dict[str, Any] = json.loads(progress.json)
    sources = document.get("sources", [])
    for name in ("numInputRows", "processedRowsPerSecond"):
        if name not in document:
            document[name] = sum(source.get(name) or 0 for source in sources)
    for source in sources:
        for name in ("startOffset", "endOffset", "latestOffset"):
            if isinstance(source.get(name), str):
                source[name] = json.loads(source[name])
    return document


def _behind(document: dict[str, Any]) -> int | None:
    """How many messages of the sources are still to be read."""
    total = 0
    for source in document.get("sources", []):
        latest, end = source.get("latestOffset"), source.get("endOffset")
        if not isinstance(latest, dict) or not isinstance(end, dict):
            return None
        total += sum(
            max(0, offset - end["next"].get(name, 0)) for name, offset in latest["next"].items()
        )
    return total


def watch(spark: Any, stage: str, tell: Tell, action: Callable[[], T]) -> T:
    """The result of an action of Spark, with its tasks told while it runs.

    The telling is done aside: formats are registered with the session of this thread.
    """
    if tell is silently:
        return action()
    tell(Figures(stage))
    if spark_master.has_remote_driver(spark):
        return _watch_remotely(spark, stage, tell, action)
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup(None))
    ended = threading.Event()

    def keep_telling() -> None:
        while not ended.wait(TELL_SECONDS):
            tell(_tasks(tracker, before, stage))

    thread = threading.Thread(target=keep_telling, daemon=True)
    thread.start()
    try:
        return action()
    finally:
        ended.set()
        thread.join()


def _watch_remotely(spark: Any, stage: str, tell: Tell, action: Callable[[], T]) -> T:
    """The same with Spark Connect, whose server tells about the operation that a thread waits
    for."""

    def handle(stages: Any = None, **rest: Any) -> None:
        known = list(stages or ())
        done = sum(each.num_completed_tasks for each in known)
        tell(Figures(stage, tasks_done=done, tasks=sum(each.num_tasks for each in known)))

    spark.registerProgressHandler(handle)
    try:
        return action()
    finally:
        spark.removeProgressHandler(handle)


def _tasks(tracker: Any, before: set[int], stage: str) -> Figures:
    done = total = 0
    for job in set(tracker.getJobIdsForGroup(None)) - before:
        info = tracker.getJobInfo(job)
        for number in [] if info is None else info.stageIds:
            each = tracker.getStageInfo(number)
            if each is not None:
                done += each.numCompletedTasks
                total += each.numTasks
    return Figures(stage, tasks_done=done, tasks=total)
