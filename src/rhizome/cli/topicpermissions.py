"""`rhizome user topic-permissions`: restrict users to some routing keys of topic exchanges."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from rhizome.cli.api import Api, endpoint, path
from rhizome.cli.options import (
    HTTP_DEFAULT,
    HttpOption,
    JsonOption,
    PasswordOption,
    UserOption,
    VhostOption,
)
from rhizome.cli.output import print_done, print_json, print_table

app = typer.Typer(
    no_args_is_help=True, help="Restrict users to some routing keys of topic exchanges."
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")]

COLUMNS: Final = ("user", "vhost", "exchange", "write", "read")


@app.command("list")
def list_topic_permissions(
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """List who is restricted to which routing keys."""
    permissions = Api(endpoint(http, user, password)).rows(path("topic-permissions"))
    if as_json:
        print_json(permissions)
        return
    rows = [[each.get(column) for column in COLUMNS] for each in permissions]
    print_table(COLUMNS, sorted(rows, key=str), "no topic permissions")


@app.command("set")
def set_topic_permission(
    name: NameArgument,
    exchange: Annotated[str, typer.Argument(metavar="EXCHANGE", help="Name of the exchange.")],
    write: Annotated[str, typer.Option(help="Pattern of routing keys to publish with.")] = ".*",
    read: Annotated[str, typer.Option(help="Pattern of routing keys to bind with.")] = ".*",
    vhost: VhostOption = "/",
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Restrict a user to some routing keys of a topic exchange, by regular expressions.

    They are asked in addition to the permissions: a user without any may use all keys of the
    exchanges that are open to it.
    """
    document = {"exchange": exchange, "write": write, "read": read}
    Api(endpoint(http, user, password)).put(path("topic-permissions", vhost, name), document)
    print_done(
        f"user '{name}' is restricted to these keys of exchange '{exchange}' in vhost '{vhost}'",
        as_json,
    )


@app.command("clear")
def clear_topic_permissions(
    name: NameArgument,
    exchange: Annotated[
        str, typer.Option("--exchange", help="Only that of this exchange.", show_default="all")
    ] = "",
    vhost: VhostOption = "/",
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Lift restrictions: the user may use all keys again."""
    which = (exchange,) if exchange else ()
    target = path("topic-permissions", vhost, name, *which)
    Api(endpoint(http, user, password)).delete(target)
    where = f"exchange '{exchange}'" if exchange else "all exchanges"
    print_done(f"user '{name}' may use all keys of {where} in vhost '{vhost}' again", as_json)
