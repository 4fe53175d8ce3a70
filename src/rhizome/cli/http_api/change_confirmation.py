"""Changes that a person orders: shown first, and made only as they were shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import typer

from rhizome.cli.errors import CliError, UsageError
from rhizome.cli.http_api.api_client import Row
from rhizome.cli.http_api.command_decorator import Remote
from rhizome.cli.output.printer import print_json, say

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")
]
BrokerArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the broker.")]


@dataclass
class Order(Remote):
    """A change that a person orders. Its fields are options of the command."""

    yes: YesOption = False
    dry_run: DryRunOption = False

    def preview_and_apply(
        self, target: str, request: Row, wait: Callable[[], str] | None = None
    ) -> None:
        """Show a change, ask, and make it exactly as it was shown; ``wait`` returns when it has
        taken effect, and says so. For programs all of it is one document, with ``done`` None if the
        change was only shown."""
        if self.as_json and not self.yes and not self.dry_run:
            raise UsageError("--json asks nobody: give --yes or --dry-run")
        preview = self.api.post(target, {**request, "preview": True})
        if preview.get("refusal"):
            raise CliError(f"this can't be done: {preview['refusal']}")
        steps, warnings = list(preview.get("steps") or ()), list(preview.get("warnings") or ())
        if not self.as_json:
            _show(steps, warnings)
        done: str | None = None
        if not self.dry_run:
            if not self.yes and not confirmed():
                raise CliError("nothing was changed")
            answer = self.api.post(target, {**request, "basis": preview.get("basis", "")})
            done = str(answer.get("done", "done"))
            if not self.as_json:
                say(done)
            if wait is not None:
                done = wait()
                if not self.as_json:
                    say(done)
        if self.as_json:
            print_json({"steps": steps, "warnings": warnings, "done": done})


def _show(steps: list[str], warnings: list[str]) -> None:
    say("This will be done:")
    for number, step in enumerate(steps, start=1):
        say(f"  {number}. {step}")
    for warning in warnings:
        say(f"  WARNING: {warning}")


def confirmed() -> bool:
    """Ask for confirmation; if the input ends without an answer, name the option that skips it."""
    try:
        return typer.confirm("Do it?")
    except typer.Abort:
        say()
        raise CliError("nothing was changed; --yes does it without asking") from None
