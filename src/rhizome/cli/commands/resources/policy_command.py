"""`rhizome policy`: arguments for queues and exchanges by pattern."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Annotated, Final

import typer

from rhizome.cli.errors import CliError, UsageError
from rhizome.cli.http_api.api_client import path
from rhizome.cli.http_api.command_decorator import Remote
from rhizome.cli.shared_options import AnyVhostOption, VhostOption, with_options
from rhizome.errors import NotFound

app = typer.Typer(no_args_is_help=True, help="Arguments for queues and exchanges, by pattern.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the policy.")]
OperatorOption = Annotated[
    bool,
    typer.Option("--operator", help="Of operators: limits that other policies can't exceed."),
]

COLUMNS: Final = ("name", "vhost", "pattern", "apply-to", "priority", "definition")


class ApplyTo(Enum):
    """What a policy's pattern is matched with."""

    ALL = "all"
    QUEUES = "queues"
    EXCHANGES = "exchanges"


@app.command("list")
@with_options
def list_policies(
    remote: Remote, operator: OperatorOption = False, vhost: AnyVhostOption = ""
) -> None:
    """List policies."""
    kind = _kind(operator)
    target = path(kind, vhost) if vhost else path(kind)
    policies = remote.api.rows(target)
    remote.print_rows(policies, COLUMNS, f"no {_word(operator, 'policies')}", by=COLUMNS)


@app.command("set")
@with_options
def set_policy(
    remote: Remote,
    name: NameArgument,
    pattern: Annotated[str, typer.Argument(help="Regular expression for names.")],
    definition: Annotated[
        str, typer.Argument(help='JSON object, like {"max-length": 1000, "message-ttl": 60000}.')
    ],
    priority: Annotated[int, typer.Option(help="The highest one that matches counts.")] = 0,
    apply_to: Annotated[
        ApplyTo | None,
        typer.Option("--apply-to", help="To what.", show_default="all; with --operator queues"),
    ] = None,
    operator: OperatorOption = False,
    vhost: VhostOption = "/",
) -> None:
    """Create or replace a policy."""
    if apply_to is None:
        apply_to = ApplyTo.QUEUES if operator else ApplyTo.ALL
    document = {
        "pattern": pattern,
        "definition": _definition(definition),
        "priority": priority,
        "apply-to": apply_to.value,
    }
    remote.api.put(path(_kind(operator), vhost, name), document)
    remote.done(f"{_word(operator)} '{name}' is set in vhost '{vhost}'")


@app.command("delete")
@with_options
def delete_policy(
    remote: Remote,
    name: NameArgument,
    operator: OperatorOption = False,
    offline: Annotated[
        Path | None,
        typer.Option(
            "--offline",
            metavar="DIR",
            help="In the data directory of a lone broker that doesn't run.",
        ),
    ] = None,
    vhost: VhostOption = "/",
) -> None:
    """Delete a policy."""
    if offline is not None:
        _delete_offline(offline, vhost, name, operator)
    else:
        remote.api.delete(path(_kind(operator), vhost, name))
    remote.done(f"deleted {_word(operator)} '{name}' in vhost '{vhost}'")


def _delete_offline(directory: Path, vhost: str, name: str, operator: bool) -> None:
    from rhizome.server import offline_stores as offline

    if not (directory / "store.json").is_file():
        raise CliError(f"{directory} is no broker's store; give what `serve --data` had")
    try:
        offline.delete_policy(directory, vhost, name, operator)
    except NotFound as error:
        raise CliError(f"{error.text} of {directory}") from None


def _kind(operator: bool) -> str:
    return "operator-policies" if operator else "policies"


def _word(operator: bool, noun: str = "policy") -> str:
    return f"operator {noun}" if operator else noun


def _definition(text: str) -> dict[str, object]:
    try:
        definition = json.loads(text)
    except ValueError:
        definition = None
    if not isinstance(definition, dict) or not definition:
        raise UsageError(
            f"policy definition {text}: give a JSON object, like '{{\"max-length\": 1000}}'"
        )
    return definition
