"""`rhizome tap`: copy everything that comes to an exchange into a stream.

A tap is a policy with the setting `tap`. Only one policy applies to an exchange, so the one that is
made here takes over what the one in force says, and gets a higher priority.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

import typer

from rhizome.cli.errors import CliError
from rhizome.cli.http_api.api_client import Api, Row, path
from rhizome.cli.http_api.command_decorator import Remote
from rhizome.cli.shared_options import VhostOption, with_options

app = typer.Typer(help="Copy everything that comes to an exchange into a stream.")

COLUMNS: Final = (
    ("exchange", "pattern"),
    ("stream", lambda policy: _definition(policy)["tap"]),
    ("policy", "name"),
    "priority",
)
PREFIX: Final = "tap-"


@app.command()
@with_options
def tap(
    remote: Remote,
    exchange: Annotated[
        str, typer.Argument(metavar="[EXCHANGE]", help="Exchange to tap.", show_default="list taps")
    ] = "",
    to: Annotated[
        str, typer.Option("--to", metavar="STREAM", help="Stream; created if it isn't there.")
    ] = "",
    remove: Annotated[bool, typer.Option("--remove", help="End the tap; keep the stream.")] = False,
    vhost: VhostOption = "/",
) -> None:
    """Copy everything that comes to an exchange into a stream; without an exchange, list taps.

    Publishers don't notice: what no queue takes is still returned or dropped, and confirms wait for
    the stream as they do for a durable queue.
    """
    api = remote.api
    if not exchange:
        taps = [each for each in api.rows(path("policies", vhost)) if "tap" in _definition(each)]
        remote.print_rows(taps, COLUMNS, "no taps", by=("pattern",))
    elif remove:
        api.delete(path("policies", vhost, PREFIX + exchange))
        remote.done(f"exchange '{exchange}' in vhost '{vhost}' is no longer tapped")
    elif to:
        _tap(api, vhost, exchange, to)
        remote.done(f"everything that comes to exchange '{exchange}' goes to stream '{to}' as well")
    else:
        raise CliError(f"tap of exchange '{exchange}': say --to STREAM, or --remove")


def _tap(api: Api, vhost: str, exchange: str, stream: str) -> None:
    in_force = str(api.row(path("exchanges", vhost, exchange)).get("policy") or "")
    own = PREFIX + exchange
    definition: Row = {"tap": stream}
    priority = 0
    if in_force:
        policy = api.row(path("policies", vhost, in_force))
        definition = {**_definition(policy), **definition}
        priority = int(policy.get("priority") or 0) + (in_force != own)
    streams = [each.get("name") for each in api.rows(path("rhizome", "streams", vhost))]
    if stream not in streams:
        api.put(path("rhizome", "streams", vhost, stream), {})
    api.put(
        path("policies", vhost, own),
        {
            "pattern": f"^{re.escape(exchange)}$",
            "definition": definition,
            "priority": priority,
            "apply-to": "exchanges",
        },
    )


def _definition(policy: Row) -> Row:
    found = policy.get("definition")
    return found if isinstance(found, dict) else {}
