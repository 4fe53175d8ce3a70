"""`rhizome queue`: look at queues, declare, purge and delete them."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from rhizome.cli.errors import CliError
from rhizome.cli.http_api.api_client import Row, path
from rhizome.cli.http_api.command_decorator import Remote
from rhizome.cli.output.printer import print_fields, say
from rhizome.cli.shared_options import AnyVhostOption, VhostOption, parse_pairs, with_options

app = typer.Typer(no_args_is_help=True, help="Look at queues, declare, purge and delete them.")

NameArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue.")]

MOVED_AT_ONCE_MAX: Final = 1000


def _features(queue: Row) -> str:
    """What makes the queue special, in a word or two each."""
    flags = [word for word in ("durable", "exclusive", "auto_delete") if queue.get(word) is True]
    arguments = queue.get("arguments")
    if isinstance(arguments, dict):
        flags += [f"{key}={value}" for key, value in sorted(arguments.items())]
    if queue.get("policy"):
        flags.append(f"policy={queue['policy']}")
    return " ".join(flags)


COLUMNS: Final = (
    "name",
    "vhost",
    "state",
    ("ready", "messages_ready"),
    ("unacked", "messages_unacknowledged"),
    ("total", "messages"),
    "consumers",
    ("features", _features),
)
LEASE_COLUMNS: Final = (
    "name",
    "state",
    "messages",
    "bytes",
    "first",
    "next",
    "read_up_to",
    "expires_in_ms",
)
DAMAGED_COLUMNS: Final = ("vhost", "queue", "index", "node", "segment", "offset", "reason")
FIELDS_FIRST: Final = (
    "name",
    "vhost",
    "state",
    "messages",
    "messages_ready",
    "messages_unacknowledged",
    "consumers",
    "durable",
    "exclusive",
    "auto_delete",
    "arguments",
    "policy",
)


@app.command("list")
@with_options
def list_queues(remote: Remote, vhost: AnyVhostOption = "") -> None:
    """List queues with their message counts."""
    target = path("queues", vhost) if vhost else path("queues")
    queues = remote.api.rows(target)
    remote.print_rows(queues, COLUMNS, "no queues", by=("vhost", "name"))


@app.command("show")
@with_options
def show_queue(remote: Remote, name: NameArgument, vhost: VhostOption = "/") -> None:
    """Show everything about one queue."""
    queue = remote.api.row(path("queues", vhost, name))
    rest = sorted(key for key in queue if key not in FIELDS_FIRST)
    shown = [key for key in FIELDS_FIRST if key in queue] + rest
    remote.show(queue, lambda queue: print_fields([(key, queue[key]) for key in shown]))


@app.command("declare")
@with_options
def declare_queue(
    remote: Remote,
    name: NameArgument,
    durable: Annotated[
        bool, typer.Option("--durable/--transient", help="Whether it survives a restart.")
    ] = True,
    auto_delete: Annotated[
        bool, typer.Option("--auto-delete", help="Delete it with its last consumer.")
    ] = False,
    argument: Annotated[
        list[str] | None,
        typer.Option("--argument", "-a", metavar="KEY=VALUE", help="Like x-message-ttl=60000."),
    ] = None,
    vhost: VhostOption = "/",
) -> None:
    """Declare a queue."""
    document: Row = {
        "durable": durable,
        "auto_delete": auto_delete,
        "arguments": parse_pairs("--argument", argument or [], guess_types=True),
    }
    remote.api.put(path("queues", vhost, name), document)
    remote.done(f"declared queue '{name}' in vhost '{vhost}'")


@app.command("damaged")
@with_options
def list_damaged(
    remote: Remote,
    name: Annotated[
        str, typer.Argument(metavar="[QUEUE]", help="Only this queue; all of all vhosts if absent.")
    ] = "",
    drop: Annotated[
        int, typer.Option("--drop", metavar="INDEX", help="Give this message up for good.")
    ] = -1,
    vhost: VhostOption = "/",
) -> None:
    """List messages that can't be read from disk and are set aside, or drop one.

    They are kept on disk, and alive in the copies of their group: if one of these becomes home, and
    has the message whole, it delivers it. What is dropped is gone everywhere.
    """
    api = remote.api
    if drop >= 0:
        if not name:
            raise CliError("--drop needs the name of the queue that the message is in")
        api.delete(path("rhizome", "queues", vhost, name, "damaged", str(drop)))
        remote.done(f"dropped message {drop} of queue '{name}' in vhost '{vhost}'")
        return
    target = (
        path("rhizome", "queues", vhost, name, "damaged") if name else path("rhizome", "damaged")
    )
    rows = api.rows(target)
    remote.print_rows(rows, DAMAGED_COLUMNS, "no message is damaged")


@app.command("purge")
@with_options
def purge_queue(remote: Remote, name: NameArgument, vhost: VhostOption = "/") -> None:
    """Drop all messages of a queue that are ready for delivery."""
    remote.api.delete(path("queues", vhost, name, "contents"))
    remote.done(f"purged queue '{name}' in vhost '{vhost}'")


@app.command("move")
@with_options
def move_messages(
    remote: Remote,
    name: NameArgument,
    to: Annotated[str, typer.Argument(metavar="TO", help="Queue that gets the messages.")],
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", min=1, help="So many at most.", show_default="all"),
    ] = None,
    vhost: VhostOption = "/",
) -> None:
    """Move ready messages to the end of another queue, such as dead letters back to work.

    Each is removed once it is safe there. The queue must have no consumers.
    """
    api = remote.api
    target = path("rhizome", "queues", vhost, name, "move")
    if count is None:
        # Messages that arrive meanwhile stay: two queues that feed each other would never finish.
        count = int(api.row(path("queues", vhost, name)).get("messages_ready") or 0)
    moved = 0
    while moved < count:
        wanted = min(count - moved, MOVED_AT_ONCE_MAX)
        answer = api.post(target, {"to": to, "count": wanted})
        moved += int(answer["moved"])
        if answer["moved"] < wanted:
            break
    text = f"moved {moved} message{'' if moved == 1 else 's'} from '{name}' to '{to}'"
    remote.show({"moved": moved}, lambda _: say(text))


@app.command("delete")
@with_options
def delete_queue(
    remote: Remote,
    name: NameArgument,
    if_empty: Annotated[bool, typer.Option("--if-empty", help="Only if it is empty.")] = False,
    if_unused: Annotated[
        bool, typer.Option("--if-unused", help="Only if it has no consumers.")
    ] = False,
    vhost: VhostOption = "/",
) -> None:
    """Delete a queue with its messages."""
    conditions = {"if-empty": if_empty, "if-unused": if_unused}
    query = {key: "true" for key, wanted in conditions.items() if wanted}
    remote.api.delete(path("queues", vhost, name), query)
    remote.done(f"deleted queue '{name}' in vhost '{vhost}'")


@app.command("leases")
@with_options
def list_leases(remote: Remote, name: NameArgument, vhost: VhostOption = "/") -> None:
    """List the leases of a queue: what is set aside for readers such as Spark's."""
    leases = remote.api.rows(_leases(vhost, name))
    remote.print_rows(leases, LEASE_COLUMNS, f"queue '{name}' has no leases")


@app.command("end-lease")
@with_options
def end_lease(
    remote: Remote,
    name: NameArgument,
    lease: Annotated[str, typer.Argument(metavar="LEASE", help="Name of the lease.")],
    vhost: VhostOption = "/",
) -> None:
    """Give the messages of a lease back to the queue; its reader will fail."""
    remote.api.delete(_leases(vhost, name, lease))
    remote.done(f"ended lease '{lease}' of queue '{name}' in vhost '{vhost}'")


def _leases(vhost: str, name: str, *lease: str) -> str:
    return path("rhizome", "queues", vhost, name, "leases", *lease)
