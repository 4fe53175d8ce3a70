"""Limits of virtual hosts and users: shown in lists, and set one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from rhizome.cli.errors import CliError
from rhizome.cli.http_api.api_client import Api, path

ConnectionsOption = Annotated[
    int | None, typer.Option("--connections", help="Connections at most; -1: any number.")
]


def limits_text(limits: object) -> str:
    if not isinstance(limits, dict) or not limits:
        return "-"
    return " ".join(f"{key}={value}" for key, value in sorted(limits.items()))


def put_limits(api: Api, kind: str, name: str, wanted: Mapping[str, int | None]) -> str:
    """Set the limits that are given (`max-queues`: 5); returns what was set, for people."""
    given = {key: value for key, value in wanted.items() if value is not None}
    if not given:
        options = [key.replace("max-", "--") for key in wanted]
        raise CliError(f"give {', '.join(options[:-1])} or {options[-1]}")
    for key, value in given.items():
        api.put(path(kind, name, key), {"value": value})
    return ", ".join(f"{key} {value}" for key, value in given.items())
