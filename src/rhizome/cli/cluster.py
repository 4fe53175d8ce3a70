"""`rhizome cluster`: see a cluster, and change who is in it.

Each change is shown before it is made, and made only as it was shown.
"""

from __future__ import annotations

from typing import Annotated

import typer

from rhizome.cli.api import Api, endpoint, path
from rhizome.cli.cluster_key import print_token, rotate_key
from rhizome.cli.clustertext import print_cluster
from rhizome.cli.errors import CliError
from rhizome.cli.options import HTTP_DEFAULT, HttpOption, JsonOption, PasswordOption, UserOption
from rhizome.cli.orders import BrokerArgument, DryRunOption, YesOption, carry_out
from rhizome.cli.output import print_json

app = typer.Typer(no_args_is_help=True, help="See the cluster, and change who is in it.")
app.command("app-token")(print_token)
app.command("rotate-key")(rotate_key)


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
    as_json: JsonOption = False,
) -> None:
    """Make the broker at --http the root of a new cluster of itself.

    For when more than half of the primaries are lost for good. What only they knew is lost, and
    they may not come back into the new cluster with their old stores.
    """
    where = endpoint(http, user, password)
    if len(where.addresses) > 1:
        raise CliError(
            f"--http names {len(where.addresses)} brokers; give the one that becomes the root"
        )
    carry_out(Api(where), path("rhizome", "cluster", "force-root"), {}, yes, dry_run, as_json)


@app.command("add-primary")
def add_primary(
    name: BrokerArgument,
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Admit a broker as a primary. It runs already, with role primary or witness."""
    api = Api(endpoint(http, user, password))
    carry_out(api, path("rhizome", "cluster", "primaries"), {"add": name}, yes, dry_run, as_json)


@app.command("remove-primary")
def remove_primary(
    name: BrokerArgument,
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Take a primary's vote away, for good; a broker that is lost, or about to be stopped."""
    api = Api(endpoint(http, user, password))
    carry_out(api, path("rhizome", "cluster", "primaries"), {"remove": name}, yes, dry_run, as_json)


@app.command("settings")
def change_settings(
    copies: Annotated[
        int | None, typer.Option("--copies", min=1, max=15, help="Copies of each message.")
    ] = None,
    min_copies: Annotated[
        int | None, typer.Option("--min-copies", min=1, max=15, help="Below it publishers wait.")
    ] = None,
    placement: Annotated[
        str, typer.Option("--placement", help="spread, or root: all queues at the root.")
    ] = "",
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Change what the whole cluster does alike. The configuration counts for new clusters only."""
    given = {"copies": copies, "min_copies": min_copies, "placement": placement}
    request = {key: value for key, value in given.items() if value}
    if not request:
        raise CliError("give --copies, --min-copies or --placement")
    api = Api(endpoint(http, user, password))
    carry_out(api, path("rhizome", "cluster", "settings"), request, yes, dry_run, as_json)
