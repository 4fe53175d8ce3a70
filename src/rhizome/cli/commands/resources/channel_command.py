"""`rhizome channel`: list the channels of applications."""

from __future__ import annotations

from typing import Final

import typer

from rhizome.cli.http_api.api_client import path
from rhizome.cli.http_api.command_decorator import Remote
from rhizome.cli.shared_options import AnyVhostOption, with_options

app = typer.Typer(no_args_is_help=True, help="See the channels of applications.")

COLUMNS: Final = (
    *("name", "user", "vhost", "state"),
    ("consumers", "consumer_count"),
    ("unacked", "messages_unacknowledged"),
    ("unconfirmed", "messages_unconfirmed"),
    ("prefetch", "prefetch_count"),
    *("confirm", "transactional"),
)


@app.callback()
def _family() -> None:
    """See the channels of applications."""


@app.command("list")
@with_options
def list_channels(remote: Remote, vhost: AnyVhostOption = "") -> None:
    """List channels: who waits for acks, confirms or prefetch.

    A channel whose `unacked` equals its `prefetch` is waiting for its application to acknowledge.
    """
    target = path("vhosts", vhost, "channels") if vhost else path("channels")
    remote.print_rows(remote.api.rows(target), COLUMNS, "no channels", by=("name",))
