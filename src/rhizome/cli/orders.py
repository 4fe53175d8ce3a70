"""Changes that a person orders: shown first, and made only as they were shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from rhizome.cli.api import Api, Row
from rhizome.cli.errors import CliError
from rhizome.cli.output import print_json, say

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")
]
BrokerArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the broker.")]


def carry_out(
    api: Api,
    target: str,
    request: Row,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    wait: Callable[[], str] | None = None,
) -> None:
    """Show a change, ask, and make it on the basis that was shown; ``wait`` returns when it has
    come true, and says so. For programs all of it is one document, ``done`` None if it was only
    shown."""
    if as_json and not yes and not dry_run:
        raise CliError("--json asks nobody: give --yes or --dry-run")
    preview = api.post(target, {**request, "preview": True})
    if preview.get("refusal"):
        raise CliError(f"this can't be done: {preview['refusal']}")
    steps, warnings = list(preview.get("steps") or ()), list(preview.get("warnings") or ())
    if not as_json:
        _show(steps, warnings)
    done: str | None = None
    if not dry_run:
        if not yes and not confirmed():
            raise CliError("nothing was changed")
        answer = api.post(target, {**request, "basis": preview.get("basis", "")})
        done = str(answer.get("done", "done"))
        if not as_json:
            say(done)
        if wait is not None:
            done = wait()
            if not as_json:
                say(done)
    if as_json:
        print_json({"steps": steps, "warnings": warnings, "done": done})


def _show(steps: list[str], warnings: list[str]) -> None:
    say("This will be done:")
    for number, step in enumerate(steps, start=1):
        say(f"  {number}. {step}")
    for warning in warnings:
        say(f"  WARNING: {warning}")


def confirmed() -> bool:
    """Ask; an input that has nothing to say is told how to go on without being asked."""
    try:
        return typer.confirm("Do it?")
    except typer.Abort:
        say()
        raise CliError("nothing was changed; --yes does it without asking") from None
