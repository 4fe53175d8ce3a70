"""`rhizome definitions`: everything that was declared, as a file; RabbitMQ's files too."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
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
)
from rhizome.cli.output import print_done, print_json

app = typer.Typer(
    no_args_is_help=True, help="Everything that was declared, as a file; RabbitMQ's files, too."
)

KINDS: Final = ("vhosts", "users", "permissions", "policies", "exchanges", "queues", "bindings")


@app.command("export")
def export_definitions(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Without it: standard output.")
    ] = None,
    vhost: AnyVhostOption = "",
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Write vhosts, users, permissions, policies, exchanges, queues and bindings to a file.

    Password hashes are in it: only you can read the file.
    """
    found = Api(endpoint(http, user, password)).row(_target(vhost))
    if file is None:
        print_json(found)
        return
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as written:
        json.dump(found, written, indent=2, sort_keys=True, ensure_ascii=False)
        written.write("\n")
    print_done(f"wrote {_counts(found)} to {file}", as_json)


@app.command("import")
def import_definitions(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON, of Rhizome or RabbitMQ.")],
    vhost: AnyVhostOption = "",
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Declare what a file has. What is there already stays; what differs is refused."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CliError(f"{file} is no JSON ({error}); give a file of definitions") from None
    if not isinstance(document, dict):
        raise CliError(f"{file} has no JSON object; give a file of definitions")
    Api(endpoint(http, user, password)).send("POST", _target(vhost), document)
    print_done(f"imported {_counts(document)} from {file}", as_json)


def _target(vhost: str) -> str:
    return path("definitions", vhost) if vhost else path("definitions")


def _counts(document: Mapping[str, object]) -> str:
    sizes = {kind: document.get(kind) for kind in KINDS}
    said = [f"{len(rows)} {kind}" for kind, rows in sizes.items() if isinstance(rows, list)]
    return ", ".join(said) or "nothing"
