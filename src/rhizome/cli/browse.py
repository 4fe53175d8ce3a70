"""`rhizome browse`: look into a queue without changing it."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from rhizome.cli.api import Api, Row, endpoint, path
from rhizome.cli.errors import CliError
from rhizome.cli.options import (
    HTTP_DEFAULT,
    HttpOption,
    JsonOption,
    PasswordOption,
    UserOption,
    VhostOption,
)
from rhizome.cli.output import cell_text, print_json, print_table

app = typer.Typer()

COLUMNS: Final = ("index", "exchange", "key", "size", "redelivered", "count", "payload")
PAYLOAD_CHARS_MAX: Final = 60


@app.command()
def browse(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue.")],
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="At most so many.")] = 10,
    offset: Annotated[int, typer.Option("--offset", min=0, help="Skip so many first.")] = 0,
    vhost: VhostOption = "/",
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Look at the messages of a queue, from its head.

    Nothing changes: not the order, not the redelivered flags, and consumers don't notice.
    """
    api = Api(endpoint(http, user, password))
    target = path("rhizome", "queues", vhost, queue, "messages")
    messages = api.get(target, {"offset": offset, "count": count})
    if not isinstance(messages, list):
        raise CliError(f"queue '{queue}' can't be browsed here; is --http a Rhizome broker?")
    if as_json:
        print_json(messages)
        return
    print_table(COLUMNS, [_columns(message) for message in messages], "no messages")


def _columns(message: Row) -> list[object]:
    return [
        message.get("index"),
        message.get("exchange") or "(default)",
        message.get("routing_key"),
        message.get("size"),
        message.get("redelivered"),
        message.get("delivery_count"),
        _payload(message),
    ]


def _payload(message: Row) -> str:
    text = cell_text(message.get("payload", ""))
    if len(text) > PAYLOAD_CHARS_MAX:
        text = text[: PAYLOAD_CHARS_MAX - 3] + "..."
    return f"base64 {text}" if message.get("payload_encoding") == "base64" else text
