"""`rhizome group`: groups of queues, their homes and their copies."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from rhizome.cli.http_api.api_client import Row, path
from rhizome.cli.http_api.change_confirmation import Order
from rhizome.cli.http_api.command_decorator import Remote
from rhizome.cli.output.cluster_tables import print_groups
from rhizome.cli.output.printer import (
    bytes_of,
    print_fields,
    print_json,
    print_rows,
    print_table,
    say,
)
from rhizome.cli.shared_options import with_options

app = typer.Typer(no_args_is_help=True, help="See groups and their copies; say where homes are.")

GroupArgument = Annotated[int, typer.Argument(metavar="GROUP", min=1, help="Number of the group.")]
TargetOption = Annotated[
    str, typer.Option("--broker", "-b", metavar="NAME", help="Who becomes the home.")
]
HELD_COLUMNS: Final = ("broker", "role", "epoch", "record", "usable", "in sync", "behind")
SENT_COLUMNS: Final = (
    *(("copy", "broker"), "stage", ("behind", "lag")),
    ("records", bytes_of("records_bytes")),
    ("lists", bytes_of("listing_bytes")),
    ("messages it lacked", bytes_of("backfill_bytes")),
)
"""What the home has sent to each copy since it became home."""


@app.command("list")
@with_options
def list_groups(remote: Remote) -> None:
    """List the groups: home, epoch, copies, and why one is unavailable."""
    rows = remote.api.rows(path("rhizome", "groups"))
    remote.show(rows, print_groups)


@app.command("inspect")
@with_options
def inspect_group(remote: Remote, group: GroupArgument) -> None:
    """Show one group, and what every broker that answers has of it."""
    row = remote.api.row(path("rhizome", "groups", str(group)))
    if remote.as_json:
        print_json(row)
        return
    print_fields(group_fields(row))
    say()
    print_table(HELD_COLUMNS, held_rows(row), "nobody who answers has anything of it")
    standbys = [each for held in row.get("held") or () for each in held.get("standbys") or ()]
    if standbys:
        say()
        print_rows(standbys, SENT_COLUMNS, "")
    for name in row.get("silent") or ():
        say(f"{name} did not answer")


@app.command("move")
@with_options
def move_home(order: Order, group: GroupArgument, broker: TargetOption) -> None:
    """Move a group's home to another broker. Nothing is lost; its queues pause for a moment.

    The group is pinned there until `rhizome group unpin`, unless that is where it belongs anyway.
    """
    order.preview_and_apply(path("rhizome", "groups", str(group), "move"), {"broker": broker})


@app.command("unpin")
@with_options
def unpin(order: Order, group: GroupArgument) -> None:
    """Let a group that was moved by hand go where the cluster wants it, as cluster.rebalance
    says."""
    order.preview_and_apply(path("rhizome", "groups", str(group), "unpin"), {})


@app.command("force-home")
@with_options
def force_home(order: Order, group: GroupArgument, broker: TargetOption) -> None:
    """Make a broker the home of a group that nobody can take over safely. This may lose messages.

    For when the home and every copy that is in sync are lost for good. What may be lost is shown
    first.
    """
    target = path("rhizome", "groups", str(group), "force-home")
    order.preview_and_apply(target, {"broker": broker})


def group_fields(row: Row) -> list[tuple[str, object]]:
    fields: list[tuple[str, object]] = [
        ("group", f"{row.get('id')}{' (not replicated)' if row.get('local') else ''}"),
        ("home", row.get("home")),
    ]
    if row.get("unavailable"):
        fields.append(("UNAVAILABLE", row["unavailable"]))
    fields += [
        ("epoch", row.get("epoch")),
        ("came from", row.get("origin") or None),
        ("copies", f"{row.get('copies')} wanted, {row.get('min_copies')} needed"),
        ("failover", " ".join(row.get("failover") or ()) or None),
        ("queues", row.get("queues")),
        ("messages", row.get("messages")),
    ]
    if row.get("moving_to"):
        fields.append(("moving to", row["moving_to"]))
    if row.get("pinned"):
        fields.append(("pinned to", row["pinned"]))
    return fields


def held_rows(row: Row) -> list[list[object]]:
    members = {each.get("broker"): each for each in row.get("in_sync") or ()}
    found = []
    held = sorted(
        row.get("held") or (), key=lambda each: (each["epoch"], each["index"]), reverse=True
    )
    for each in held:
        member = members.pop(each.get("broker"), {})
        found.append(
            [
                each.get("broker"),
                each.get("role"),
                each.get("epoch"),
                each.get("index"),
                "yes" if each.get("usable") else "no",
                member.get("copy"),
                member.get("lag"),
            ]
        )
    for name, member in members.items():
        found.append([name, None, None, None, None, member.get("copy"), member.get("lag")])
    return found
