"""`rhizome cluster`: see a cluster, and change who is in it.

Each change is shown before it is made, and made only as it was shown.
"""

from __future__ import annotations

from typing import Annotated

import typer

from rhizome.cli.api import Api, Row, endpoint, path
from rhizome.cli.clustertext import print_cluster
from rhizome.cli.errors import CliError
from rhizome.cli.options import HTTP_DEFAULT, HttpOption, JsonOption, PasswordOption, UserOption
from rhizome.cli.output import print_json

app = typer.Typer(no_args_is_help=True, help="See the cluster, and change who is in it.")

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")
]
BrokerArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the broker.")]


@app.command("status")
def show_status(
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show root, quorum, brokers and groups, as one broker sees them."""
    document = Api(endpoint(http, user, password)).row(path("rhizome", "cluster"))
    if as_json:
        print_json(document)
    else:
        print_cluster(document)


@app.command("force-root")
def force_root(
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Make the broker at --http the root of a new cluster of itself.

    For when more than half of the primaries are lost for good. What only they knew is lost, and
    they may not come back into the new cluster with their old stores.
    """
    api = Api(endpoint(http, user, password))
    _change(api, path("rhizome", "cluster", "force-root"), {}, yes, dry_run)


@app.command("add-primary")
def add_primary(
    name: BrokerArgument,
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Admit a broker as a primary. It runs already, with role primary or witness."""
    api = Api(endpoint(http, user, password))
    _change(api, path("rhizome", "cluster", "primaries"), {"add": name}, yes, dry_run)


@app.command("remove-primary")
def remove_primary(
    name: BrokerArgument,
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Take a primary's vote away, for good; a broker that is lost, or about to be stopped."""
    api = Api(endpoint(http, user, password))
    _change(api, path("rhizome", "cluster", "primaries"), {"remove": name}, yes, dry_run)


def _change(api: Api, target: str, request: Row, yes: bool, dry_run: bool) -> None:
    """Show a change, ask, and make it on the basis that was shown."""
    preview = api.post(target, {**request, "preview": True})
    if preview.get("refusal"):
        raise CliError(f"this can't be done: {preview['refusal']}")
    print("This will be done:")
    for number, step in enumerate(preview.get("steps") or (), start=1):
        print(f"  {number}. {step}")
    for warning in preview.get("warnings") or ():
        print(f"  WARNING: {warning}")
    if dry_run:
        return
    if not yes and not confirmed():
        raise CliError("nothing was changed")
    print(api.post(target, {**request, "basis": preview.get("basis", "")}).get("done", "done"))


def confirmed() -> bool:
    """Ask; an input that has nothing to say is told how to go on without being asked."""
    try:
        return typer.confirm("Do it?")
    except typer.Abort:
        print()
        raise CliError("nothing was changed; --yes does it without asking") from None
