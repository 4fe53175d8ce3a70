"""`rhizome parameter`: what components and tools keep in the broker, by vhost or for all."""

from __future__ import annotations

import json
from typing import Annotated, Final

import typer

from rhizome.cli.api import Api, endpoint, path
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
from rhizome.cli.output import print_done, print_json, print_table

app = typer.Typer(no_args_is_help=True, help="Parameters of components and of the cluster.")

ComponentArgument = Annotated[
    str, typer.Argument(metavar="COMPONENT", help="What the parameter is for.")
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the parameter.")]
ValueArgument = Annotated[
    str, typer.Argument(metavar="VALUE", help='JSON, like {"a": 1}, 5 or "text".')
]

COLUMNS: Final = ("component", "vhost", "name", "value")
GLOBAL_COLUMNS: Final = ("name", "value")


@app.command("list")
def list_parameters(
    component: Annotated[
        str, typer.Option("--component", help="Only of this component.", show_default="all")
    ] = "",
    vhost: AnyVhostOption = "",
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """List parameters of virtual hosts."""
    narrow = (component, vhost) if component and vhost else (component,) if component else ()
    parameters = Api(endpoint(http, user, password)).rows(path("parameters", *narrow))
    if vhost:
        parameters = [each for each in parameters if each.get("vhost") == vhost]
    if as_json:
        print_json(parameters)
        return
    rows = [[each.get(column) for column in COLUMNS] for each in parameters]
    print_table(COLUMNS, sorted(rows, key=str), "no parameters")


@app.command("set")
def set_parameter(
    component: ComponentArgument,
    name: NameArgument,
    value: ValueArgument,
    vhost: VhostOption = "/",
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Set a parameter of a component in a virtual host."""
    document = {"component": component, "vhost": vhost, "name": name, "value": _value(value)}
    target = path("parameters", component, vhost, name)
    Api(endpoint(http, user, password)).put(target, document)
    print_done(f"parameter '{name}' of {component} is set in vhost '{vhost}'", as_json)


@app.command("clear")
def clear_parameter(
    component: ComponentArgument,
    name: NameArgument,
    vhost: VhostOption = "/",
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Take a parameter of a component away."""
    Api(endpoint(http, user, password)).delete(path("parameters", component, vhost, name))
    print_done(f"cleared parameter '{name}' of {component} in vhost '{vhost}'", as_json)


@app.command("list-global")
def list_global(
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """List parameters of the whole cluster."""
    parameters = Api(endpoint(http, user, password)).rows(path("global-parameters"))
    if as_json:
        print_json(parameters)
        return
    rows = [[each.get(column) for column in GLOBAL_COLUMNS] for each in parameters]
    print_table(GLOBAL_COLUMNS, sorted(rows, key=str), "no global parameters")


@app.command("set-global")
def set_global(
    name: NameArgument,
    value: ValueArgument,
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Set a parameter of the whole cluster."""
    document = {"name": name, "value": _value(value)}
    Api(endpoint(http, user, password)).put(path("global-parameters", name), document)
    print_done(f"global parameter '{name}' is set", as_json)


@app.command("clear-global")
def clear_global(
    name: NameArgument,
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Take a parameter of the whole cluster away."""
    Api(endpoint(http, user, password)).delete(path("global-parameters", name))
    print_done(f"cleared global parameter '{name}'", as_json)


def _value(text: str) -> object:
    try:
        value: object = json.loads(text)
    except ValueError:
        raise CliError(
            f"parameter value {text}: give JSON, like '{{\"a\": 1}}', 5 or '\"text\"'"
        ) from None
    return value
