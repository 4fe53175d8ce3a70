"""`rhizome connection`: list and close connections of applications."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from rhizome.cli.http_api.api_client import Row, path
from rhizome.cli.http_api.command_decorator import Remote
from rhizome.cli.shared_options import with_options

app = typer.Typer(no_args_is_help=True, help="See who is connected, and close connections.")


def _client(connection: Row) -> object:
    properties = connection.get("client_properties")
    client: Row = properties if isinstance(properties, dict) else {}
    return client.get("connection_name") or client.get("product")


COLUMNS: Final = (
    *("name", "user", "vhost", "state", "channels"),
    ("client", _client),
    ("tls", "ssl"),
)


@app.command("list")
@with_options
def list_connections(remote: Remote) -> None:
    """List the connections of applications."""
    connections = remote.api.rows(path("connections"))
    remote.print_rows(connections, COLUMNS, "no connections", by=("name",))


@app.command("close")
@with_options
def close_connection(
    remote: Remote,
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `connection list` shows it.")],
    reason: Annotated[
        str, typer.Option("--reason", help="Told to the application.")
    ] = "closed by an operator",
) -> None:
    """Close a connection; its application learns the reason."""
    api = remote.api
    api.delete(path("connections", name), headers={"X-Reason": reason})
    remote.done(f"closed connection '{name}'")
