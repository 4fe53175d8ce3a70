"""`rhizome exchange`: look at exchanges, declare and delete them, bind queues to them."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from rhizome.cli.api import Api, Row, endpoint, path
from rhizome.cli.errors import CliError
from rhizome.cli.options import (
    HTTP_DEFAULT,
    AnyVhostOption,
    HttpOption,
    JsonOption,
    PasswordOption,
    UserOption,
    VhostOption,
)
from rhizome.cli.output import print_done, print_json, print_rows, print_table
from rhizome.cli.pairs import parse_pairs

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
COLUMNS: Final = ("name", "vhost", "type", "durable", "auto_delete", "internal", "arguments")


@app.command("list")
def list_exchanges(
    vhost: AnyVhostOption = "",
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """List exchanges."""
    target = path("exchanges", vhost) if vhost else path("exchanges")
    exchanges = Api(endpoint(http, user, password)).rows(target)
    if as_json:
        print_json(exchanges)
        return
    exchanges.sort(key=lambda exchange: (str(exchange.get("vhost")), str(exchange.get("name"))))
    print_table(COLUMNS, [_columns(exchange) for exchange in exchanges], "no exchanges")


def _columns(exchange: Row) -> list[object]:
    name = exchange.get("name") or "(default)"
    return [name, *(exchange.get(column) for column in COLUMNS[1:])]


@app.command("declare")
def declare_exchange(
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
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Declare an exchange."""
    document: Row = {
        "type": kind,
        "durable": durable,
        "auto_delete": auto_delete,
        "internal": internal,
        "arguments": parse_pairs("--argument", argument or [], guess_types=True),
    }
    Api(endpoint(http, user, password)).put(path("exchanges", vhost, name), document)
    print_done(f"declared exchange '{name}' in vhost '{vhost}'", as_json)


@app.command("delete")
def delete_exchange(
    name: NameArgument,
    if_unused: Annotated[
        bool, typer.Option("--if-unused", help="Only if nothing is bound to it.")
    ] = False,
    vhost: VhostOption = "/",
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Delete an exchange with its bindings."""
    query = {"if-unused": "true"} if if_unused else None
    Api(endpoint(http, user, password)).delete(path("exchanges", vhost, name), query)
    print_done(f"deleted exchange '{name}' in vhost '{vhost}'", as_json)


@app.command("bindings")
def list_bindings(
    name: NameArgument,
    vhost: VhostOption = "/",
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """List what is bound to an exchange."""
    bindings = _bindings(Api(endpoint(http, user, password)), vhost, name)
    print_rows(bindings, BINDING_COLUMNS, f"nothing is bound to '{name}'", as_json)


@app.command("bind")
def bind(
    name: NameArgument,
    to: ToArgument,
    key: KeyOption = "",
    argument: ArgumentOption = None,
    to_exchange: ToExchangeOption = False,
    vhost: VhostOption = "/",
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Bind a queue to an exchange, or another exchange."""
    document: Row = {
        "routing_key": key,
        "arguments": parse_pairs("--argument", argument or [], guess_types=True),
    }
    letter, word = ("e", "exchange") if to_exchange else ("q", "queue")
    target = path("bindings", vhost, "e", name, letter, to)
    Api(endpoint(http, user, password)).send("POST", target, document)
    print_done(f"bound {word} '{to}' to '{name}' with key '{key}'", as_json)


@app.command("unbind")
def unbind(
    name: NameArgument,
    to: ToArgument,
    key: KeyOption = "",
    to_exchange: ToExchangeOption = False,
    vhost: VhostOption = "/",
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Take the bindings of a queue with a key away, whatever arguments they have."""
    api = Api(endpoint(http, user, password))
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
    print_done(f"unbound {word} '{to}' from '{name}' with key '{key}'", as_json)


def _bindings(api: Api, vhost: str, exchange: str) -> list[Row]:
    return api.rows(path("exchanges", vhost, exchange, "bindings", "source"))
