"""`rhizome broker`: the brokers of a cluster, and a broker that must begin anew."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from rhizome.cli.api import Api, endpoint, path
from rhizome.cli.clustertext import print_brokers
from rhizome.cli.errors import CliError
from rhizome.cli.options import HTTP_DEFAULT, HttpOption, JsonOption, PasswordOption, UserOption
from rhizome.cli.orders import BrokerArgument, DryRunOption, YesOption, carry_out, confirmed
from rhizome.cli.output import print_done, print_json, say
from rhizome.cli.waiting import until_drained

app = typer.Typer(
    no_args_is_help=True, help="List the brokers of a cluster; empty one; let one begin anew."
)


@app.command("list")
def list_brokers(
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """List the brokers, the most senior first, as one of them sees them."""
    document = Api(endpoint(http, user, password)).row(path("rhizome", "cluster"))
    if as_json:
        print_json(document.get("brokers"))
    else:
        print_brokers(document)


@app.command("drain")
def drain(
    name: BrokerArgument,
    grace: Annotated[
        str,
        typer.Option("--grace", metavar="TIME", help="Over which its connections leave."),
    ] = "60s",
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Return when the broker may be stopped.")
    ] = True,
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Empty a broker before it is stopped: its homes and copies go elsewhere, then its connections.

    Nothing is lost and nobody sees an error. Refused while the cluster needs the broker for its
    quorum. A broker stays drained over a restart, until `undrain`.
    """
    from rhizome.server.units import UnitError, parse_duration

    try:
        grace_ms = parse_duration(grace)
    except UnitError as error:
        raise CliError(f"--grace: {error}") from None
    api = Api(endpoint(http, user, password))
    target = path("rhizome", "brokers", name, "drain")

    def empty() -> str:
        return until_drained(api, name, grace_ms, quiet=as_json)

    request = {"grace_ms": grace_ms}
    carry_out(api, target, request, yes, dry_run, as_json, empty if wait else None)


@app.command("undrain")
def undrain(
    name: BrokerArgument,
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Let a broker that was drained take work again."""
    api = Api(endpoint(http, user, password))
    carry_out(api, path("rhizome", "brokers", name, "undrain"), {}, yes, dry_run, as_json)


@app.command("rejoin")
def rejoin(
    data: Annotated[
        Path, typer.Option("--data", metavar="DIR", help="The stopped broker's store.")
    ],
    set_aside: Annotated[
        bool, typer.Option("--set-aside", help="Keep the old store beside it; required.")
    ] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Let a stopped broker join its cluster with an empty store.

    For a store that the cluster refuses: of another cluster UUID after `cluster force-root`, or
    damaged. The old store is moved aside whole, for salvage, and never merged.
    """
    if not set_aside:
        raise CliError(
            "give --set-aside: the broker begins with an empty store, the old one is kept"
        )
    directory = data.resolve()
    aside = directory.with_name(f"{directory.name}.set-aside-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
    _check_store(directory, aside)
    if as_json and not yes:
        raise CliError(f"{directory} would be moved to {aside}; give --yes")
    if not as_json:
        say(f"{directory} will be moved to {aside}, with every message in it.")
        say("The broker is a new one when it starts: it votes when it has been admitted.")
    if not yes and not confirmed():
        raise CliError("nothing was changed")
    _move(directory, aside)
    print_done(
        f"moved to {aside}; start the broker, then `rhizome cluster add-primary` admits it as a"
        " primary",
        as_json,
    )


def _check_store(directory: Path, aside: Path) -> None:
    if not (directory / "store.json").is_file():
        raise CliError(f"{directory} is no broker's store; give --data as the broker has it")
    if aside.exists():
        raise CliError(f"{aside} exists; wait a second and try again")


def _move(directory: Path, aside: Path) -> None:
    """Under the store's lock, so that no running broker loses its files."""
    from rhizome.journal.errors import StoreInUse
    from rhizome.journal.files import DirectoryLock

    try:
        lock = DirectoryLock(directory)
    except StoreInUse:
        raise CliError(f"a broker runs on {directory}; stop it first") from None
    try:
        directory.rename(aside)
    finally:
        lock.release()
