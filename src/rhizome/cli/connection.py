"""`rhizome connection`: who is connected, and how to end that."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from rhizome.cli.api import Api, Row, endpoint, path
from rhizome.cli.options import (
    HTTP_DEFAULT,
    HttpOption,
    JsonOption,
    PasswordOption,
    UserOption,
)
from rhizome.cli.output import print_done, print_json, print_table

app = typer.Typer(no_args_is_help=True, help="See who is connected, and close connections.")

COLUMNS: Final = ("name", "user", "vhost", "state", "channels", "client", "tls")


@app.command("list")
def list_connections(
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """List the connections of applications."""
    connections = Api(endpoint(http, user, password)).rows(path("connections"))
    if as_json:
        print_json(connections)
        return
    connections.sort(key=lambda connection: str(connection.get("name")))
    print_table(COLUMNS, [_columns(each) for each in connections], "no connections")


@app.command("close")
def close_connection(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `connection list` shows it.")],
    reason: Annotated[
        str, typer.Option("--reason", help="Told to the application.")
    ] = "closed by an operator",
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Close a connection; its application learns the reason."""
    api = Api(endpoint(http, user, password))
    api.delete(path("connections", name), headers={"X-Reason": reason})
    print_done(f"closed connection '{name}'", as_json)


def _columns(connection: Row) -> list[object]:
    properties = connection.get("client_properties")
    client: Row = properties if isinstance(properties, dict) else {}
    return [
        connection.get("name"),
        connection.get("user"),
        connection.get("vhost"),
        connection.get("state"),
        connection.get("channels"),
        client.get("connection_name") or client.get("product"),
        connection.get("ssl"),
    ]
