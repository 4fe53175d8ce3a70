"""`rhizome broker`: list and drain brokers, and let one rejoin with an empty store."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from rhizome.cli.commands.cluster.drain_progress import wait_until_drained
from rhizome.cli.errors import CliError, UsageError
from rhizome.cli.http_api.api_client import path
from rhizome.cli.http_api.change_confirmation import BrokerArgument, Order, YesOption, confirmed
from rhizome.cli.http_api.command_decorator import Remote
from rhizome.cli.output.cluster_tables import print_brokers
from rhizome.cli.output.printer import print_done, print_json, say
from rhizome.cli.shared_options import JsonOption, with_options

app = typer.Typer(
    no_args_is_help=True, help="List the brokers of a cluster; empty one; let one begin anew."
)


@app.command("list")
@with_options
def list_brokers(remote: Remote) -> None:
    """List the brokers, the most senior first, as one of them sees them."""
    document = remote.api.row(path("rhizome", "cluster"))
    if remote.as_json:
        print_json(document.get("brokers"))
    else:
        print_brokers(document)


@app.command("drain")
@with_options
def drain(
    order: Order,
    name: BrokerArgument,
    grace: Annotated[
        str,
        typer.Option("--grace", metavar="TIME", help="Over which its connections leave."),
    ] = "60s",
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Return when the broker may be stopped.")
    ] = True,
) -> None:
    """Empty a broker before it is stopped: its homes and copies go elsewhere, then its connections.

    Nothing is lost and nobody sees an error. Refused while the cluster needs the broker for its
    quorum. A broker stays drained over a restart, until `undrain`.
    """
    from rhizome.server.config.units import UnitError, parse_duration

    try:
        grace_ms = parse_duration(grace)
    except UnitError as error:
        raise UsageError(f"--grace: {error}") from None
    target = path("rhizome", "brokers", name, "drain")

    def empty() -> str:
        return wait_until_drained(order.api, name, grace_ms, quiet=order.as_json)

    request = {"grace_ms": grace_ms}
    order.preview_and_apply(target, request, empty if wait else None)


@app.command("undrain")
@with_options
def undrain(order: Order, name: BrokerArgument) -> None:
    """Let a broker that was drained take work again."""
    order.preview_and_apply(path("rhizome", "brokers", name, "undrain"), {})


@app.command("report-death")
def report_death(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="Of the broker that ended."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Report to the cluster that a broker of this machine has ended, if that is certain.

    For what runs after a broker's end, such as ExecStopPost of systemd. The others take its groups
    over at once, instead of waiting for its lease to run out. Certain means that the broker didn't
    say farewell and no process has the lock of its store; a broker that runs is never reported.
    """
    from rhizome.cli.commands.cluster.death_report import reported_deaths

    reports = reported_deaths(config)
    if as_json:
        print_json(reports)
        return
    for report in reports:
        say(f"{report['broker']}, incarnation {report['incarnation']}, has ended")
        for address, problem in report["told"].items():
            say(f"    {address}  {problem or 'told'}")
    if not reports:
        say("no broker of this configuration has ended without a farewell")


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
    """Move a store under its lock, so that no running broker loses its files."""
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
