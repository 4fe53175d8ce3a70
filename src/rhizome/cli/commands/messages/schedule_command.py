"""`rhizome schedule`: delayed messages that wait, and taking them back."""

from __future__ import annotations

import time
from typing import Annotated, Final
from urllib.parse import urlencode

import typer

from rhizome.cli.http_api.api_client import Row, path
from rhizome.cli.http_api.command_decorator import Remote
from rhizome.cli.shared_options import VhostOption, with_options

app = typer.Typer(no_args_is_help=True, help="See and take back delayed messages.")

ExchangeArgument = Annotated[
    str, typer.Argument(metavar="EXCHANGE", help="Exchange of type x-delayed-message.")
]
IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The message's header x-schedule-id.")
]
ByOption = Annotated[
    str, typer.Option("--by", metavar="USER", help="Who scheduled it.", show_default="you")
]

PAGE: Final = 1000


def _in(row: Row) -> str:
    left_s = max(0, int(row["due_ms"]) - int(time.time() * 1000)) // 1000
    return f"{left_s // 3600}:{left_s // 60 % 60:02}:{left_s % 60:02}"


COLUMNS: Final = (
    ("id", "id"),
    ("exchange", "exchange"),
    ("key", "routing_key"),
    ("user", "user"),
    ("due in", _in),
    ("bytes", "payload_bytes"),
)


@app.callback()
def _family() -> None:
    """See and take back delayed messages."""


@app.command("list")
@with_options
def list_schedules(
    remote: Remote,
    exchange: Annotated[str, typer.Option("--exchange", help="Only those of this exchange.")] = "",
    by: Annotated[str, typer.Option("--by", metavar="USER", help="Only those of this user.")] = "",
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="So many at most.")] = 100,
    vhost: VhostOption = "/",
) -> None:
    """List delayed messages in the order in which they came.

    Without the tag administrator, policymaker or monitoring you see your own.
    """
    found: list[Row] = []
    after: int | None = 0
    while after is not None and len(found) < count:
        query = {"count": min(PAGE, count - len(found)), "after": after}
        asked = urlencode({**query, "exchange": exchange, "user": by})
        answer = remote.api.row(f"{path('rhizome', 'schedules', vhost)}?{asked}")
        found.extend(answer["schedules"])
        after = answer["next"]
    remote.print_rows(found, COLUMNS, "nothing waits", by=())


@app.command("cancel")
@with_options
def cancel_schedule(
    remote: Remote,
    exchange: ExchangeArgument,
    schedule_id: IdArgument,
    by: ByOption = "",
    vhost: VhostOption = "/",
) -> None:
    """Take a delayed message back: it goes nowhere."""
    target = path("rhizome", "schedules", vhost, exchange, schedule_id)
    remote.api.delete(target, {"user": by} if by else None)
    remote.done(f"'{schedule_id}' of exchange '{exchange}' is taken back")


@app.command("move")
@with_options
def move_schedule(
    remote: Remote,
    exchange: ExchangeArgument,
    schedule_id: IdArgument,
    delay: Annotated[
        int, typer.Argument(metavar="SECONDS", min=0, help="From now on; 0: at once.")
    ],
    by: ByOption = "",
    vhost: VhostOption = "/",
) -> None:
    """Give a delayed message another time."""
    target = path("rhizome", "schedules", vhost, exchange, schedule_id)
    document = {"delay_ms": delay * 1000, **({"user": by} if by else {})}
    remote.api.put(target, document)
    remote.done(f"'{schedule_id}' of exchange '{exchange}' comes in {delay} s")
