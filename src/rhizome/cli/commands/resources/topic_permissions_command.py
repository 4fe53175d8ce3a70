"""`rhizome user topic-permissions`: restrict users to some routing keys of topic exchanges."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from rhizome.cli.http_api.api_client import path
from rhizome.cli.http_api.command_decorator import Remote
from rhizome.cli.shared_options import UserArgument, VhostOption, with_options

app = typer.Typer(
    no_args_is_help=True, help="Restrict users to some routing keys of topic exchanges."
)

COLUMNS: Final = ("user", "vhost", "exchange", "write", "read")


@app.command("list")
@with_options
def list_topic_permissions(remote: Remote) -> None:
    """List who is restricted to which routing keys."""
    permissions = remote.api.rows(path("topic-permissions"))
    remote.print_rows(permissions, COLUMNS, "no topic permissions", by=COLUMNS)


@app.command("set")
@with_options
def set_topic_permission(
    remote: Remote,
    name: UserArgument,
    exchange: Annotated[str, typer.Argument(metavar="EXCHANGE", help="Name of the exchange.")],
    write: Annotated[str, typer.Option(help="Pattern of routing keys to publish with.")] = ".*",
    read: Annotated[str, typer.Option(help="Pattern of routing keys to bind with.")] = ".*",
    vhost: VhostOption = "/",
) -> None:
    """Restrict a user to some routing keys of a topic exchange, by regular expressions.

    They are asked in addition to the permissions: a user without any may use all keys of the
    exchanges that are open to it.
    """
    document = {"exchange": exchange, "write": write, "read": read}
    remote.api.put(path("topic-permissions", vhost, name), document)
    remote.done(
        f"user '{name}' is restricted to these keys of exchange '{exchange}' in vhost '{vhost}'"
    )


@app.command("clear")
@with_options
def clear_topic_permissions(
    remote: Remote,
    name: UserArgument,
    exchange: Annotated[
        str, typer.Option("--exchange", help="Only that of this exchange.", show_default="all")
    ] = "",
    vhost: VhostOption = "/",
) -> None:
    """Lift restrictions: the user may use all keys again."""
    which = (exchange,) if exchange else ()
    target = path("topic-permissions", vhost, name, *which)
    remote.api.delete(target)
    where = f"exchange '{exchange}'" if exchange else "all exchanges"
    remote.done(f"user '{name}' may use all keys of {where} in vhost '{vhost}' again")
