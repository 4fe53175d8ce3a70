"""`rhizome exchange`: look at exchanges."""

from __future__ import annotations

from typing import Final

import typer

from rhizome.cli.api import Api, Row, endpoint, path
from rhizome.cli.options import (
    HTTP_DEFAULT,
    AnyVhostOption,
    HttpOption,
    JsonOption,
    PasswordOption,
    UserOption,
)
from rhizome.cli.output import print_json, print_table

app = typer.Typer(no_args_is_help=True, help="Look at exchanges.")

COLUMNS: Final = ("name", "vhost", "type", "durable", "auto_delete", "internal", "arguments")


@app.callback()
def _family() -> None:
    """Look at exchanges."""


@app.command("list")
def list_exchanges(
    vhost: AnyVhostOption = "",
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """List exchanges."""
    target = path("exchanges", vhost) if vhost else path("exchanges")
    exchanges = Api(endpoint(http, user, password)).rows(target)
    if as_json:
        print_json(exchanges)
        return
    exchanges.sort(key=lambda exchange: (str(exchange.get("vhost")), str(exchange.get("name"))))
    print_table(COLUMNS, [_columns(exchange) for exchange in exchanges], "no exchanges")


def _columns(exchange: Row) -> list[object]:
    name = exchange.get("name") or "(default)"
    return [name, *(exchange.get(column) for column in COLUMNS[1:])]
