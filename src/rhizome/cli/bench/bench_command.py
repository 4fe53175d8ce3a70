"""`rhizome bench`: load a broker and measure it."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Annotated, Final

import typer

from rhizome.cli import coroutine_runner, interrupts
from rhizome.cli.bench.bench_statistics import Counts, Histogram, Summary, summarize, total_counts
from rhizome.cli.bench.load_generator import Done, Failed, Plan, Progress, Share, share_out, work
from rhizome.cli.errors import CliError, UsageError
from rhizome.cli.interrupts import Interruption
from rhizome.cli.output.printer import print_json, print_table
from rhizome.cli.shared_options import URI_DEFAULT, JsonOption, UriOption
from rhizome.client import connect

app = typer.Typer()

READY_PATIENCE_S: Final = 30.0
END_PATIENCE_S: Final = 15.0
POLL_S: Final = 0.2
COLUMNS: Final = (
    "size",
    "published/s",
    "consumed/s",
    "MiB/s",
    "p50 us",
    "p90 us",
    "p99 us",
    "p99.9 us",
    "max us",
)

Report = Callable[[float, Counts], None]


@app.command()
def bench(
    uri: UriOption = URI_DEFAULT,
    publishers: Annotated[int, typer.Option("--publishers", min=0, help="Connections.")] = 1,
    consumers: Annotated[int, typer.Option("--consumers", min=0, help="Connections.")] = 1,
    queues: Annotated[int, typer.Option("--queues", min=1, help="Shared out evenly.")] = 1,
    size: Annotated[
        list[str] | None,
        typer.Option(
            "--size", help="Body, like 16 or 1KiB; one run for each.", show_default="1KiB"
        ),
    ] = None,
    confirm: Annotated[
        int, typer.Option("--confirm", min=0, help="Unconfirmed publishes at most; 0: no confirms.")
    ] = 0,
    ack: Annotated[
        int, typer.Option("--ack", min=0, help="Acknowledge every so many; 0: automatic.")
    ] = 0,
    prefetch: Annotated[
        int, typer.Option("--prefetch", min=0, help="Per consumer; 0: enough for --ack.")
    ] = 0,
    persistent: Annotated[
        bool, typer.Option("--persistent", help="Persistent messages in durable queues.")
    ] = False,
    rate: Annotated[
        float, typer.Option("--rate", min=0, help="Messages per second of all; 0: no limit.")
    ] = 0,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Length of a run.")] = 10,
    processes: Annotated[
        int, typer.Option("--processes", min=1, help="Processes that make the load.")
    ] = 1,
    as_json: JsonOption = False,
) -> None:
    """Load a broker with publishers and consumers, and measure rates and latencies.

    Latency is the time from publish to receipt. Uses queues of its own and deletes them. Ctrl-C
    ends it early: results of what has run are shown.
    """
    if publishers + consumers == 0:
        raise UsageError("nothing to do: give --publishers or --consumers")
    names = tuple(f"rhizome-bench-{os.getpid()}-{number}" for number in range(queues))
    shares = share_out(publishers, consumers, processes)
    plans = [
        Plan(
            uri=uri,
            queues=names,
            body_bytes=parse_body_size(text),
            confirm_window=confirm,
            ack_every=ack,
            persistent=persistent,
            rate=rate / publishers if publishers else 0,
            seconds=seconds,
            prefetch=prefetch,
        )
        for text in size or ["1KiB"]
    ]
    _print_summaries(run_plans(plans, shares, quiet=as_json), as_json)


def parse_body_size(text: str) -> int:
    """Bytes: a plain number, or one with a unit."""
    from rhizome.server.config.units import parse_size

    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return parse_size(text)
    except ValueError as error:
        raise UsageError(f"--size {text}: {error}") from None


# --- one run


@dataclass(slots=True)
class _Process:
    """A worker process and its latest report."""

    process: BaseProcess
    pipe: Pipe
    counts: Counts
    done: Done | None = None


def run_plans(plans: Sequence[Plan], shares: Sequence[Share], quiet: bool) -> list[Summary]:
    """Run plans one after the other; Ctrl-C ends the current one early and skips the rest."""
    summaries: list[Summary] = []
    with interrupts.noted() as interruption:
        for plan in plans:
            if not interruption.strikes:
                with live_report(plan, quiet) as report:
                    summaries.append(run_plan(plan, shares, report, interruption))
    return summaries


def run_plan(
    plan: Plan, shares: Sequence[Share], report: Report, interruption: Interruption
) -> Summary:
    """Make the queues, run the workers, delete the queues.

    An interruption before the workers have started raises KeyboardInterrupt; a later one ends them
    early.
    """
    started: list[_Process] = []
    try:
        coroutine_runner.run(_set_up(plan))
        for share in shares:
            interruption.check()
            started.append(_start(plan, share))
        for each in started:
            _expect_ready(each, interruption)
        _run_workers(started, report, interruption)
    finally:
        for each in started:
            _end(each)
        coroutine_runner.run_to_end(_tear_down(plan))
    return _summary(plan, [each.done for each in started if each.done is not None])


def _run_workers(workers: Sequence[_Process], report: Report, interruption: Interruption) -> None:
    began = time.monotonic()
    for each in workers:
        each.pipe.send("go")
    is_stopped = False
    while any(each.done is None for each in workers):
        if interruption.strikes and not is_stopped:
            is_stopped = True
            for each in workers:
                _stop(each)
        if interruption.strikes > 1:
            raise KeyboardInterrupt  # the workers are too slow for somebody
        _follow(workers)
        report(time.monotonic() - began, total_counts(each.counts for each in workers))


async def _set_up(plan: Plan) -> None:
    async with (
        connect(plan.uri, name="rhizome bench") as connection,
        connection.channel() as channel,
    ):
        for queue in plan.queues:
            await channel.delete_queue(queue)
            await channel.declare_queue(queue, durable=plan.persistent)


async def _tear_down(plan: Plan) -> None:
    async with (
        connect(plan.uri, name="rhizome bench") as connection,
        connection.channel() as channel,
    ):
        for queue in plan.queues:
            await channel.delete_queue(queue)


def _start(plan: Plan, share: Share) -> _Process:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(plan, share, theirs), daemon=True)
    with interrupts.starting_processes():
        process.start()
    theirs.close()
    return _Process(process, ours, Counts())


def _expect_ready(worker: _Process, interruption: Interruption) -> None:
    deadline = time.monotonic() + READY_PATIENCE_S
    while not worker.pipe.poll(POLL_S):
        interruption.check()
        if time.monotonic() >= deadline:
            raise CliError(f"a worker was not ready within {READY_PATIENCE_S:.0f} s; use fewer")
    said = _heard(worker)
    if isinstance(said, Failed):
        raise CliError(said.reason)


def _follow(workers: Sequence[_Process]) -> None:
    """Read reports of the workers, for a moment."""
    busy = {each.pipe: each for each in workers if each.done is None}
    for pipe in wait(list(busy), POLL_S):
        assert isinstance(pipe, Pipe)
        _take(busy[pipe])


def _stop(worker: _Process) -> None:
    """Ask a worker to end early; it may just have ended by itself."""
    try:
        worker.pipe.send("stop")
    except OSError:
        pass


def _heard(worker: _Process) -> object:
    try:
        said: object = worker.pipe.recv()
    except EOFError:
        raise CliError("a worker process died; look at its output above") from None
    return said


def _take(worker: _Process) -> None:
    said = _heard(worker)
    if isinstance(said, Failed):
        raise CliError(said.reason)
    if isinstance(said, Progress):
        worker.counts = said.counts
    elif isinstance(said, Done):
        worker.counts = said.counts
        worker.done = said


def _end(worker: _Process) -> None:
    """Wait for a worker that is done; terminate one that isn't."""
    if worker.done is None:
        worker.process.terminate()
    worker.process.join(END_PATIENCE_S)
    if worker.process.is_alive():
        worker.process.kill()
    worker.pipe.close()


def _summary(plan: Plan, done: Sequence[Done]) -> Summary:
    latency_us = Histogram()
    for each in done:
        latency_us.merge(each.latency_us)
    seconds = max((each.seconds for each in done), default=0.0)
    counts = total_counts(each.counts for each in done)
    return summarize(plan.body_bytes, seconds, counts, latency_us)


# --- display


@contextmanager
def live_report(plan: Plan, quiet: bool) -> Iterator[Report]:
    """A line that moves while a run lasts, on a terminal; nothing otherwise."""
    if quiet or not sys.stderr.isatty():
        yield lambda elapsed_s, counts: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=plan.seconds)
        meter = _Meter()

        def report(elapsed_s: float, counts: Counts) -> None:
            bar.update(task, completed=elapsed_s, description=meter.text(elapsed_s, counts))

        yield report


class _Meter:
    """Rates of the last moments, from counts that only grow."""

    def __init__(self) -> None:
        self._elapsed_s = 0.0
        self._counts = Counts()
        self._text = "starting"

    def text(self, elapsed_s: float, counts: Counts) -> str:
        passed_s = elapsed_s - self._elapsed_s
        if passed_s >= POLL_S and counts != self._counts:
            published = (counts.published - self._counts.published) / passed_s
            consumed = (counts.consumed - self._counts.consumed) / passed_s
            backlog = counts.published - counts.consumed
            self._text = f"{published:,.0f}/s in  {consumed:,.0f}/s out  {backlog:,} behind"
            self._elapsed_s = elapsed_s
            self._counts = counts
        return self._text


def _print_summaries(summaries: Sequence[Summary], as_json: bool) -> None:
    if as_json:
        print_json([summary.document() for summary in summaries])
        return
    print_table(COLUMNS, [_columns(summary) for summary in summaries], "no runs")


def _columns(summary: Summary) -> list[object]:
    latency = summary.latency_us or {}
    return [
        summary.body_bytes,
        round(summary.published_per_s),
        round(summary.consumed_per_s),
        summary.consumed_mib_per_s,
        *(latency.get(name) for name in ("p50", "p90", "p99", "p99.9", "max")),
    ]
