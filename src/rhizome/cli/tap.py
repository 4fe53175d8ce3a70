"""`rhizome tap`: copy everything that comes to an exchange into a stream.

A tap is a policy with the setting `tap`. Only one policy applies to an exchange, so the one that is
made here takes over what the one in force says, and gets a higher priority.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

import typer

from rhizome.cli.api import Api, Row, endpoint, path
from rhizome.cli.errors import CliError
from rhizome.cli.options import (
    HTTP_DEFAULT,
    HttpOption,
    JsonOption,
    PasswordOption,
    UserOption,
    VhostOption,
)
from rhizome.cli.output import print_json, print_table, say

app = typer.Typer(help="Copy everything that comes to an exchange into a stream.")

COLUMNS: Final = ("exchange", "stream", "policy", "priority")
PREFIX: Final = "tap-"


@app.command()
def tap(
    exchange: Annotated[
        str, typer.Argument(metavar="[EXCHANGE]", help="Exchange to tap.", show_default="list taps")
    ] = "",
    to: Annotated[
        str, typer.Option("--to", metavar="STREAM", help="Stream; created if it isn't there.")
    ] = "",
    remove: Annotated[bool, typer.Option("--remove", help="End the tap; keep the stream.")] = False,
    vhost: VhostOption = "/",
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Copy everything that comes to an exchange into a stream; without an exchange, list taps.

    Publishers don't notice: what no queue takes is still returned or dropped, and confirms wait for
    the stream as they do for a durable queue.
    """
    api = Api(endpoint(http, user, password))
    if not exchange:
        _list(api, vhost, as_json)
    elif remove:
        api.delete(path("policies", vhost, PREFIX + exchange))
        say(f"exchange '{exchange}' in vhost '{vhost}' is no longer tapped")
    elif to:
        _tap(api, vhost, exchange, to)
        say(f"everything that comes to exchange '{exchange}' goes to stream '{to}' as well")
    else:
        raise CliError(f"tap of exchange '{exchange}': say --to STREAM, or --remove")


def _list(api: Api, vhost: str, as_json: bool) -> None:
    taps = [each for each in api.rows(path("policies", vhost)) if "tap" in _definition(each)]
    if as_json:
        print_json(taps)
        return
    rows = [
        [each.get("pattern"), _definition(each)["tap"], each.get("name"), each.get("priority")]
        for each in taps
    ]
    print_table(COLUMNS, sorted(rows, key=str), "no taps")


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
