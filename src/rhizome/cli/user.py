"""`rhizome user`: users and what they may do."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Final

import typer

from rhizome.cli import interrupts, topicpermissions
from rhizome.cli.api import Api, Row, endpoint, path
from rhizome.cli.limits import limits_text, put_limits
from rhizome.cli.options import (
    HTTP_DEFAULT,
    HttpOption,
    JsonOption,
    PasswordOption,
    UserOption,
    VhostOption,
)
from rhizome.cli.output import print_done, print_json, print_table

app = typer.Typer(no_args_is_help=True, help="Users and what they may do.")
app.add_typer(topicpermissions.app, name="topic-permissions")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")]

COLUMNS: Final = ("name", "tags", "type", "limits")
PERMISSION_COLUMNS: Final = ("user", "vhost", "configure", "write", "read")


class Kind(Enum):
    """The type of a user; brokers log in by the cluster key and need no user."""

    APPLICATION = "application"
    CONSOLE = "console"


@app.command("list")
def list_users(
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """List users with their limits."""
    users = Api(endpoint(http, user, password)).rows(path("users"))
    if as_json:
        print_json(users)
        return
    rows = [
        [
            each.get("name"),
            _tags(each.get("tags")),
            each.get("type"),
            limits_text(each.get("limits")),
        ]
        for each in users
    ]
    print_table(COLUMNS, sorted(rows, key=str), "no users")


@app.command("add")
def add_user(
    name: NameArgument,
    tags: Annotated[
        str | None,
        typer.Option(
            "--tags",
            help="Comma-separated: administrator, monitoring, policymaker, management.",
            show_default="those that it has",
        ),
    ] = None,
    kind: Annotated[
        Kind | None,
        typer.Option("--type", help="Who it is for.", show_default="as it is, else application"),
    ] = None,
    new_password: Annotated[
        str, typer.Option("--new-password", help="Asked for if it isn't given.")
    ] = "",
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Add a user, or give an existing one another password.

    Users of type console are people: they log in over HTTP, and applications can't use them.
    """
    api = Api(endpoint(http, user, password))
    if tags is None:
        tags = _tags_of(name, api.rows(path("users")))
    document: Row = {"password": new_password or _ask_password(name), "tags": tags}
    if kind is not None:
        document["type"] = kind.value
    api.put(path("users", name), document)
    print_done(
        f"user '{name}' is set; allow it something with: rhizome user permit {name}", as_json
    )


def _ask_password(name: str) -> str:
    with interrupts.raised():  # the prompt must give the terminal its echo back
        chosen: str = typer.prompt(
            f"Password of '{name}'", hide_input=True, confirmation_prompt=True
        )
    return chosen


@app.command("delete")
def delete_user(
    name: NameArgument,
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Delete a user and its permissions."""
    Api(endpoint(http, user, password)).delete(path("users", name))
    print_done(f"deleted user '{name}'", as_json)


@app.command("limit")
def limit_user(
    name: NameArgument,
    connections: Annotated[
        int | None, typer.Option("--connections", help="Connections at most; -1: any number.")
    ] = None,
    channels: Annotated[
        int | None, typer.Option("--channels", help="Channels at most; -1: any number.")
    ] = None,
    queues: Annotated[
        int | None,
        typer.Option("--queues", help="Queues that it declared at most; -1: any number."),
    ] = None,
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Limit the connections, channels and queues of a user."""
    wanted = {"max-connections": connections, "max-channels": channels, "max-queues": queues}
    said = put_limits(Api(endpoint(http, user, password)), "user-limits", name, wanted)
    print_done(f"limits of user '{name}' are set: {said}", as_json)


@app.command("permissions")
def list_permissions(
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """List who may do what, by virtual host."""
    permissions = Api(endpoint(http, user, password)).rows(path("permissions"))
    if as_json:
        print_json(permissions)
        return
    rows = [[each.get(column) for column in PERMISSION_COLUMNS] for each in permissions]
    print_table(PERMISSION_COLUMNS, sorted(rows, key=str), "no permissions")


@app.command("permit")
def permit_user(
    name: NameArgument,
    configure: Annotated[str, typer.Option(help="Pattern of names to declare and delete.")] = ".*",
    write: Annotated[str, typer.Option(help="Pattern of names to publish and bind to.")] = ".*",
    read: Annotated[str, typer.Option(help="Pattern of names to consume and bind from.")] = ".*",
    vhost: VhostOption = "/",
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Let a user work in a virtual host; the patterns are regular expressions."""
    document = {"configure": configure, "write": write, "read": read}
    Api(endpoint(http, user, password)).put(path("permissions", vhost, name), document)
    print_done(f"user '{name}' may work in vhost '{vhost}'", as_json)


@app.command("forbid")
def forbid_user(
    name: NameArgument,
    vhost: VhostOption = "/",
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Take a user's permissions in a virtual host away."""
    Api(endpoint(http, user, password)).delete(path("permissions", vhost, name))
    print_done(f"user '{name}' has no access to vhost '{vhost}' any more", as_json)


def _tags_of(name: str, users: list[Row]) -> str:
    return next((_tags(each.get("tags")) for each in users if each.get("name") == name), "")


def _tags(tags: object) -> str:
    """RabbitMQ gives a list since 3.9, a comma-separated string before."""
    return ",".join(map(str, tags)) if isinstance(tags, list) else str(tags or "")
