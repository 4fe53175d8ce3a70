"""`rhizome vhost`: virtual hosts and their limits."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from rhizome.cli.commands.resources.vhost_and_user_limits import (
    ConnectionsOption,
    limits_text,
    put_limits,
)
from rhizome.cli.errors import CliError
from rhizome.cli.http_api.api_client import Row, path
from rhizome.cli.http_api.change_confirmation import YesOption, confirmed
from rhizome.cli.http_api.command_decorator import Remote
from rhizome.cli.output.printer import bytes_text, say
from rhizome.cli.shared_options import with_options

app = typer.Typer(no_args_is_help=True, help="Virtual hosts, and their limits.")

NameArgument = Annotated[str, typer.Argument(metavar="VHOST", help="Name of the virtual host.")]


def _state_text(vhost: Row) -> str:
    """How much of the cluster state a vhost uses, and may use; older brokers don't tell."""
    used, most = vhost.get("state_bytes"), vhost.get("state_bytes_max")
    if not isinstance(used, int) or not isinstance(most, int):
        return ""
    return f"{bytes_text(used)} of {bytes_text(most)}"


COLUMNS: Final = (
    "name",
    "description",
    ("ready", lambda vhost: vhost.get("messages_ready", 0)),
    ("unacked", lambda vhost: vhost.get("messages_unacknowledged", 0)),
    ("total", lambda vhost: vhost.get("messages", 0)),
    ("state", _state_text),
    ("limits", lambda vhost: limits_text(vhost["limits"])),
)


@app.command("list")
@with_options
def list_vhosts(remote: Remote) -> None:
    """List virtual hosts with their message counts and limits."""
    api = remote.api
    vhosts = api.rows(path("vhosts"))
    limits = {each.get("vhost"): each.get("value") for each in api.rows(path("vhost-limits"))}
    for each in vhosts:
        each["limits"] = limits.get(each.get("name")) or {}
    remote.print_rows(vhosts, COLUMNS, "no virtual hosts", by=("name",))


@app.command("add")
@with_options
def add_vhost(
    remote: Remote,
    name: NameArgument,
    description: Annotated[str, typer.Option("--description", help="Shown in lists.")] = "",
    queue_type: Annotated[
        str,
        typer.Option(
            "--default-queue-type",
            help="Of queues declared without a type: classic, quorum, stream.",
        ),
    ] = "",
) -> None:
    """Add a virtual host, or change what is said of one."""
    document: Row = {"description": description} if description else {}
    if queue_type:
        document["default_queue_type"] = queue_type
    remote.api.put(path("vhosts", name), document)
    remote.done(
        f"vhost '{name}' is there; let users in with: rhizome user permit USER --vhost {name}"
    )


@app.command("delete")
@with_options
def delete_vhost(remote: Remote, name: NameArgument, yes: YesOption = False) -> None:
    """Delete a virtual host with everything in it."""
    api = remote.api
    queues = api.rows(path("queues", name))
    messages = sum(int(each.get("messages") or 0) for each in queues)
    lost = f"vhost '{name}' has {len(queues)} queues with {messages} messages"
    if not yes and remote.as_json:
        raise CliError(f"{lost}; give --yes to delete them all")
    if not remote.as_json:
        say(f"{lost}; all of it is deleted")
    if not yes and not confirmed():
        raise CliError("nothing was done")
    api.delete(path("vhosts", name))
    remote.done(f"deleted vhost '{name}'")


@app.command("trace")
@with_options
def trace_vhost(
    remote: Remote,
    name: NameArgument,
    off: Annotated[bool, typer.Option("--off", help="Trace it no more.")] = False,
) -> None:
    """Copy what clients publish and get in a virtual host to exchange amq.rabbitmq.trace.

    All brokers that are there do it until they are told --off, or are started again.
    """
    remote.api.row(path("vhosts", name))  # else the PUT would make it
    remote.api.put(path("vhosts", name), {"tracing": not off})
    remote.done(f"vhost '{name}' is {'no longer ' if off else ''}traced")


@app.command("limit")
@with_options
def limit_vhost(
    remote: Remote,
    name: NameArgument,
    connections: ConnectionsOption = None,
    queues: Annotated[
        int | None, typer.Option("--queues", help="Queues at most; -1: any number.")
    ] = None,
) -> None:
    """Limit the connections and queues of a virtual host."""
    wanted = {"max-connections": connections, "max-queues": queues}
    said = put_limits(remote.api, "vhost-limits", name, wanted)
    remote.done(f"limits of vhost '{name}' are set: {said}")
