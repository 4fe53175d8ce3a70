"""`rhizome definitions`: everything that was declared, as a file; RabbitMQ's files too."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from rhizome.adopt.mirror_policies import ask_for_copies, mirrored_policies
from rhizome.cli.errors import CliError
from rhizome.cli.http_api.api_client import Api, path
from rhizome.cli.http_api.command_decorator import Remote
from rhizome.cli.output.printer import print_json, say
from rhizome.cli.shared_options import AnyVhostOption, with_options

app = typer.Typer(
    no_args_is_help=True, help="Everything that was declared, as a file; RabbitMQ's files, too."
)

IMPORT_SECONDS_MAX: Final = 900.0
"""An import is answered when everything is declared, on every broker."""

KINDS: Final = ("vhosts", "users", "permissions", "policies", "exchanges", "queues", "bindings")


@app.command("export")
@with_options
def export_definitions(
    remote: Remote,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Without it: standard output.")
    ] = None,
    vhost: AnyVhostOption = "",
) -> None:
    """Write vhosts, users, permissions, policies, exchanges, queues and bindings to a file.

    Password hashes are in it: only you can read the file.
    """
    found = remote.api.row(_target(vhost))
    if file is None:
        print_json(found)
        return
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    # Bytes of names that are not UTF-8 stand there as JSON writes them: \udc80 to \udcff.
    with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as written:
        json.dump(found, written, indent=2, sort_keys=True, ensure_ascii=False)
        written.write("\n")
    remote.done(f"wrote {_counts(found)} to {file}")


@app.command("import")
@with_options
def import_definitions(
    remote: Remote,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON, of Rhizome or RabbitMQ.")],
    vhost: AnyVhostOption = "",
) -> None:
    """Declare what a file has. What is there already stays; what differs is refused.

    A policy that mirrors queues (`ha-mode`) gets the same number of `copies`.
    """
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CliError(f"{file} is no JSON ({error}); give a file of definitions") from None
    if not isinstance(document, dict):
        raise CliError(f"{file} has no JSON object; give a file of definitions")
    for line in _mirrors_to_copies(document, remote):
        say(line, to_errors=True)
    Api(remote.where, IMPORT_SECONDS_MAX).send("POST", _target(vhost), document)
    remote.done(f"imported {_counts(document)} from {file}")


def _mirrors_to_copies(document: Mapping[str, Any], remote: Remote) -> list[str]:
    """Have policies that mirror queues ask for copies; returns what is said of it."""
    mirrored = mirrored_policies(document)
    return ask_for_copies(mirrored, brokers_of(remote.api)) if mirrored else []


def brokers_of(api: Api) -> int:
    """How many primaries the cluster is to have."""
    cluster = api.row(path("rhizome", "status")).get("cluster") or {}
    return int((cluster.get("quorum") or {}).get("defined") or 1)


def _target(vhost: str) -> str:
    return path("definitions", vhost) if vhost else path("definitions")


def _counts(document: Mapping[str, object]) -> str:
    sizes = {kind: document.get(kind) for kind in KINDS}
    said = [f"{len(rows)} {kind}" for kind, rows in sizes.items() if isinstance(rows, list)]
    return ", ".join(said) or "nothing"
