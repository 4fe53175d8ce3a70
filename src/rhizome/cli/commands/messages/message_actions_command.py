"""`rhizome queue move|drop|requeue|redrive`: act on messages of a queue.

All of them, those that meet a condition, or single ones.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Final

import typer

from rhizome.cli.errors import UsageError
from rhizome.cli.http_api.api_client import Api, Row, path
from rhizome.cli.http_api.command_decorator import Remote
from rhizome.cli.output.printer import say
from rhizome.cli.shared_options import VhostOption, with_options

app = typer.Typer()

AT_ONCE_MAX: Final = 1000
IDS_MAX: Final = 200

NameArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue.")]
WhereOption = Annotated[
    str, typer.Option("--where", metavar="CONDITION", help="Only messages that meet it.")
]
IdOption = Annotated[
    list[str] | None,
    typer.Option("--id", metavar="ID", help="This message, as `rhizome browse --where` names it."),
]
CountOption = Annotated[
    int | None, typer.Option("--count", "-n", min=1, help="So many at most.", show_default="all")
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Say how many there are, and change nothing.")
]
PAST: Final = {"move": "moved", "drop": "dropped", "requeue": "requeued", "redrive": "redrove"}


@app.command("move")
@with_options
def move_messages(
    remote: Remote,
    name: NameArgument,
    to: Annotated[str, typer.Argument(metavar="TO", help="Queue that gets the messages.")],
    count: CountOption = None,
    where: WhereOption = "",
    message_id: IdOption = None,
    dry_run: DryRunOption = False,
    vhost: VhostOption = "/",
) -> None:
    """Move ready messages to the end of another queue, such as dead letters back to work.

    Each is removed once it is safe there. Without --where and --id the queue must have no
    consumers.
    """
    if where or message_id or dry_run:
        order = _order("move", where, message_id, dry_run)
        _act(remote, vhost, name, {**order, "to": to}, count)
        return
    api = remote.api
    target = path("rhizome", "queues", vhost, name, "move")
    if count is None:
        # Messages that arrive meanwhile stay: two queues that feed each other would never finish.
        count = int(api.row(path("queues", vhost, name)).get("messages_ready") or 0)
    moved = 0
    while moved < count:
        wanted = min(count - moved, AT_ONCE_MAX)
        answer = api.post(target, {"to": to, "count": wanted})
        moved += int(answer["moved"])
        if answer["moved"] < wanted:
            break
    text = f"moved {_messages(moved)} from '{name}' to '{to}'"
    remote.show({"moved": moved}, lambda _: say(text))


@app.command("drop")
@with_options
def drop_messages(
    remote: Remote,
    name: NameArgument,
    count: CountOption = None,
    where: WhereOption = "",
    message_id: IdOption = None,
    dry_run: DryRunOption = False,
    vhost: VhostOption = "/",
) -> None:
    """Drop messages that meet a condition, or single ones: gone for good, not dead-lettered.

    rhizome queue drop orders --where "headers.tenant = 'test'" --dry-run
    """
    if not where and not message_id:
        raise UsageError("give --where or --id; `rhizome queue purge` drops everything")
    _act(remote, vhost, name, _order("drop", where, message_id, dry_run), count)


@app.command("requeue")
@with_options
def requeue_messages(
    remote: Remote,
    name: NameArgument,
    count: CountOption = None,
    where: WhereOption = "",
    message_id: IdOption = None,
    dry_run: DryRunOption = False,
    vhost: VhostOption = "/",
) -> None:
    """Put messages to the end of their own queue, out of the way of those behind them."""
    if not where and not message_id:
        raise UsageError("give --where or --id")
    _act(remote, vhost, name, _order("requeue", where, message_id, dry_run), count)


@app.command("redrive")
@with_options
def redrive_messages(
    remote: Remote,
    name: NameArgument,
    count: CountOption = None,
    where: WhereOption = "",
    message_id: IdOption = None,
    dry_run: DryRunOption = False,
    vhost: VhostOption = "/",
) -> None:
    """Put dead letters back into the queues that they died in (x-death), all or by condition.

    They have the exchange and routing key again that they had there. What dies again meanwhile
    stays in QUEUE.

    rhizome queue redrive orders.dead --where "death.queue = 'orders'" --dry-run
    """
    _act(remote, vhost, name, _order("redrive", where, message_id, dry_run), count)


def _order(action: str, where: str, ids: list[str] | None, dry_run: bool) -> Row:
    if where and ids:
        raise UsageError("give --where or --id, not both")
    chosen: Row = {"ids": ids} if ids else {"where": where}
    return {"action": action, "dry_run": dry_run, **chosen}


def _act(remote: Remote, vhost: str, name: str, order: Row, count: int | None) -> None:
    """Ask until all is done; each answer does a part, and says where the next goes on."""
    total: dict[str, Any] = {"done": 0, "scanned": 0, "to": Counter(), "skipped": Counter()}
    target = path("rhizome", "queues", vhost, name, "messages")
    for part in _parts(order):
        _act_on_part(remote.api, target, part, count, total)
    document = {**total, "to": dict(total["to"]), "skipped": dict(total["skipped"])}
    word = f"would {order['action']}" if order["dry_run"] else PAST[order["action"]]

    def print_it(_: object) -> None:
        say(f"{word} {_messages(total['done'])} of '{name}'")
        for queue, number in sorted(total["to"].items()):
            say(f"  {number} to '{queue}'")
        for reason, number in sorted(total["skipped"].items()):
            say(f"  left {number}: {reason}")
        if order["action"] == "redrive" and total["skipped"]:
            say("`rhizome queue move` takes what is left to a queue that you name")

    remote.show(document, print_it)


def _parts(order: Row) -> list[Row]:
    ids = order.get("ids")
    if ids is None:
        return [order]
    return [{**order, "ids": ids[at : at + IDS_MAX]} for at in range(0, len(ids), IDS_MAX)]


def _act_on_part(api: Api, target: str, order: Row, count: int | None, total: Row) -> None:
    after = ""
    while count is None or total["done"] < count:
        wanted = AT_ONCE_MAX if count is None else min(count - total["done"], AT_ONCE_MAX)
        answer = api.post(target, {**order, "count": wanted, "after": after})
        for key in ("done", "scanned"):
            total[key] += answer[key]
        for key in ("to", "skipped"):
            total[key].update(answer[key])
        after = answer["next"] or ""
        if not after:
            break


def _messages(number: int) -> str:
    return f"{number} message{'' if number == 1 else 's'}"
