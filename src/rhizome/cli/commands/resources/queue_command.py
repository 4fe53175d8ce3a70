"""`rhizome queue`: look at queues, declare, purge and delete them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, TypeAlias
from urllib.parse import urlencode

import typer

from rhizome.cli.commands.messages import message_actions_command
from rhizome.cli.errors import UsageError
from rhizome.cli.http_api.api_client import Api, Row, path
from rhizome.cli.http_api.command_decorator import Remote
from rhizome.cli.output.printer import bytes_text, print_fields
from rhizome.cli.output.top_screen import SORTS, rate_text
from rhizome.cli.shared_options import AnyVhostOption, VhostOption, parse_pairs, with_options

app = typer.Typer(no_args_is_help=True, help="Look at queues, declare, purge and delete them.")
app.add_typer(message_actions_command.app)

NameArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue.")]

Query: TypeAlias = dict[str, str]


def _features(queue: Row) -> str:
    """What makes the queue special, in a word or two each."""
    flags = [word for word in ("durable", "exclusive", "auto_delete") if queue.get(word) is True]
    arguments = queue.get("arguments")
    if isinstance(arguments, dict):
        flags += [f"{key}={value}" for key, value in sorted(arguments.items())]
    if queue.get("policy"):
        flags.append(f"policy={queue['policy']}")
    return " ".join(flags)


def _rate(name: str) -> Callable[[Row], str]:
    """Cells of a column of rates."""

    def cell(queue: Row) -> str:
        details = (queue.get("message_stats") or {}).get(name) or {}
        return rate_text(float(details.get("rate") or 0.0))

    return cell


COLUMNS: Final = (
    "name",
    "vhost",
    ("home", "node"),
    "state",
    ("ready", "messages_ready"),
    ("unacked", "messages_unacknowledged"),
    ("total", "messages"),
    "consumers",
    ("in/s", _rate("publish_details")),
    ("out/s", _rate("deliver_get_details")),
    ("features", _features),
)
PAGE_ROWS: Final = 500
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


@app.command("list")
@with_options
def list_queues(
    remote: Remote,
    vhost: AnyVhostOption = "",
    matching: Annotated[
        str, typer.Option("--filter", metavar="REGEX", help="Only queues whose name it fits.")
    ] = "",
    sort: Annotated[
        str,
        typer.Option("--sort", metavar="|".join(SORTS), help="Numbers: the largest come first."),
    ] = "",
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="So many at most.", show_default="all")
    ] = None,
    columns: Annotated[
        str,
        typer.Option("--columns", metavar="A,B", help="These fields, by their names in --json."),
    ] = "",
) -> None:
    """List queues with their home, message counts and rates.

    rhizome queue list --sort messages --limit 20

    rhizome queue list --filter '^orders' --columns name,messages,consumers
    """
    if sort and sort not in SORTS:
        raise UsageError(f"--sort {sort}: give one of {', '.join(SORTS)}")
    target = path("queues", vhost) if vhost else path("queues")
    query = _list_query(matching, sort)
    queues = _pages(remote.api, target, query, limit) if query or limit else remote.api.rows(target)
    shown = [each.strip() for each in columns.split(",") if each.strip()] or COLUMNS
    remote.print_rows(queues, shown, "no queues", by=() if sort else ("vhost", "name"))


def _list_query(matching: str, sort: str) -> Query:
    query: Query = {}
    if matching:
        query |= {"name": matching, "use_regex": "true"}
    if sort:
        query |= {"sort": SORTS[sort], "sort_reverse": "false" if sort == "name" else "true"}
    return query


def _pages(api: Api, target: str, query: Query, limit: int | None) -> list[Row]:
    """Rows of as many pages as it takes: one answer never has to hold all queues."""
    rows: list[Row] = []
    size = min(limit or PAGE_ROWS, PAGE_ROWS)
    page, pages = 0, 1
    while page < pages and (limit is None or len(rows) < limit):
        page += 1
        found = api.row(f"{target}?{urlencode({'page': page, 'page_size': size, **query})}")
        rows += found.get("items") or ()
        pages = int(found.get("page_count") or 0)
    return rows[:limit]


@app.command("show")
@with_options
def show_queue(
    remote: Remote,
    name: NameArgument,
    vhost: VhostOption = "/",
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Every field, as the broker gives it.")
    ] = False,
) -> None:
    """Show one queue: where it is, what it holds, how fast it moves."""
    queue = remote.api.row(path("queues", vhost, name))
    fields = sorted(queue.items()) if verbose else _fields(queue)
    remote.show(queue, lambda _: print_fields(fields))


def _fields(queue: Row) -> list[tuple[str, object]]:
    """What people ask of a queue first."""
    consumers, size = queue.get("consumers"), queue.get("message_bytes_ready")
    told = [
        ("queue", queue.get("name")),
        ("vhost", queue.get("vhost")),
        ("type", queue.get("type")),
        ("state", queue.get("state")),
        ("home", queue.get("node")),
        ("ready", _counted_bytes(queue.get("messages_ready"), size)),
        ("unacked", queue.get("messages_unacknowledged")),
        ("consumers", consumers),
        ("keys", _keys(queue)),
        ("in", f"{_rate('publish_details')(queue)}/s"),
        ("out", f"{_rate('deliver_get_details')(queue)}/s"),
        ("acked", f"{_rate('ack_details')(queue)}/s"),
        ("oldest", queue.get("head_message_timestamp")),
        ("idle since", queue.get("idle_since")),
        ("features", _features(queue) or None),
        ("policy", queue.get("policy")),
        ("by policy", queue.get("effective_policy_definition") or None),
    ]
    return [(name, value) for name, value in told if value is not None]


def _keys(queue: Row) -> str | None:
    """How many keys of a keyed queue have messages, and how many of those a consumer holds."""
    live, held = queue.get("keys_live"), queue.get("keys_held")
    return f"{live:,} live, {held:,} held" if isinstance(live, int) else None


def _counted_bytes(messages: object, size: object) -> str | None:
    if not isinstance(messages, int):
        return None
    return f"{messages:,} ({bytes_text(size)})" if isinstance(size, int) else f"{messages:,}"


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
            raise UsageError("--drop needs the name of the queue that the message is in")
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
