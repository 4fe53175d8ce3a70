"""`rhizome group`: groups of queues, who has copies of them, and where their homes are."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from rhizome.cli.api import Api, Row, endpoint, path
from rhizome.cli.clustertext import print_groups
from rhizome.cli.options import HTTP_DEFAULT, HttpOption, JsonOption, PasswordOption, UserOption
from rhizome.cli.orders import DryRunOption, YesOption, carry_out
from rhizome.cli.output import bytes_text, print_fields, print_json, print_table, say

app = typer.Typer(no_args_is_help=True, help="See groups and their copies; say where homes are.")

GroupArgument = Annotated[int, typer.Argument(metavar="GROUP", min=1, help="Number of the group.")]
TargetOption = Annotated[
    str, typer.Option("--broker", "-b", metavar="NAME", help="Who becomes the home.")
]
HELD_COLUMNS: Final = ("broker", "role", "epoch", "record", "usable", "in sync", "behind")
SENT_COLUMNS: Final = ("copy", "stage", "behind", "records", "lists", "messages it lacked")
SENT_BYTES: Final = ("records_bytes", "listing_bytes", "backfill_bytes")


@app.command("list")
def list_groups(
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """List the groups: home, epoch, copies, and why one is unavailable."""
    rows = Api(endpoint(http, user, password)).rows(path("rhizome", "groups"))
    if as_json:
        print_json(rows)
    else:
        print_groups(rows)


@app.command("inspect")
def inspect_group(
    group: GroupArgument,
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show one group, and what every broker that answers has of it."""
    row = Api(endpoint(http, user, password)).row(path("rhizome", "groups", str(group)))
    if as_json:
        print_json(row)
        return
    print_fields(group_fields(row))
    say()
    print_table(HELD_COLUMNS, held_rows(row), "nobody who answers has anything of it")
    standbys = [each for held in row.get("held") or () for each in held.get("standbys") or ()]
    if standbys:
        say()
        print_table(SENT_COLUMNS, sent_rows(standbys), "")
    for name in row.get("silent") or ():
        say(f"{name} did not answer")


@app.command("move")
def move_home(
    group: GroupArgument,
    broker: TargetOption,
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Move a group's home to another broker. Nothing is lost; its queues pause for a moment."""
    api = Api(endpoint(http, user, password))
    carry_out(
        api,
        path("rhizome", "groups", str(group), "move"),
        {"broker": broker},
        yes,
        dry_run,
        as_json,
    )


@app.command("force-home")
def force_home(
    group: GroupArgument,
    broker: TargetOption,
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a broker the home of a group that nobody can take over safely. This may lose messages.

    For when the home and every copy that is in sync are lost for good. What may be lost is shown
    first.
    """
    api = Api(endpoint(http, user, password))
    target = path("rhizome", "groups", str(group), "force-home")
    carry_out(api, target, {"broker": broker}, yes, dry_run, as_json)


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
    return fields


def sent_rows(standbys: list[Row]) -> list[list[object]]:
    """What the home has sent to each copy since it became home."""
    return [
        [
            each.get("broker"),
            each.get("stage"),
            each.get("lag"),
            *(bytes_text(each.get(what)) for what in SENT_BYTES),
        ]
        for each in standbys
    ]


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
