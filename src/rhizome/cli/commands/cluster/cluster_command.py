"""`rhizome cluster`: see a cluster, and change who is in it.

Each change is shown before it is made, and made only as it was shown.
"""

from __future__ import annotations

from typing import Annotated

import typer

from rhizome.cli.commands.cluster.cluster_key_commands import print_token, rotate_key
from rhizome.cli.errors import CliError, UsageError
from rhizome.cli.http_api.api_client import path
from rhizome.cli.http_api.change_confirmation import BrokerArgument, Order
from rhizome.cli.http_api.command_decorator import Remote
from rhizome.cli.output.cluster_tables import print_cluster
from rhizome.cli.shared_options import with_options

app = typer.Typer(no_args_is_help=True, help="See the cluster, and change who is in it.")
app.command("app-token")(print_token)
app.command("rotate-key")(rotate_key)


@app.command("status")
@with_options
def show_status(remote: Remote) -> None:
    """Show root, quorum, brokers and groups, as one broker sees them."""
    document = remote.api.row(path("rhizome", "cluster"))
    remote.show(document, print_cluster)


@app.command("force-root")
@with_options
def force_root(order: Order) -> None:
    """Make the broker at --http the root of a new cluster of itself.

    For when more than half of the primaries are lost for good. What only they knew is lost, and
    they may not come back into the new cluster with their old stores.
    """
    named = len(order.where.addresses)
    if named > 1:
        raise UsageError(f"--http names {named} brokers; give the one that becomes the root")
    order.preview_and_apply(path("rhizome", "cluster", "force-root"), {})


@app.command("add-primary")
@with_options
def add_primary(order: Order, name: BrokerArgument) -> None:
    """Admit a broker as a primary. It runs already, with role primary or witness."""
    order.preview_and_apply(path("rhizome", "cluster", "primaries"), {"add": name})


@app.command("remove-primary")
@with_options
def remove_primary(order: Order, name: BrokerArgument) -> None:
    """Take a primary's vote away, for good; a broker that is lost, or about to be stopped."""
    order.preview_and_apply(path("rhizome", "cluster", "primaries"), {"remove": name})


@app.command("settings")
@with_options
def change_settings(
    order: Order,
    copies: Annotated[
        int | None, typer.Option("--copies", min=1, max=15, help="Copies of each message.")
    ] = None,
    min_copies: Annotated[
        int | None, typer.Option("--min-copies", min=1, max=15, help="Below it publishers wait.")
    ] = None,
    placement: Annotated[
        str, typer.Option("--placement", help="spread, or root: all queues at the root.")
    ] = "",
) -> None:
    """Change what the whole cluster does alike. The configuration counts for new clusters only."""
    given = {"copies": copies, "min_copies": min_copies, "placement": placement}
    request = {key: value for key, value in given.items() if value}
    if not request:
        raise CliError("give --copies, --min-copies or --placement")
    order.preview_and_apply(path("rhizome", "cluster", "settings"), request)
