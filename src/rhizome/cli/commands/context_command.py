"""`rhizome context`: remember clusters under names, and choose the one that commands talk to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from rhizome.cli.context_file import Context, contexts_file, known_names, load, save
from rhizome.cli.http_api.api_addresses import parse_addresses, split_login
from rhizome.cli.output.printer import print_done, print_json, print_table
from rhizome.cli.shared_options import JsonOption, checked_uri
from rhizome.printable_text import shown_uri

app = typer.Typer(no_args_is_help=True, help="Remember clusters, and choose one.")


NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.")]
KnownArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name of the context.", autocompletion=known_names),
]


@app.command("add")
def add(
    name: NameArgument,
    http: Annotated[
        str,
        typer.Option(
            "--http",
            metavar="HOST:PORT,...",
            help="HTTP API of its brokers, tried in order; https://... for TLS.",
        ),
    ],
    uri: Annotated[
        str,
        typer.Option(
            "--uri",
            metavar="URI",
            help="AMQP address, for publish and the like.",
            callback=checked_uri,
        ),
    ] = "",
    user: Annotated[str, typer.Option("--user", "-u", help="User for both.")] = "",
    password_file: Annotated[
        Path | None,
        typer.Option("--password-file", help="File with the password; without it you are asked."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Remember a cluster, or change what is remembered. The first one becomes the current one.

    A password is asked for, or read from a file: command lines can be seen by others.
    """
    parse_addresses(http)  # raises if a command could not read it
    http, http_login = _without_login(http)
    uri, uri_login = _without_login(uri)
    given = http_login or uri_login
    context = Context(http, uri, user or given[0] if given else user)
    if given and given[1] and not user:
        context = replace(context, password=given[1])
    elif context.user:
        context = replace(context, password=_password(context.user, password_file))
    file = contexts_file()
    contexts = load(file)
    contexts.found[name] = context
    contexts.current = contexts.current or name
    save(file, contexts)
    print_done(f"context '{name}' is remembered in {file}", as_json)


@app.command("use")
def use(name: KnownArgument, as_json: JsonOption = False) -> None:
    """Make a context the one that commands talk to."""
    file = contexts_file()
    contexts = load(file)
    contexts.one(name)
    contexts.current = name
    save(file, contexts)
    print_done(f"commands now talk to '{name}' ({shown_uri(contexts.one(name).http)})", as_json)


@app.command("list")
def list_contexts(as_json: JsonOption = False) -> None:
    """List what is remembered, without passwords and tokens."""
    contexts = load(contexts_file())
    rows = [
        {
            "name": name,
            "current": name == contexts.current,
            "http": shown_uri(each.http),
            "uri": shown_uri(each.uri) or None,
            "user": each.user or None,
        }
        for name, each in sorted(contexts.found.items())
    ]
    if as_json:
        print_json(rows)
        return
    columns = ("name", "current", "http", "uri", "user")
    empty = "no contexts; add one with `rhizome context add NAME --http HOST:PORT`"
    print_table(columns, [[row[column] for column in columns] for row in rows], empty)


@app.command("remove")
def remove(name: KnownArgument, as_json: JsonOption = False) -> None:
    """Forget a context."""
    file = contexts_file()
    contexts = load(file)
    contexts.one(name)
    del contexts.found[name]
    if contexts.current == name:
        contexts.current = ""
    save(file, contexts)
    print_done(f"context '{name}' is forgotten", as_json)


def _without_login(address: str) -> tuple[str, tuple[str, str] | None]:
    """An address without user and password, and these."""
    scheme, separator, rest = address.partition("://")
    if not separator:
        scheme, rest = "", address
    netloc, slash, tail = rest.partition("/")
    login, at, hosts = netloc.rpartition("@")
    if not at:
        return address, None
    return f"{scheme}{separator}{hosts}{slash}{tail}", split_login(login)


def _password(user: str, file: Path | None) -> str:
    if file is not None:
        return file.read_text().strip()
    answer: str = typer.prompt(f"password of '{user}'", hide_input=True)
    return answer
