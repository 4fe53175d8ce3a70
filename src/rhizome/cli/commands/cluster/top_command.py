"""`rhizome top`: a live view of a cluster in the terminal."""

from __future__ import annotations

import select
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import wrap
from typing import Annotated, Final

import typer

from rhizome.cli import interrupts
from rhizome.cli.errors import CliError, UsageError
from rhizome.cli.http_api.api_client import Api, Row, path
from rhizome.cli.http_api.command_decorator import Remote
from rhizome.cli.output.printer import print_json, say
from rhizome.cli.output.top_screen import QUEUE_COLUMNS, SORTS, frame
from rhizome.cli.shared_options import with_options
from rhizome.printable_text import escaped

app = typer.Typer()

QUEUES_MAX: Final = 200
ALTERNATE_SCREEN: Final = "\x1b[?1049h\x1b[?25l"
NORMAL_SCREEN: Final = "\x1b[?25h\x1b[?1049l"
HOME: Final = "\x1b[H"
CLEAR_LINE: Final = "\x1b[K"
CLEAR_REST: Final = "\x1b[J"


@app.command()
@with_options
def top(
    remote: Remote,
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0.2, max=3600, help="Seconds between frames.")
    ] = 2.0,
    sort: Annotated[
        str, typer.Option("--sort", help=f"Order of the queues: {', '.join(SORTS)}.")
    ] = "messages",
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
) -> None:
    """Show brokers, groups, queues and rates, again and again. q or Ctrl-C ends it."""
    if sort not in SORTS:
        raise UsageError(f"--sort {sort}: choose one of {', '.join(SORTS)}")
    api = remote.api
    if remote.as_json:
        print_json(_read(api, sort))
    elif once or not sys.stdout.isatty():
        size = shutil.get_terminal_size((120, 1000 if once else 50))
        for line in frame(_read(api, sort), sort, size.columns, 1000):
            say(line)
    else:
        _run(api, sort, interval)


def _read(api: Api, sort: str) -> Row:
    """Read what a frame shows."""
    live = api.row(path("rhizome", "live"))
    query: dict[str, str | int] = {
        "columns": QUEUE_COLUMNS,
        "sort": SORTS[sort],
        "sort_reverse": "false" if sort == "name" else "true",
        "page": 1,
        "page_size": QUEUES_MAX,
    }
    return {**live, "queues": api.get(path("queues"), query)}


def _run(api: Api, sort: str, interval_s: float) -> None:
    """Draw frames until the user quits. A broker that fails is reported, and asked again."""
    with interrupts.noted() as interruption, _screen():
        while not interruption.strikes:
            due = time.monotonic() + interval_s
            size = shutil.get_terminal_size()
            try:
                lines = frame(_read(api, sort), sort, size.columns, size.lines)
            except CliError as error:
                said = escaped(f"no answer: {error}")
                lines = [*wrap(said, size.columns), "", "asked again; q ends"]
            text = "".join(f"{line}{CLEAR_LINE}\r\n" for line in lines[: size.lines - 1])
            sys.stdout.write(HOME + text + CLEAR_REST)
            sys.stdout.flush()
            if _is_enough(due):
                return


def _is_enough(due: float) -> bool:
    """Wait until ``due`` for a key; whether it was q."""
    try:
        ready, _, _ = select.select([sys.stdin], [], [], max(due - time.monotonic(), 0.0))
        return bool(ready) and sys.stdin.read(1) in ("q", "Q", "\x03", "")
    except InterruptedError:
        return False


@contextmanager
def _screen() -> Iterator[None]:
    """The alternate screen of the terminal, without echo and line editing; restored at the end."""
    import termios
    import tty

    is_terminal = sys.stdin.isatty()
    before = termios.tcgetattr(sys.stdin) if is_terminal else None
    try:
        if is_terminal:
            tty.setcbreak(sys.stdin)
        sys.stdout.write(ALTERNATE_SCREEN)
        yield
    finally:
        sys.stdout.write(NORMAL_SCREEN)
        sys.stdout.flush()
        if before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
