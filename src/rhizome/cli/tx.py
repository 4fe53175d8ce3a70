"""`rhizome tx`: transactions over several groups that aren't settled."""

from __future__ import annotations

from typing import Final

import typer

from rhizome.cli.api import Api, Row, endpoint, path
from rhizome.cli.options import HTTP_DEFAULT, HttpOption, JsonOption, PasswordOption, UserOption
from rhizome.cli.output import print_json, print_table

app = typer.Typer(no_args_is_help=True, help="Transactions that are not settled.")

COLUMNS: Final = ("transaction", "age", "state", "edge", "decider", "groups", "waits for")


@app.callback()
def _family() -> None:
    """Transactions that are not settled."""


@app.command("list")
def list_transactions(
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """List transactions over queues with several homes that aren't settled, the oldest first.

    One that is `in doubt` is prepared in a group that has yet to learn what was decided. Messages
    that it settles are set aside until then. Nothing has to be done but to bring back who is waited
    for.
    """
    rows = Api(endpoint(http, user, password)).rows(path("rhizome", "transactions"))
    if as_json:
        print_json(rows)
    else:
        print_table(COLUMNS, [_cells(each) for each in rows], "no transaction is under way")


def _cells(row: Row) -> list[object]:
    edge = row.get("edge") or "unknown"
    return [
        row.get("id"),
        f"{int(row.get('age_ms') or 0) / 1000:.1f} s",
        row.get("state"),
        f"{edge} (gone)" if row.get("edge_is_gone") else edge,
        f"group {row.get('decider')}",
        "; ".join(_party(each) for each in row.get("parties") or ()),
        ", ".join(row.get("waits_for") or ()) or "nobody",
    ]


def _party(party: Row) -> str:
    aside = f", {party['set_aside']} set aside" if party.get("set_aside") else ""
    return f"{party.get('group')} at {party.get('home') or '?'}: {party.get('state')}{aside}"
