"""Options that several commands share."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar, get_type_hints

import typer

from rhizome.cli.errors import UsageError


def parse_pairs(option: str, pairs: Sequence[str], *, guess_types: bool) -> dict[str, object]:
    """KEY=VALUE pairs as a table. KEY:=JSON gives the value as JSON, whatever its type.

    With `guess_types` whole numbers, true and false are taken as such: arguments of queues are
    numbers more often than not, while headers are mostly text.
    """
    table: dict[str, object] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.rstrip(":"):
            raise UsageError(f"{option} {pair}: give it as KEY=VALUE")
        if key.endswith(":"):
            table[key[:-1]] = _json(option, pair, text)
        else:
            table[key] = _guess(text) if guess_types else text
    return table


def _json(option: str, pair: str, text: str) -> object:
    try:
        value: object = json.loads(text)
    except ValueError:
        raise UsageError(f"{option} {pair}: what follows := is no JSON") from None
    return value


def _guess(text: str) -> object:
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text)
    except ValueError:
        return text


P = ParamSpec("P")
T = TypeVar("T")


def with_options(command: Callable[Concatenate[T, P], None]) -> Callable[..., None]:
    """A command for typer. Instead of its first parameter, an object of a dataclass, it has the
    fields of that class as options, after all others."""
    first, *own = inspect.signature(command, eval_str=True).parameters.values()
    kinds = get_type_hints(first.annotation, include_extras=True)
    options = {
        each.name: inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=each.default,
            annotation=kinds[each.name],
        )
        for each in fields(first.annotation)
    }
    asked: Callable[..., None] = command

    def run(**given: Any) -> None:
        chosen = {name: given.pop(name) for name in options if name in given}
        asked(first.annotation(**chosen), **given)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    # What typer reads.
    run.__signature__ = inspect.Signature([*own, *options.values()])  # type: ignore[attr-defined]
    return run


def checked_uri(uri: str) -> str:
    """Check a URI before anything is begun. Imports the client late, as commands do."""
    from rhizome.client.connection_uri import parse_uris
    from rhizome.errors import RhizomeError

    try:
        if uri:
            parse_uris(uri)
    except RhizomeError as error:
        raise UsageError(str(error)) from None
    return uri


def uri_in_vhost(uri: str, vhost: str) -> str:
    """The URI for a vhost that is named beside it, or as it is."""
    from rhizome.client.connection_uri import with_vhost

    return with_vhost(uri, vhost) if vhost else uri


HttpOption = Annotated[
    str,
    typer.Option(
        "--http",
        envvar="RHIZOME_HTTP",
        metavar="HOST:PORT,...",
        help="HTTP API of a broker, or of several of one cluster, tried in order;"
        " http://user:password@host:port works too.",
    ),
]
UserOption = Annotated[
    str, typer.Option("--user", "-u", help="User for the HTTP API.", show_default="guest")
]
PasswordOption = Annotated[
    str, typer.Option("--password", "-p", help="Password of that user.", show_default="guest")
]
UserArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")]
VhostOption = Annotated[str, typer.Option("--vhost", "-V", help="Virtual host.")]
AnyVhostOption = Annotated[
    str, typer.Option("--vhost", "-V", help="Only this virtual host.", show_default="all")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
UriOption = Annotated[
    str,
    typer.Option(
        "--uri",
        envvar="RHIZOME_URI",
        metavar="URI",
        help="Broker to connect to; host:port,host:port lists several, tried in order.",
        callback=checked_uri,
    ),
]

UriVhostOption = Annotated[
    str,
    typer.Option(
        "--vhost", "-V", help="Virtual host, instead of that of the URI.", show_default="the URI's"
    ),
]

HTTP_DEFAULT = "127.0.0.1:15672"
URI_DEFAULT = "amqp://guest:guest@127.0.0.1:5672/"
