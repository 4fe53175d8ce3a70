"""`rhizome tx`: transactions over several groups that aren't settled."""

from __future__ import annotations

from typing import Final

import typer

from rhizome.cli.http_api.api_client import Row, path
from rhizome.cli.http_api.command_decorator import Remote
from rhizome.cli.shared_options import with_options

app = typer.Typer(no_args_is_help=True, help="Transactions that are not settled.")


def _edge(row: Row) -> str:
    return f"{row.get('edge') or 'unknown'}{' (gone)' if row.get('edge_is_gone') else ''}"


COLUMNS: Final = (
    ("transaction", "id"),
    ("age", lambda row: f"{int(row.get('age_ms') or 0) / 1000:.1f} s"),
    "state",
    ("edge", _edge),
    ("decider", lambda row: f"group {row.get('decider')}"),
    ("groups", lambda row: "; ".join(_party(each) for each in row.get("parties") or ())),
    ("waits for", lambda row: ", ".join(row.get("waits_for") or ()) or "nobody"),
)


@app.callback()
def _family() -> None:
    """Transactions that are not settled."""


@app.command("list")
@with_options
def list_transactions(remote: Remote) -> None:
    """List transactions over queues with several homes that aren't settled, the oldest first.

    One that is `in doubt` is prepared in a group that has yet to learn what was decided. Messages
    that it settles are set aside until then. Nothing has to be done but to bring back who is waited
    for.
    """
    rows = remote.api.rows(path("rhizome", "transactions"))
    remote.print_rows(rows, COLUMNS, "no transaction is under way")


def _party(party: Row) -> str:
    aside = f", {party['set_aside']} set aside" if party.get("set_aside") else ""
    return f"{party.get('group')} at {party.get('home') or '?'}: {party.get('state')}{aside}"
