"""`rhizome adopt`: move from a running RabbitMQ to Rhizome while applications switch one by one."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Annotated, Any, Final

import typer

from rhizome.adopt.adoption import (
    BRIDGES_MAX_DEFAULT,
    DIRECTION,
    LOOK_S_DEFAULT,
    Adoption,
    Pace,
)
from rhizome.adopt.adoption_state import AdoptionState, StateDirectory
from rhizome.adopt.definitions_rehearsal import Rehearsal, rehearse
from rhizome.adopt.move_verification import Evidence, remainders
from rhizome.adopt.queue_crossing import Ends
from rhizome.adopt.queue_direction import Course, Direction
from rhizome.adopt.queue_listing import Listing, QueueCounts, QueueKey
from rhizome.adopt.queue_probe import QueueProbe
from rhizome.bridge import Bridge, BridgeEvent, BridgeSettings, bridge_events, until_signalled
from rhizome.bridge.bridge_events import Report
from rhizome.bridge.settings import RETRY_S_MAX_DEFAULT
from rhizome.cli import coroutine_runner
from rhizome.cli.commands.messages.adoption_sites import ListingReader, Sites
from rhizome.cli.errors import CliError
from rhizome.cli.output import adoption_tables
from rhizome.cli.output.live_screen import show_live
from rhizome.cli.output.printer import OK, PROBLEM, print_json, print_json_line, say
from rhizome.cli.shared_options import JsonOption, with_options
from rhizome.printable_text import escaped

app = typer.Typer(
    no_args_is_help=True,
    help="Move from a running RabbitMQ to Rhizome while applications switch one by one.",
)

STATE_DEFAULT: Final = Path("adoption")
PREFETCH_DEFAULT: Final = 200
WATCH_S: Final = 1.0
QUIET: Final = frozenset(
    {
        bridge_events.CONNECTED,
        bridge_events.RUNNING,
        bridge_events.DRAINING,
        bridge_events.STOPPED,
        bridge_events.STATUS,
    }
)
"""Events of single bridges that are for programs only."""

StateOption = Annotated[
    Path, typer.Option("--state", metavar="DIRECTORY", help="Where it is kept how far this is.")
]
BackOption = Annotated[
    bool, typer.Option("--back", help="Return: RabbitMQ is where everything goes in the end.")
]


@app.command("plan")
@with_options
def plan(sites: Sites) -> None:
    """Say what of RabbitMQ's definitions comes over, and what is refused or ignored.

    Changes nothing. Ends with 1 if Rhizome refuses something.
    """
    rehearsal, listing = _rehearsed(sites)
    _show_plan(sites, rehearsal, listing)
    raise typer.Exit(1 if rehearsal.refused else 0)


@app.command("run")
@with_options
def run(
    sites: Sites,
    state_directory: StateOption = STATE_DEFAULT,
    back: BackOption = False,
    move: Annotated[
        list[str] | None,
        typer.Option(
            "--move",
            metavar="PATTERN",
            help="Move these queues though nobody consumes them, like 'dead.*'; again for more.",
        ),
    ] = None,
    skip_refused: Annotated[
        bool, typer.Option("--skip-refused", help="Go on without definitions that are refused.")
    ] = False,
    definitions: Annotated[
        bool, typer.Option("--definitions/--no-definitions", help="Import them at the first run.")
    ] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")] = False,
    prefetch: Annotated[
        int, typer.Option("--prefetch", min=1, max=65_535, help="Messages under way per queue.")
    ] = PREFETCH_DEFAULT,
    bridges_max: Annotated[
        int, typer.Option("--bridges", min=1, help="Queues that are bridged at the same time.")
    ] = BRIDGES_MAX_DEFAULT,
    look_s: Annotated[
        float, typer.Option("--look", min=0.1, help="Look at the consumers every so many seconds.")
    ] = LOOK_S_DEFAULT,
    retry_s_max: Annotated[
        float, typer.Option("--retry-max", min=0.1, help="Longest pause between tries, seconds.")
    ] = RETRY_S_MAX_DEFAULT,
    status_s: Annotated[
        float, typer.Option("--status", min=0, help="Print counts every so many seconds; 0: not.")
    ] = 10,
) -> None:
    """Import the definitions once, and then bring messages to where their consumers are.

    Each queue goes one way at a time: over to Rhizome while its consumers are there, back to
    RabbitMQ while they are still there, nowhere while there are some at both. So applications
    switch one by one, in any order, and may switch back. SIGTERM and SIGINT wait for what is under
    way; it can be started again at any time and goes on.
    """
    if dry_run:
        _show_plan(sites, *_rehearsed(sites))
        return
    goal = Direction.BACK if back else Direction.FORWARD
    kept, labels = StateDirectory(state_directory), (sites.source.label, sites.target.label)
    with kept.locked():
        state = kept.read_for(*labels)
        state.goal = goal.value
        if definitions and not state.are_definitions_in:
            _import(sites, skip_refused)
            state.are_definitions_in = True
        kept.write(state)
        ends = Ends(sites.source.uri, sites.target.uri, prefetch, retry_s_max)
        course, pace = Course(goal, tuple(move or ())), Pace(look_s, bridges_max)
        reader = ListingReader(sites)
        adoption = Adoption(reader, ends, course, pace, state)
        work = _Work(adoption, reader, kept, sites.as_json, status_s)
        code = coroutine_runner.run(until_signalled(work.run))
    raise typer.Exit(code)


@app.command("status")
def status(
    state_directory: StateOption = STATE_DEFAULT,
    watch: Annotated[
        bool, typer.Option("--watch", help="Draw it every second; q or Ctrl-C ends it.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the queues with their counts at both sides, as the run has seen them last."""
    kept = StateDirectory(state_directory)
    if as_json:
        print_json(_state_document(_state_in(kept), kept.is_locked()))
    elif watch and sys.stdout.isatty():
        show_live(lambda width, height: [line[:width] for line in _status_lines(kept)], WATCH_S)
    else:
        for line in _status_lines(kept):
            say(line)


def _state_in(kept: StateDirectory) -> AdoptionState:
    state = kept.read()
    if state is None:
        raise CliError(f"no adoption in {kept.directory}; give --state, or begin one: adopt run")
    return state


def _status_lines(kept: StateDirectory) -> list[str]:
    state = _state_in(kept)
    how = "running" if kept.is_locked() else "not running; rhizome adopt run goes on"
    lines = [f"from {state.source} to {state.target}, {how}", adoption_tables.summary(state), ""]
    return [escaped(line) for line in [*lines, *adoption_tables.queue_lines(state.rows)]]


@app.command("verify")
@with_options
def verify(
    sites: Sites, state_directory: StateOption = STATE_DEFAULT, back: BackOption = False
) -> None:
    """Say what is left at RabbitMQ: messages, consumers, connections. Ends with 1 if something is.

    With --back, what is left at Rhizome.
    """
    goal = Direction.BACK if back else Direction.FORWARD
    old = sites.target if back else sites.source
    listing = coroutine_runner.run(ListingReader(sites).read())
    queues = listing.target if back else listing.source
    ready = coroutine_runner.run(_ready(old.uri, queues))
    state = StateDirectory(state_directory).read()
    found = remainders(Evidence(listing, ready, old.connections(), state), goal)
    is_done = not any(each.is_open for each in found)
    if sites.as_json:
        document = {} if state is None else {"totals": _totals(state)}
        print_json({"done": is_done, "left": [asdict(each) for each in found], **document})
    else:
        for line in adoption_tables.remainder_lines(found):
            say(line)
        where = "Rhizome" if back else "RabbitMQ"
        text = f"nothing is left at {where}" if is_done else f"{where} is still in use"
        say(text, level=OK if is_done else PROBLEM)
        if state is not None:
            say(f"at the last look: {adoption_tables.summary(state)}")
    raise typer.Exit(0 if is_done else 1)


async def _ready(uri: str, queues: Mapping[QueueKey, QueueCounts]) -> dict[QueueKey, int]:
    probe = QueueProbe(uri)
    found = await probe.look(key for key, counts in queues.items() if counts.is_shared)
    await probe.close()
    return {key: each.ready for key, each in found.items()}


# ---- definitions --------------------------------------------------------------------------------


def _rehearsed(sites: Sites) -> tuple[Rehearsal, Listing]:
    source, target = sites.source.definitions(), sites.target.definitions()
    login, brokers = sites.target.user, sites.target.brokers()
    rehearsal = coroutine_runner.run(rehearse(source, target, login, brokers))
    return rehearsal, coroutine_runner.run(ListingReader(sites).read())


def _show_plan(sites: Sites, rehearsal: Rehearsal, listing: Listing) -> None:
    if sites.as_json:
        print_json(adoption_tables.plan_document(rehearsal, listing))
        return
    for line in adoption_tables.plan_lines(rehearsal, listing):
        say(line)


def _import(sites: Sites, skip_refused: bool) -> None:
    """Have the target take the definitions, all but what it refuses."""
    rehearsal, _ = _rehearsed(sites)
    if rehearsal.refused and not skip_refused:
        first = rehearsal.refused[0]
        raise CliError(
            f"Rhizome refuses {len(rehearsal.refused)} definitions, like {first.kind}"
            f" '{first.name}': {first.why}; `rhizome adopt plan` lists them, --skip-refused goes on"
            " without them"
        )
    sites.target.import_definitions(rehearsal.definitions)
    counts = ", ".join(f"{count} {kind}" for kind, count in rehearsal.counts().items() if count)
    if not sites.as_json:
        say(f"imported {counts}; refused: {len(rehearsal.refused) or 'nothing'}", flush=True)


# ---- running ------------------------------------------------------------------------------------


class _Work:
    """An adoption that is shown while it runs."""

    def __init__(
        self,
        adoption: Adoption,
        reader: ListingReader,
        kept: StateDirectory,
        as_json: bool,
        status_s: float,
    ) -> None:
        self._adoption = adoption
        self._reader = reader
        self._kept = kept
        self._as_json = as_json
        self._status_s = status_s
        self._chance = Random()

    async def run(self, stop: asyncio.Event) -> int:
        """Returns the exit code."""
        telling = asyncio.create_task(self._tell_now_and_then())
        try:
            await self._adoption.run(stop, self._report, self._bridge, self._save)
        finally:
            telling.cancel()
            with suppress(asyncio.CancelledError):
                await telling
            await self._reader.close()
        self._tell()
        return 0

    def _bridge(self, settings: BridgeSettings, report: Report) -> Bridge:
        return Bridge(settings, report, self._chance)

    def _save(self, state: AdoptionState) -> None:
        state.looked_ms = _now_ms()
        self._kept.write(state)

    def _report(self, event: BridgeEvent) -> None:
        if self._as_json:
            say(event.json_line(_now_ms()), flush=True)
        elif not event.bridge or event.name == DIRECTION or event.name not in QUIET:
            say(event.line(), flush=True)

    async def _tell_now_and_then(self) -> None:
        while self._status_s:
            await asyncio.sleep(self._status_s)
            self._tell()

    def _tell(self) -> None:
        state = self._adoption.state
        if self._as_json:
            document = _state_document(state, is_running=True)
            print_json_line({"time_ms": _now_ms(), "event": bridge_events.STATUS, **document})
            return
        for line in adoption_tables.queue_lines(state.rows, only_busy=True):
            say(line)
        say(adoption_tables.summary(state), flush=True)


def _now_ms() -> int:
    return int(time.time() * 1000)


def _state_document(state: AdoptionState, is_running: bool) -> dict[str, Any]:
    return {
        "from": state.source,
        "to": state.target,
        "goal": state.goal,
        "running": is_running,
        "runs": state.runs,
        "ends_unclean": state.ends_unclean,
        "looked_ms": state.looked_ms,
        "totals": _totals(state),
        "queues": state.rows,
    }


def _totals(state: AdoptionState) -> dict[str, int]:
    rows = [asdict(each) for each in state.moved.values()]
    return {
        name: sum(row[name] for row in rows)
        for name in ("forward", "back", "taken", "dropped", "in_doubt", "sent_again")
    }
