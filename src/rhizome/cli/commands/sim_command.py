"""`rhizome sim`: simulate clusters from seeds."""

from __future__ import annotations

import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from rhizome.cli import interrupts
from rhizome.cli.errors import CliError, UsageError
from rhizome.cli.output.printer import print_fields, print_json, say
from rhizome.cli.shared_options import JsonOption
from rhizome.testing.sim.faults.fault_schedule import UnknownFault
from rhizome.testing.sim.scenario_runner import SCENARIOS, UnknownScenario, run_named, run_seeds
from rhizome.testing.sim.seed_run import Outcome, Range, RunOptions, UnknownFlush, UnknownRule
from rhizome.testing.sim.world.event_scheduler import shown_time

app = typer.Typer()

SEEDS_MAX: Final = 10_000_000

Report = Callable[[Outcome], None]


@app.command()
def sim(
    seed: Annotated[
        int | None, typer.Option("--seed", help="Simulate this seed.", show_default=False)
    ] = None,
    seeds: Annotated[
        str, typer.Option("--seeds", metavar="A..B", help="Simulate the seeds from A to B.")
    ] = "",
    scenario: Annotated[
        str, typer.Option("--scenario", help=f"What to simulate: {', '.join(SCENARIOS)}.")
    ] = "consensus",
    brokers: Annotated[
        str, typer.Option("--brokers", metavar="N|A..B", help="Primaries; a seed draws from A..B.")
    ] = "3",
    secondaries: Annotated[
        str, typer.Option("--secondaries", metavar="N|A..B", help="Secondaries beside them.")
    ] = "0",
    minutes: Annotated[
        float, typer.Option("--minutes", min=0.1, help="Virtual time, faults and calm after them.")
    ] = 5.0,
    faults: Annotated[
        list[str] | None,
        typer.Option("--fault", help="Only faults of this kind; may be given several times."),
    ] = None,
    pace: Annotated[
        float, typer.Option("--pace", min=0.01, help="So many times as many faults as usual.")
    ] = 1.0,
    broken: Annotated[
        list[str] | None,
        typer.Option("--break", help="Break this rule on purpose, to see it caught."),
    ] = None,
    sessions: Annotated[
        bool,
        typer.Option("--sessions", help="Some consumers come back with what they hold (messages)."),
    ] = False,
    streams: Annotated[
        bool, typer.Option("--streams", help="There are streams, with readers (messages).")
    ] = False,
    keys: Annotated[
        bool, typer.Option("--keys", help="There is a keyed queue (messages).")
    ] = False,
    leases: Annotated[
        bool, typer.Option("--leases", help="There is a queue that is leased (messages).")
    ] = False,
    flush: Annotated[
        str,
        typer.Option(
            "--flush",
            metavar="POLICY",
            help="When journals are synced: always, interval or never (messages, streams).",
        ),
    ] = "always",
    distant: Annotated[
        int,
        typer.Option(
            "--distant", metavar="MS", min=0, help="One broker is so far from the others."
        ),
    ] = 0,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Write every event of a single seed here.")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Processes.")] = 1,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Go on after a violation.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Simulate whole clusters on a virtual clock, network and disk, with faults from a seed.

    The same seed gives the same run, event by event. A violation prints its seed, the last events
    and the command that replays it; the exit code is 1 then.
    """
    chosen = _seeds(seed, seeds)
    options = RunOptions(
        brokers=parse_range("--brokers", brokers, 1),
        secondaries=parse_range("--secondaries", secondaries, 0),
        minutes=minutes,
        faults=tuple(faults or ()),
        pace=pace,
        broken=tuple(broken or ()),
        sessions=sessions,
        streams=streams,
        keys=keys,
        leases=leases,
        flush=flush,
        distant_ms=distant,
    )
    if trace is not None and len(chosen) > 1:
        raise UsageError("--trace needs a single seed: give --seed")
    begun_s = time.monotonic()
    outcomes: list[Outcome] = []
    # Pure computation may be interrupted anywhere, but the display must restore the cursor.
    with interrupts.raised(), _progress(len(chosen), as_json) as report:
        for outcome in _run(scenario, chosen, options, jobs, trace):
            outcomes.append(outcome)
            report(outcome)
            if not outcome.passed and not keep_going:
                break
    failed = sorted((each for each in outcomes if not each.passed), key=lambda each: each.seed)
    summary = summarize(outcomes, time.monotonic() - begun_s)
    if as_json:
        print_json(
            {"summary": summary, "violations": [_document(each, options) for each in failed]}
        )
    else:
        for each in failed:
            _print_violation(each, options)
        print_fields(list(summary.items()))
    if failed:
        raise typer.Exit(1)


def _run(
    scenario: str, seeds: range, options: RunOptions, jobs: int, trace: Path | None
) -> Iterator[Outcome]:
    try:
        if trace is None:
            yield from run_seeds(scenario, seeds, options, jobs, interrupts.starting_processes)
            return
        with trace.open("w") as sink:
            yield run_named(scenario, seeds[0], options, sink)
    except (UnknownScenario, UnknownFault, UnknownRule, UnknownFlush) as error:
        raise CliError(str(error)) from None


# --- the command line


def _seeds(seed: int | None, seeds: str) -> range:
    if seed is not None and seeds:
        raise UsageError("--seed and --seeds exclude each other")
    if seeds:
        first, last = parse_range("--seeds", seeds, 0)
        if last - first >= SEEDS_MAX:
            raise UsageError(f"--seeds {seeds}: at most {SEEDS_MAX} at a time")
        return range(first, last + 1)
    return range(seed or 0, (seed or 0) + 1)


def parse_range(option: str, text: str, least: int) -> Range:
    """`3` or `3..5`, both ends included."""
    first, dots, last = text.partition("..")
    try:
        found = int(first), int(last if dots else first)
    except ValueError:
        raise UsageError(f"{option} {text}: give a number, or two like 3..5") from None
    if not least <= found[0] <= found[1]:
        raise UsageError(f"{option} {text}: give at least {least}, and the smaller one first")
    return found


def replay_command(outcome: Outcome, options: RunOptions) -> str:
    """The command that shows the same run again, with its trace."""
    words = ["rhizome", "sim", "--scenario", outcome.scenario, "--seed", str(outcome.seed)]
    words += ["--brokers", _range_text(options.brokers)]
    words += ["--secondaries", _range_text(options.secondaries)]
    words += ["--minutes", f"{options.minutes:g}"]
    for kind in options.faults:
        words += ["--fault", kind]
    if options.pace != 1.0:
        words += ["--pace", f"{options.pace:g}"]
    for rule in options.broken:
        words += ["--break", rule]
    if options.sessions:
        words.append("--sessions")
    if options.streams:
        words.append("--streams")
    if options.keys:
        words.append("--keys")
    if options.leases:
        words.append("--leases")
    if options.flush != RunOptions().flush:
        words += ["--flush", options.flush]
    if options.distant_ms:
        words += ["--distant", str(options.distant_ms)]
    return shlex.join([*words, "--trace", f"seed-{outcome.seed}.trace"])


def _range_text(limits: Range) -> str:
    return str(limits[0]) if limits[0] == limits[1] else f"{limits[0]}..{limits[1]}"


# --- what came out


def summarize(outcomes: list[Outcome], wall_s: float) -> dict[str, Any]:
    """All seeds together."""
    faults: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        faults.update(outcome.faults)
        counts.update(outcome.counts)
    return {
        "seeds": len(outcomes),
        "violations": sum(not outcome.passed for outcome in outcomes),
        "events": sum(outcome.events for outcome in outcomes),
        "virtual_minutes": round(sum(outcome.virtual_us for outcome in outcomes) / 60e6, 1),
        "wall_seconds": round(wall_s, 1),
        "elections": counts["BecameRoot"],
        "commits": counts["Accepted"],
        "faults": dict(sorted(faults.items())),
    }


def _document(outcome: Outcome, options: RunOptions) -> dict[str, Any]:
    return asdict(outcome) | {"replay": replay_command(outcome, options)}


def _print_violation(outcome: Outcome, options: RunOptions) -> None:
    say(f"seed {outcome.seed}: the last events before the violation")
    for line in outcome.tail:
        say(f"  {line}")
    say(f"seed {outcome.seed}: {outcome.checker} at {shown_time(outcome.virtual_us)}")
    say(f"  {outcome.text}")
    say(f"replay: {replay_command(outcome, options)}")
    say()


@contextmanager
def _progress(total: int, quiet: bool) -> Iterator[Report]:
    """A progress bar on standard error, if that is a terminal."""
    if quiet or total == 1 or not sys.stderr.isatty():
        yield lambda outcome: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        failed = 0

        def report(outcome: Outcome) -> None:
            nonlocal failed
            failed += not outcome.passed
            bar.update(task, advance=1, description=f"{failed} violations" if failed else "")

        yield report
