"""`rhizome consumer`: list who consumes which queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import typer

from rhizome.cli.http_api.api_client import Row, path
from rhizome.cli.http_api.command_decorator import Remote
from rhizome.cli.shared_options import AnyVhostOption, with_options

app = typer.Typer(no_args_is_help=True, help="See who consumes which queue.")


def _of(part: str, name: str) -> Callable[[Row], object]:
    def cell(consumer: Row) -> object:
        found = consumer.get(part)
        return found.get(name) if isinstance(found, dict) else None

    return cell


COLUMNS: Final = (
    ("queue", _of("queue", "name")),
    ("vhost", _of("queue", "vhost")),
    ("tag", "consumer_tag"),
    ("prefetch", "prefetch_count"),
    ("acks", "ack_required"),
    *("active", "exclusive"),
    ("channel", _of("channel_details", "name")),
)


@app.callback()
def _family() -> None:
    """See who consumes which queue."""


@app.command("list")
@with_options
def list_consumers(remote: Remote, vhost: AnyVhostOption = "") -> None:
    """List consumers with their queue, prefetch and channel."""
    target = path("consumers", vhost) if vhost else path("consumers")
    found = sorted(remote.api.rows(target), key=lambda row: [str(cell(row)) for cell in BY])
    remote.print_rows(found, COLUMNS, "no consumers")


BY: Final = (_of("queue", "vhost"), _of("queue", "name"), lambda row: row.get("consumer_tag"))
