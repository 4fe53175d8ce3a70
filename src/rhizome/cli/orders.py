"""Changes that a person orders: shown first, and made only as they were shown."""

from __future__ import annotations

from typing import Annotated

import typer

from rhizome.cli.api import Api, Row
from rhizome.cli.errors import CliError

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")
]
BrokerArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the broker.")]


def carry_out(api: Api, target: str, request: Row, yes: bool, dry_run: bool) -> bool:
    """Show a change, ask, and make it on the basis that was shown; False if it was only shown."""
    preview = api.post(target, {**request, "preview": True})
    if preview.get("refusal"):
        raise CliError(f"this can't be done: {preview['refusal']}")
    print("This will be done:")
    for number, step in enumerate(preview.get("steps") or (), start=1):
        print(f"  {number}. {step}")
    for warning in preview.get("warnings") or ():
        print(f"  WARNING: {warning}")
    if dry_run:
        return False
    if not yes and not confirmed():
        raise CliError("nothing was changed")
    print(api.post(target, {**request, "basis": preview.get("basis", "")}).get("done", "done"))
    return True


def confirmed() -> bool:
    """Ask; an input that has nothing to say is told how to go on without being asked."""
    try:
        return typer.confirm("Do it?")
    except typer.Abort:
        print()
        raise CliError("nothing was changed; --yes does it without asking") from None
