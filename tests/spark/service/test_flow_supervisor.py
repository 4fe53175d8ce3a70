"""The supervisor, with flows and queries that a test plays: restarts, pauses, batches set aside."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from rhizome.spark.service.flow_file import (
    FlowSettings,
    RetrySettings,
    SinkSettings,
    SourceSettings,
)
from rhizome.spark.service.flow_supervisor import State, Supervisor, clean, lag_of
from rhizome.spark.service.set_aside_batches import PendingBatch
from rhizome.spark.source.query_offsets import Range

RETRY = RetrySettings(tries=3, pause_s=1.0, pause_max_s=8.0, set_aside_in_a_row=2)
SOURCE = SourceSettings("streams", ("s",), "amqp://b1/")
SINK = SinkSettings("queue", "q", "amqp://b1/")


@dataclass
class Progress:
    json: str


class FakeQuery:
    """A query that does what the test says."""

    def __init__(self) -> None:
        self.isActive = True
        self.error: Exception | None = None
        self.status = {"message": "Processing new data", "isTriggerActive": True}
        self.recentProgress: list[Progress] = []
        self.stopped = False
        self.do_at_stop: int | None = None

    @property
    def lastProgress(self) -> Progress | None:  # noqa: N802
        return self.recentProgress[-1] if self.recentProgress else None

    def exception(self) -> Exception | None:
        return self.error

    def fail(self, text: str) -> None:
        self.isActive, self.error = False, RuntimeError(text)

    def do(self, batch: int, rows: int = 10, lag: int = 0) -> None:
        self.recentProgress.append(
            Progress(
                json.dumps(
                    {
                        "batchId": batch,
                        "numInputRows": rows,
                        "processedRowsPerSecond": 5.0,
                        "batchDuration": 2000,
                        "durationMs": {"addBatch": 1} if rows else {},
                        "sources": [
                            {
                                "endOffset": {"next": {"s": 100}},
                                "latestOffset": {"next": {"s": 100 + lag}},
                            }
                        ],
                    }
                )
            )
        )

    def stop(self) -> None:
        if self.do_at_stop is not None:
            self.do(self.do_at_stop)
        self.stopped, self.isActive = True, False


@dataclass
class FakeFlow:
    """A flow whose queries are `FakeQuery`s."""

    settings: FlowSettings = field(default_factory=lambda: FlowSettings("f", SOURCE, SINK))
    name: str = "f"
    queries: list[FakeQuery] = field(default_factory=list)
    batch: PendingBatch | None = None
    poison: str = ""
    refusal: str = ""
    aside: dict[str, dict[str, Any]] = field(default_factory=dict)
    tried: int = 0

    def start(self) -> FakeQuery:
        if self.refusal:
            raise RuntimeError(self.refusal)
        self.queries.append(FakeQuery())
        return self.queries[-1]

    def pending(self) -> PendingBatch | None:
        return self.batch

    def transform_fails(self, batch: PendingBatch) -> str:
        self.tried += 1
        return self.poison

    def set_aside(self, batch: PendingBatch, reason: dict[str, Any]) -> int:
        self.aside[batch.name] = reason
        return batch.messages

    def is_set_aside(self, batch: PendingBatch) -> bool:
        return batch.name in self.aside

    def set_aside_count(self) -> int:
        return len(self.aside)


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def batch(number: int) -> PendingBatch:
    return PendingBatch("query", number, (Range("s", 0, 10 * number, 10 * number + 10),), "")


class Play:
    """A supervisor of one flow, or of several."""

    def __init__(self, *flows: FakeFlow) -> None:
        self.clock = Clock()
        self.flow = flows[0]
        self.supervisor = Supervisor(flows, RETRY, self.clock)
        self.supervised = self.supervisor.flows[0]

    def tend(self, after_s: float = 0.0) -> None:
        self.clock.now_s += after_s
        self.supervisor.tend()

    def fail(self, text: str = "broken") -> None:
        """The query fails, which is seen."""
        self.flow.queries[-1].fail(text)
        self.tend()


def test_flow_that_fails_is_started_again_after_pauses_that_double() -> None:
    play = Play(FakeFlow())
    play.tend()
    for pause_s in (1.0, 2.0, 4.0, 8.0, 8.0):
        started = len(play.flow.queries)
        play.fail()
        assert play.supervised.state is State.WAITING
        play.tend(pause_s - 0.1)
        assert len(play.flow.queries) == started
        play.tend(0.2)
        assert len(play.flow.queries) == started + 1
    assert play.supervised.figures.restarts == 5
    assert play.supervised.figures.error == "broken"


def test_process_that_spark_starts_too_late_makes_no_longer_pause() -> None:
    play = Play(FakeFlow(batch=batch(0), poison="bad"))
    play.tend()
    for _ in range(6):
        play.fail("Python worker failed to connect back.")
        play.tend(1.1)
    assert len(play.flow.queries) == 7
    assert not play.flow.aside


def test_batch_that_is_done_ends_the_long_pauses() -> None:
    play = Play(FakeFlow())
    play.tend()
    for _ in range(4):
        play.fail()
        play.tend(10)
    play.flow.queries[-1].do(0)
    play.tend()
    play.fail()
    play.tend(1.1)
    assert len(play.flow.queries) == 6


def test_start_that_is_refused_is_tried_again() -> None:
    play = Play(FakeFlow(refusal="no such stream at amqp://app:secret@b1/"))
    play.tend()
    assert play.supervised.figures.error == "no such stream at amqp://app:***@b1/"
    play.flow.refusal = ""
    play.tend(1.1)
    assert len(play.flow.queries) == 1


def test_poison_is_set_aside_after_some_tries_with_its_reason() -> None:
    play = Play(FakeFlow(batch=batch(7), poison="can't cast 'x'"))
    play.tend()
    for _ in range(2):
        play.fail("task failed")
        assert not play.flow.aside
        play.tend(10)
    assert play.flow.tried == 0
    play.fail("task failed")
    reason = play.flow.aside["query-7"]
    assert reason["error"] == "can't cast 'x'"
    assert reason["stage"] == "transform"
    assert reason["tries"] == 3
    assert play.supervised.figures.set_aside == 1
    play.tend()  # without a pause
    assert play.flow.queries[-1].isActive


def test_batch_is_not_set_aside_for_what_others_have_done() -> None:
    play = Play(FakeFlow(batch=batch(7)))
    play.tend()
    for _ in range(10):
        play.fail("connection refused")
        play.tend(10)
    assert not play.flow.aside
    assert play.supervised.state is not State.HALTED


def test_failures_of_different_batches_don_t_add_up() -> None:
    play = Play(FakeFlow(poison="bad"))
    play.tend()
    for number in range(6):
        play.flow.batch = batch(number)
        play.fail()
        play.tend(10)
    assert not play.flow.aside


def test_what_a_sink_refuses_is_set_aside_only_if_asked() -> None:
    settings = FlowSettings("f", SOURCE, SINK, on_sink_error="set-aside")
    play = Play(FakeFlow(settings=settings, batch=batch(7)))
    play.tend()
    for _ in range(3):
        play.fail("no queue took a message")
        play.tend(10)
    reason = play.flow.aside["query-7"]
    assert (reason["stage"], reason["error"]) == ("sink", "no queue took a message")


def test_flow_that_sets_aside_batch_after_batch_is_halted() -> None:
    play = Play(FakeFlow(poison="all is wrong"))
    play.tend()
    for number in range(3):
        play.flow.batch = batch(number)
        for _ in range(3):
            play.fail()
            play.tend(10)
    assert list(play.flow.aside) == ["query-0", "query-1"]
    assert play.supervised.state is State.HALTED
    started = len(play.flow.queries)
    play.tend(1000)
    assert len(play.flow.queries) == started


def test_good_batch_between_them_ends_the_row() -> None:
    play = Play(FakeFlow(poison="bad"))
    play.tend()
    for number in (0, 2, 4, 6):
        play.flow.batch = batch(number)
        for _ in range(3):
            play.fail()
            play.tend(10)
        play.flow.queries[-1].do(number, rows=0)
        play.flow.queries[-1].do(number + 1)
        play.tend()
    assert len(play.flow.aside) == 4
    assert play.supervised.state is not State.HALTED


def test_batches_that_somebody_has_sent_again_are_counted_no_more() -> None:
    play = Play(FakeFlow(poison="bad", aside={"q-1": {}, "q-2": {}}))
    play.tend()
    assert play.supervised.figures.set_aside == 2
    del play.flow.aside["q-1"]
    play.supervised.recount()
    assert play.supervised.figures.set_aside == 1


def test_batch_that_is_set_aside_is_not_judged_twice() -> None:
    play = Play(FakeFlow(batch=batch(0), poison="bad"))
    play.tend()
    for _ in range(9):
        play.fail()
        play.tend(10)
    assert play.flow.tried == 1
    assert play.supervised.figures.set_aside == 1


def test_figures_are_those_of_all_batches() -> None:
    play = Play(FakeFlow())
    play.tend()
    query = play.flow.queries[-1]
    for number in range(3):
        query.do(number, lag=5)
    play.tend()
    query.do(3, rows=0)  # idle
    play.tend()
    figures = play.supervised.figures
    assert (figures.batches, figures.rows, figures.batch) == (3, 30, 2)
    assert figures.lag == {"s": 0}
    assert figures.rows_per_second == 0
    assert figures.batch_s == 2.0


def test_flow_whose_rows_are_seen_is_running() -> None:
    """Spark may tell of a batch while its word on the query is still the first one."""
    play = Play(FakeFlow())
    play.tend()
    query = play.flow.queries[-1]
    query.status["message"] = "Initializing sources"
    query.do(0)
    play.tend()
    assert play.supervised.figures.rows == 10
    assert play.supervised.state is State.RUNNING


def test_flows_start_one_after_the_other() -> None:
    first, second = FakeFlow(name="a"), FakeFlow(name="b")
    play = Play(first, second)
    play.tend()
    first.queries[0].status["message"] = "Initializing sources"
    play.tend()
    assert not second.queries
    first.queries[0].status["message"] = "Waiting for data"
    play.tend()
    assert second.queries


def test_flow_that_fails_leaves_others_alone() -> None:
    first, second = FakeFlow(name="a", refusal="no"), FakeFlow(name="b")
    play = Play(first, second)
    for _ in range(5):
        play.tend(0.1)
    assert [each.state for each in play.supervisor.flows] == [State.WAITING, State.RUNNING]


def test_stop_waits_for_the_end_of_the_batch() -> None:
    play = Play(FakeFlow())
    play.tend()
    query = play.flow.queries[-1]
    query.do(0)
    waits = []

    def wait() -> None:
        assert not query.stopped
        waits.append(1)
        if len(waits) == 3:
            query.do(1)

    assert play.supervisor.stop(60, wait) is True
    assert query.stopped
    assert len(waits) == 3
    assert play.supervised.state is State.STOPPED


def test_stop_does_not_wait_between_batches() -> None:
    play = Play(FakeFlow())
    play.tend()
    query = play.flow.queries[-1]
    query.status["isTriggerActive"] = False
    query.do_at_stop = 0
    assert play.supervisor.stop(60, lambda: None) is True
    assert play.supervised.figures.batches == 1  # the one that ended just then


def test_stop_does_not_wait_for_ever() -> None:
    play = Play(FakeFlow())
    play.tend()

    def wait() -> None:
        play.clock.now_s += 10

    assert play.supervisor.stop(60, wait) is False
    assert play.flow.queries[-1].stopped


def test_lag_is_told_per_stream() -> None:
    progress = {
        "sources": [
            {"endOffset": '{"next": {"a": 5}}', "latestOffset": {"next": {"a": 9, "b": 3}}},
            {"endOffset": None, "latestOffset": None},
        ]
    }
    assert lag_of(progress) == {"a": 4, "b": 3}


def test_of_an_error_in_python_its_last_line_is_shown() -> None:
    text = (
        "An exception was raised by the Python Proxy. Return Message: "
        'Traceback (most recent call last):\n  File "x.py", line 1, in f\n    g()\n'
        "pyspark.errors.X: [CAST_INVALID_INPUT] 'poison'\nis no number\n\tat org.apache"
    )
    assert clean(text) == "pyspark.errors.X: [CAST_INVALID_INPUT] 'poison'\nis no number"


def test_errors_are_shown_without_stack_and_passwords() -> None:
    text = "cannot reach amqp://a:secret@b/\nsecond\n\n"
    for rest in ("JVM stacktrace:\norg.apache", "=== Streaming Query ===\nuri=secret"):
        assert clean(text + rest) == "cannot reach amqp://a:***@b/\nsecond"
