"""`rhizome exchange`: look at exchanges, declare and delete them, bind queues to them."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from rhizome.cli.errors import CliError
from rhizome.cli.http_api.api_client import Api, Row, path
from rhizome.cli.http_api.command_decorator import Remote
from rhizome.cli.shared_options import AnyVhostOption, VhostOption, parse_pairs, with_options

app = typer.Typer(
    no_args_is_help=True, help="Look at exchanges, declare and delete them, bind queues to them."
)

NameArgument = Annotated[str, typer.Argument(metavar="EXCHANGE", help="Name of the exchange.")]
ArgumentOption = Annotated[
    list[str] | None,
    typer.Option("--argument", "-a", metavar="KEY=VALUE", help="KEY:=JSON for other types."),
]
ToArgument = Annotated[
    str, typer.Argument(metavar="QUEUE", help="A queue; with --to-exchange, an exchange.")
]
ToExchangeOption = Annotated[
    bool, typer.Option("--to-exchange", help="What is bound is an exchange.")
]
KeyOption = Annotated[str, typer.Option("--key", "-k", help="Routing key or pattern.")]

BINDING_COLUMNS: Final = ("destination", "destination_type", "routing_key", "arguments")
COLUMNS: Final = (
    ("name", lambda exchange: exchange.get("name") or "(default)"),
    *("vhost", "type", "durable", "auto_delete", "internal", "arguments"),
)


@app.command("list")
@with_options
def list_exchanges(remote: Remote, vhost: AnyVhostOption = "") -> None:
    """List exchanges."""
    target = path("exchanges", vhost) if vhost else path("exchanges")
    exchanges = remote.api.rows(target)
    remote.print_rows(exchanges, COLUMNS, "no exchanges", by=("vhost", "name"))


@app.command("declare")
@with_options
def declare_exchange(
    remote: Remote,
    name: NameArgument,
    kind: Annotated[
        str, typer.Option("--type", "-t", help="direct, fanout, topic, headers, ...")
    ] = "direct",
    durable: Annotated[
        bool, typer.Option("--durable/--transient", help="Whether it survives a restart.")
    ] = True,
    auto_delete: Annotated[
        bool, typer.Option("--auto-delete", help="Delete it with its last binding.")
    ] = False,
    internal: Annotated[
        bool, typer.Option("--internal", help="Other exchanges publish to it, clients can't.")
    ] = False,
    argument: ArgumentOption = None,
    vhost: VhostOption = "/",
) -> None:
    """Declare an exchange."""
    document: Row = {
        "type": kind,
        "durable": durable,
        "auto_delete": auto_delete,
        "internal": internal,
        "arguments": parse_pairs("--argument", argument or [], guess_types=True),
    }
    remote.api.put(path("exchanges", vhost, name), document)
    remote.done(f"declared exchange '{name}' in vhost '{vhost}'")


@app.command("delete")
@with_options
def delete_exchange(
    remote: Remote,
    name: NameArgument,
    if_unused: Annotated[
        bool, typer.Option("--if-unused", help="Only if nothing is bound to it.")
    ] = False,
    vhost: VhostOption = "/",
) -> None:
    """Delete an exchange with its bindings."""
    query = {"if-unused": "true"} if if_unused else None
    remote.api.delete(path("exchanges", vhost, name), query)
    remote.done(f"deleted exchange '{name}' in vhost '{vhost}'")


@app.command("bindings")
@with_options
def list_bindings(remote: Remote, name: NameArgument, vhost: VhostOption = "/") -> None:
    """List what is bound to an exchange."""
    bindings = _bindings(remote.api, vhost, name)
    remote.print_rows(
        bindings, BINDING_COLUMNS, f"nothing is bound to '{name}'", by=BINDING_COLUMNS
    )


@app.command("bind")
@with_options
def bind(
    remote: Remote,
    name: NameArgument,
    to: ToArgument,
    key: KeyOption = "",
    argument: ArgumentOption = None,
    to_exchange: ToExchangeOption = False,
    vhost: VhostOption = "/",
) -> None:
    """Bind a queue to an exchange, or another exchange."""
    document: Row = {
        "routing_key": key,
        "arguments": parse_pairs("--argument", argument or [], guess_types=True),
    }
    letter, word = ("e", "exchange") if to_exchange else ("q", "queue")
    target = path("bindings", vhost, "e", name, letter, to)
    remote.api.send("POST", target, document)
    remote.done(f"bound {word} '{to}' to '{name}' with key '{key}'")


@app.command("unbind")
@with_options
def unbind(
    remote: Remote,
    name: NameArgument,
    to: ToArgument,
    key: KeyOption = "",
    to_exchange: ToExchangeOption = False,
    vhost: VhostOption = "/",
) -> None:
    """Take the bindings of a queue with a key away, whatever arguments they have."""
    api = remote.api
    letter, word = ("e", "exchange") if to_exchange else ("q", "queue")
    wanted = (to, word, key)
    found = [
        str(each.get("properties_key"))
        for each in _bindings(api, vhost, name)
        if (each.get("destination"), each.get("destination_type"), each.get("routing_key"))
        == wanted
    ]
    if not found:
        raise CliError(
            f"{word} '{to}' is not bound to '{name}' with key '{key}';"
            f" see `rhizome exchange bindings {name}`"
        )
    for each in found:
        api.delete(path("bindings", vhost, "e", name, letter, to, each))
    remote.done(f"unbound {word} '{to}' from '{name}' with key '{key}'")


def _bindings(api: Api, vhost: str, exchange: str) -> list[Row]:
    return api.rows(path("exchanges", vhost, exchange, "bindings", "source"))
