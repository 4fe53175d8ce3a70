"""`rhizome top`: a live view of a cluster in the terminal."""

from __future__ import annotations

import shutil
import sys
from typing import Annotated, Final

import typer

from rhizome.cli.errors import UsageError
from rhizome.cli.http_api.api_client import Api, Row, path
from rhizome.cli.http_api.command_decorator import Remote
from rhizome.cli.output.live_screen import show_live
from rhizome.cli.output.printer import print_json, say
from rhizome.cli.output.top_screen import QUEUE_COLUMNS, SORTS, frame
from rhizome.cli.shared_options import with_options

app = typer.Typer()

QUEUES_MAX: Final = 200


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
        show_live(lambda width, height: frame(_read(api, sort), sort, width, height), interval)


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
