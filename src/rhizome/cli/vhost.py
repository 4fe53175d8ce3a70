"""`rhizome vhost`: virtual hosts and their limits."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from rhizome.cli.api import Api, Row, endpoint, path
from rhizome.cli.errors import CliError
from rhizome.cli.limits import limits_text, put_limits
from rhizome.cli.options import HTTP_DEFAULT, HttpOption, JsonOption, PasswordOption, UserOption
from rhizome.cli.orders import YesOption, confirmed
from rhizome.cli.output import print_done, print_json, print_table

app = typer.Typer(no_args_is_help=True, help="Virtual hosts, and their limits.")

NameArgument = Annotated[str, typer.Argument(metavar="VHOST", help="Name of the virtual host.")]

COLUMNS: Final = ("name", "description", "ready", "unacked", "total", "limits")


@app.command("list")
def list_vhosts(
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """List virtual hosts with their message counts and limits."""
    api = Api(endpoint(http, user, password))
    vhosts = api.rows(path("vhosts"))
    limits = {each.get("vhost"): each.get("value") for each in api.rows(path("vhost-limits"))}
    for each in vhosts:
        each["limits"] = limits.get(each.get("name")) or {}
    if as_json:
        print_json(vhosts)
        return
    vhosts.sort(key=lambda vhost: str(vhost.get("name")))
    print_table(COLUMNS, [_columns(each) for each in vhosts], "no virtual hosts")


def _columns(vhost: Row) -> list[object]:
    return [
        vhost.get("name"),
        vhost.get("description"),
        vhost.get("messages_ready", 0),
        vhost.get("messages_unacknowledged", 0),
        vhost.get("messages", 0),
        limits_text(vhost["limits"]),
    ]


@app.command("add")
def add_vhost(
    name: NameArgument,
    description: Annotated[str, typer.Option("--description", help="Shown in lists.")] = "",
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Add a virtual host."""
    document: Row = {"description": description} if description else {}
    Api(endpoint(http, user, password)).put(path("vhosts", name), document)
    print_done(
        f"vhost '{name}' is there; let users in with: rhizome user permit USER --vhost {name}",
        as_json,
    )


@app.command("delete")
def delete_vhost(
    name: NameArgument,
    yes: YesOption = False,
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Delete a virtual host with everything in it."""
    api = Api(endpoint(http, user, password))
    queues = api.rows(path("queues", name))
    messages = sum(int(each.get("messages") or 0) for each in queues)
    lost = f"vhost '{name}' has {len(queues)} queues with {messages} messages"
    if not yes and as_json:
        raise CliError(f"{lost}; give --yes to delete them all")
    if not as_json:
        print(f"{lost}; all of it is deleted")
    if not yes and not confirmed():
        raise CliError("nothing was done")
    api.delete(path("vhosts", name))
    print_done(f"deleted vhost '{name}'", as_json)


@app.command("limit")
def limit_vhost(
    name: NameArgument,
    connections: Annotated[
        int | None, typer.Option("--connections", help="Connections at most; -1: any number.")
    ] = None,
    queues: Annotated[
        int | None, typer.Option("--queues", help="Queues at most; -1: any number.")
    ] = None,
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Limit the connections and queues of a virtual host."""
    wanted = {"max-connections": connections, "max-queues": queues}
    said = put_limits(Api(endpoint(http, user, password)), "vhost-limits", name, wanted)
    print_done(f"limits of vhost '{name}' are set: {said}", as_json)
