"""`rhizome browse`: look into a queue without changing it."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from rhizome.cli.errors import CliError, UsageError
from rhizome.cli.http_api.api_client import Row, path
from rhizome.cli.http_api.command_decorator import Remote
from rhizome.cli.output.printer import cell_text
from rhizome.cli.shared_options import VhostOption, with_options

app = typer.Typer()


def _payload(message: Row) -> str:
    text = cell_text(message.get("payload", ""))
    if len(text) > PAYLOAD_CHARS_MAX:
        text = text[: PAYLOAD_CHARS_MAX - 3] + "..."
    return f"base64 {text}" if message.get("payload_encoding") == "base64" else text


COLUMNS: Final = (
    "index",
    ("exchange", lambda message: message.get("exchange") or "(default)"),
    ("key", "routing_key"),
    "size",
    "redelivered",
    ("count", "delivery_count"),
    ("payload", _payload),
)
PAYLOAD_CHARS_MAX: Final = 60
SEARCHED_AT_ONCE_MAX: Final = 1000


@app.command()
@with_options
def browse(
    remote: Remote,
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue.")],
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="At most so many.")] = 10,
    offset: Annotated[int, typer.Option("--offset", min=0, help="Skip so many first.")] = 0,
    where: Annotated[
        str, typer.Option("--where", metavar="CONDITION", help="Only messages that meet it.")
    ] = "",
    vhost: VhostOption = "/",
) -> None:
    """Look at the messages of a queue, from its head.

    Nothing changes: not the order, not the redelivered flags, and consumers don't notice.

    rhizome browse orders.dead --where "death.reason = 'rejected' and headers.tenant = 'a'"

    rhizome browse orders --where "body like '%timeout%' and priority >= 5" -n 100
    """
    if where:
        if offset:
            raise UsageError("--where begins at the head of the queue; leave --offset out")
        found = _search(remote, queue, where, count, vhost)
        remote.print_rows(found, ("id", *COLUMNS[1:]), "no message meets the condition")
        return
    target = path("rhizome", "queues", vhost, queue, "messages")
    messages = remote.api.get(target, {"offset": offset, "count": count})
    if not isinstance(messages, list):
        raise CliError(f"queue '{queue}' can't be browsed here; is --http a Rhizome broker?")
    remote.print_rows(messages, COLUMNS, "no messages")


def _search(remote: Remote, queue: str, where: str, count: int, vhost: str) -> list[Row]:
    """Messages that meet a condition, from as many answers as it takes: each looks at a part."""
    target = path("rhizome", "queues", vhost, queue, "search")
    found: list[Row] = []
    after = ""
    while len(found) < count:
        wanted = min(count - len(found), SEARCHED_AT_ONCE_MAX)
        answer = remote.api.get(target, {"where": where, "count": wanted, "after": after})
        if not isinstance(answer, dict):
            raise CliError(f"queue '{queue}' can't be searched here; is --http a Rhizome broker?")
        found += answer["messages"]
        after = answer["next"] or ""
        if not after:
            break
    return found
