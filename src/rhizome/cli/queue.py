"""`rhizome queue`: look at queues, declare, purge and delete them."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from rhizome.cli.api import Api, Row, endpoint, path
from rhizome.cli.errors import CliError
from rhizome.cli.options import (
    HTTP_DEFAULT,
    AnyVhostOption,
    HttpOption,
    JsonOption,
    PasswordOption,
    UserOption,
    VhostOption,
)
from rhizome.cli.output import print_done, print_fields, print_json, print_table, say
from rhizome.cli.pairs import parse_pairs

app = typer.Typer(no_args_is_help=True, help="Look at queues, declare, purge and delete them.")

NameArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue.")]

MOVED_AT_ONCE_MAX: Final = 1000
COLUMNS: Final = ("name", "vhost", "state", "ready", "unacked", "total", "consumers", "features")
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
def list_queues(
    vhost: AnyVhostOption = "",
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """List queues with their message counts."""
    target = path("queues", vhost) if vhost else path("queues")
    queues = Api(endpoint(http, user, password)).rows(target)
    if as_json:
        print_json(queues)
        return
    queues.sort(key=lambda queue: (str(queue.get("vhost")), str(queue.get("name"))))
    print_table(COLUMNS, [_columns(queue) for queue in queues], "no queues")


@app.command("show")
def show_queue(
    name: NameArgument,
    vhost: VhostOption = "/",
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show everything about one queue."""
    queue = Api(endpoint(http, user, password)).row(path("queues", vhost, name))
    if as_json:
        print_json(queue)
        return
    rest = sorted(key for key in queue if key not in FIELDS_FIRST)
    shown = [key for key in FIELDS_FIRST if key in queue] + rest
    print_fields([(key, queue[key]) for key in shown])


@app.command("declare")
def declare_queue(
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
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Declare a queue."""
    document: Row = {
        "durable": durable,
        "auto_delete": auto_delete,
        "arguments": parse_pairs("--argument", argument or [], guess_types=True),
    }
    Api(endpoint(http, user, password)).put(path("queues", vhost, name), document)
    print_done(f"declared queue '{name}' in vhost '{vhost}'", as_json)


@app.command("damaged")
def list_damaged(
    name: Annotated[
        str, typer.Argument(metavar="[QUEUE]", help="Only this queue; all of all vhosts if absent.")
    ] = "",
    drop: Annotated[
        int, typer.Option("--drop", metavar="INDEX", help="Give this message up for good.")
    ] = -1,
    vhost: VhostOption = "/",
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """List messages that can't be read from disk and are set aside, or drop one.

    They are kept on disk, and alive in the copies of their group: if one of these becomes home, and
    has the message whole, it delivers it. What is dropped is gone everywhere.
    """
    api = Api(endpoint(http, user, password))
    if drop >= 0:
        if not name:
            raise CliError("--drop needs the name of the queue that the message is in")
        api.delete(path("rhizome", "queues", vhost, name, "damaged", str(drop)))
        print_done(f"dropped message {drop} of queue '{name}' in vhost '{vhost}'", as_json)
        return
    target = (
        path("rhizome", "queues", vhost, name, "damaged") if name else path("rhizome", "damaged")
    )
    rows = api.rows(target)
    if as_json:
        print_json(rows)
        return
    cells = [[row.get(column) for column in DAMAGED_COLUMNS] for row in rows]
    print_table(DAMAGED_COLUMNS, cells, "no message is damaged")


@app.command("purge")
def purge_queue(
    name: NameArgument,
    vhost: VhostOption = "/",
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Drop all messages of a queue that are ready for delivery."""
    Api(endpoint(http, user, password)).delete(path("queues", vhost, name, "contents"))
    print_done(f"purged queue '{name}' in vhost '{vhost}'", as_json)


@app.command("move")
def move_messages(
    name: NameArgument,
    to: Annotated[str, typer.Argument(metavar="TO", help="Queue that gets the messages.")],
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", min=1, help="So many at most.", show_default="all"),
    ] = None,
    vhost: VhostOption = "/",
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Move ready messages to the end of another queue, such as dead letters back to work.

    Each is removed once it is safe there. The queue must have no consumers.
    """
    api = Api(endpoint(http, user, password))
    target = path("rhizome", "queues", vhost, name, "move")
    if count is None:
        # What comes meanwhile stays: two queues that feed each other would never be done.
        count = int(api.row(path("queues", vhost, name)).get("messages_ready") or 0)
    moved = 0
    while moved < count:
        wanted = min(count - moved, MOVED_AT_ONCE_MAX)
        answer = api.post(target, {"to": to, "count": wanted})
        moved += int(answer["moved"])
        if answer["moved"] < wanted:
            break
    if as_json:
        print_json({"moved": moved})
    else:
        say(f"moved {moved} message{'' if moved == 1 else 's'} from '{name}' to '{to}'")


@app.command("delete")
def delete_queue(
    name: NameArgument,
    if_empty: Annotated[bool, typer.Option("--if-empty", help="Only if it is empty.")] = False,
    if_unused: Annotated[
        bool, typer.Option("--if-unused", help="Only if it has no consumers.")
    ] = False,
    vhost: VhostOption = "/",
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Delete a queue with its messages."""
    conditions = {"if-empty": if_empty, "if-unused": if_unused}
    query = {key: "true" for key, wanted in conditions.items() if wanted}
    Api(endpoint(http, user, password)).delete(path("queues", vhost, name), query)
    print_done(f"deleted queue '{name}' in vhost '{vhost}'", as_json)


@app.command("leases")
def list_leases(
    name: NameArgument,
    vhost: VhostOption = "/",
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """List the leases of a queue: what is set aside for readers such as Spark's."""
    leases = Api(endpoint(http, user, password)).rows(_leases(vhost, name))
    if as_json:
        print_json(leases)
        return
    rows = [[lease.get(column) for column in LEASE_COLUMNS] for lease in leases]
    print_table(LEASE_COLUMNS, rows, f"queue '{name}' has no leases")


@app.command("end-lease")
def end_lease(
    name: NameArgument,
    lease: Annotated[str, typer.Argument(metavar="LEASE", help="Name of the lease.")],
    vhost: VhostOption = "/",
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Give the messages of a lease back to the queue; its reader will fail."""
    Api(endpoint(http, user, password)).delete(_leases(vhost, name, lease))
    print_done(f"ended lease '{lease}' of queue '{name}' in vhost '{vhost}'", as_json)


def _leases(vhost: str, name: str, *lease: str) -> str:
    return path("rhizome", "queues", vhost, name, "leases", *lease)


def _columns(queue: Row) -> list[object]:
    return [
        queue.get("name"),
        queue.get("vhost"),
        queue.get("state"),
        queue.get("messages_ready"),
        queue.get("messages_unacknowledged"),
        queue.get("messages"),
        queue.get("consumers"),
        _features(queue),
    ]


def _features(queue: Row) -> str:
    """What makes the queue special, in a word or two each."""
    flags = [word for word in ("durable", "exclusive", "auto_delete") if queue.get(word) is True]
    arguments = queue.get("arguments")
    if isinstance(arguments, dict):
        flags += [f"{key}={value}" for key, value in sorted(arguments.items())]
    if queue.get("policy"):
        flags.append(f"policy={queue['policy']}")
    return " ".join(flags)
