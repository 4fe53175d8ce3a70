"""`rhizome parameter`: what components and tools keep in the broker, by vhost or for all."""

from __future__ import annotations

import json
from typing import Annotated, Final

import typer

from rhizome.cli.errors import UsageError
from rhizome.cli.http_api.api_client import path
from rhizome.cli.http_api.command_decorator import Remote
from rhizome.cli.shared_options import AnyVhostOption, VhostOption, with_options

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
@with_options
def list_parameters(
    remote: Remote,
    component: Annotated[
        str, typer.Option("--component", help="Only of this component.", show_default="all")
    ] = "",
    vhost: AnyVhostOption = "",
) -> None:
    """List parameters of virtual hosts."""
    narrow = (component, vhost) if component and vhost else (component,) if component else ()
    parameters = remote.api.rows(path("parameters", *narrow))
    if vhost:
        parameters = [each for each in parameters if each.get("vhost") == vhost]
    remote.print_rows(parameters, COLUMNS, "no parameters", by=COLUMNS)


@app.command("set")
@with_options
def set_parameter(
    remote: Remote,
    component: ComponentArgument,
    name: NameArgument,
    value: ValueArgument,
    vhost: VhostOption = "/",
) -> None:
    """Set a parameter of a component in a virtual host."""
    document = {"component": component, "vhost": vhost, "name": name, "value": _value(value)}
    target = path("parameters", component, vhost, name)
    remote.api.put(target, document)
    remote.done(f"parameter '{name}' of {component} is set in vhost '{vhost}'")


@app.command("clear")
@with_options
def clear_parameter(
    remote: Remote, component: ComponentArgument, name: NameArgument, vhost: VhostOption = "/"
) -> None:
    """Take a parameter of a component away."""
    remote.api.delete(path("parameters", component, vhost, name))
    remote.done(f"cleared parameter '{name}' of {component} in vhost '{vhost}'")


@app.command("list-global")
@with_options
def list_global(remote: Remote) -> None:
    """List parameters of the whole cluster."""
    parameters = remote.api.rows(path("global-parameters"))
    remote.print_rows(parameters, GLOBAL_COLUMNS, "no global parameters", by=GLOBAL_COLUMNS)


@app.command("set-global")
@with_options
def set_global(remote: Remote, name: NameArgument, value: ValueArgument) -> None:
    """Set a parameter of the whole cluster."""
    document = {"name": name, "value": _value(value)}
    remote.api.put(path("global-parameters", name), document)
    remote.done(f"global parameter '{name}' is set")


@app.command("clear-global")
@with_options
def clear_global(remote: Remote, name: NameArgument) -> None:
    """Take a parameter of the whole cluster away."""
    remote.api.delete(path("global-parameters", name))
    remote.done(f"cleared global parameter '{name}'")


def _value(text: str) -> object:
    try:
        value: object = json.loads(text)
    except ValueError:
        raise UsageError(
            f"parameter value {text}: give JSON, like '{{\"a\": 1}}', 5 or '\"text\"'"
        ) from None
    return value
