"""`rhizome user`: users and what they may do."""

from __future__ import annotations

import sys
from enum import Enum
from typing import Annotated, Final

import typer

from rhizome.cli import interrupts
from rhizome.cli.commands.resources import topic_permissions_command
from rhizome.cli.commands.resources.vhost_and_user_limits import (
    ConnectionsOption,
    limits_text,
    put_limits,
)
from rhizome.cli.errors import CliError
from rhizome.cli.http_api.api_client import Row, path
from rhizome.cli.http_api.command_decorator import Remote
from rhizome.cli.shared_options import UserArgument, VhostOption, with_options

app = typer.Typer(no_args_is_help=True, help="Users and what they may do.")
app.add_typer(topic_permissions_command.app, name="topic-permissions")

COLUMNS: Final = (
    "name",
    ("tags", lambda user: _tags(user.get("tags"))),
    "type",
    ("limits", lambda user: limits_text(user.get("limits"))),
)
PERMISSION_COLUMNS: Final = ("user", "vhost", "configure", "write", "read")


class Kind(Enum):
    """The type of a user; brokers log in by the cluster key and need no user."""

    APPLICATION = "application"
    CONSOLE = "console"


@app.command("list")
@with_options
def list_users(remote: Remote) -> None:
    """List users with their limits."""
    remote.print_rows(remote.api.rows(path("users")), COLUMNS, "no users", by=("name",))


@app.command("add")
@with_options
def add_user(
    remote: Remote,
    name: UserArgument,
    tags: Annotated[
        str | None,
        typer.Option(
            "--tags",
            help="Comma-separated: administrator, monitoring, policymaker, management, auditor.",
            show_default="those that it has",
        ),
    ] = None,
    kind: Annotated[
        Kind | None,
        typer.Option("--type", help="Who it is for.", show_default="as it is, else application"),
    ] = None,
    new_password: Annotated[
        str,
        typer.Option(
            "--new-password", help="Else it is asked for; a script writes it into standard input."
        ),
    ] = "",
) -> None:
    """Add a user, or give an existing one another password.

    Users of type console are people: they log in over HTTP, and applications can't use them.
    """
    api = remote.api
    if tags is None:
        tags = _tags_of(name, api.rows(path("users")))
    document: Row = {"password": new_password or _ask_password(name), "tags": tags}
    if kind is not None:
        document["type"] = kind.value
    api.put(path("users", name), document)
    remote.done(f"user '{name}' is set; allow it something with: rhizome user permit {name}")


def _ask_password(name: str) -> str:
    """At a terminal it is asked for, twice; a script writes it into the standard input."""
    if not sys.stdin.isatty():
        given = sys.stdin.readline().rstrip("\n")
        if not given:
            raise CliError(
                f"no password for '{name}': give --new-password, or write it into standard input"
            )
        return given
    with interrupts.raised():  # the prompt must give the terminal its echo back
        chosen: str = typer.prompt(
            f"Password of '{name}'", hide_input=True, confirmation_prompt=True
        )
    return chosen


@app.command("delete")
@with_options
def delete_user(remote: Remote, name: UserArgument) -> None:
    """Delete a user and its permissions."""
    remote.api.delete(path("users", name))
    remote.done(f"deleted user '{name}'")


@app.command("limit")
@with_options
def limit_user(
    remote: Remote,
    name: UserArgument,
    connections: ConnectionsOption = None,
    channels: Annotated[
        int | None, typer.Option("--channels", help="Channels at most; -1: any number.")
    ] = None,
    queues: Annotated[
        int | None,
        typer.Option("--queues", help="Queues that it declared at most; -1: any number."),
    ] = None,
) -> None:
    """Limit the connections, channels and queues of a user."""
    wanted = {"max-connections": connections, "max-channels": channels, "max-queues": queues}
    said = put_limits(remote.api, "user-limits", name, wanted)
    remote.done(f"limits of user '{name}' are set: {said}")


@app.command("permissions")
@with_options
def list_permissions(remote: Remote) -> None:
    """List who may do what, by virtual host."""
    permissions = remote.api.rows(path("permissions"))
    remote.print_rows(permissions, PERMISSION_COLUMNS, "no permissions", by=PERMISSION_COLUMNS)


@app.command("permit")
@with_options
def permit_user(
    remote: Remote,
    name: UserArgument,
    configure: Annotated[str, typer.Option(help="Pattern of names to declare and delete.")] = ".*",
    write: Annotated[str, typer.Option(help="Pattern of names to publish and bind to.")] = ".*",
    read: Annotated[str, typer.Option(help="Pattern of names to consume and bind from.")] = ".*",
    vhost: VhostOption = "/",
) -> None:
    """Let a user work in a virtual host; the patterns are regular expressions."""
    document = {"configure": configure, "write": write, "read": read}
    remote.api.put(path("permissions", vhost, name), document)
    remote.done(f"user '{name}' may work in vhost '{vhost}'")


@app.command("forbid")
@with_options
def forbid_user(remote: Remote, name: UserArgument, vhost: VhostOption = "/") -> None:
    """Take a user's permissions in a virtual host away."""
    remote.api.delete(path("permissions", vhost, name))
    remote.done(f"user '{name}' has no access to vhost '{vhost}' any more")


def _tags_of(name: str, users: list[Row]) -> str:
    return next((_tags(each.get("tags")) for each in users if each.get("name") == name), "")


def _tags(tags: object) -> str:
    """RabbitMQ gives a list since 3.9, a comma-separated string before."""
    return ",".join(map(str, tags)) if isinstance(tags, list) else str(tags or "")
