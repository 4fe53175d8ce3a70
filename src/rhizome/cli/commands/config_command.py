"""`rhizome config`: check a configuration file, show what is in effect, write an example."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Annotated

import typer

from rhizome.server.config.broker_config import Config, check_files, load_config
from rhizome.server.config.config_fields import ConfigError
from rhizome.server.config.config_text import render_example

app = typer.Typer(help="Check and show configuration.", no_args_is_help=True)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="The TOML file to check.", metavar="FILE")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Check a file, with the environment applied as `serve` would; exit status 1 if it is wrong."""
    try:
        check_files(load_config(file), str(file))
    except ConfigError as error:
        _report(file, error, as_json)
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps({"file": str(file), "ok": True, "problems": []}))
    else:
        typer.echo(f"{file}: ok")


@app.command()
def show(
    config: Annotated[
        Path | None, typer.Option("--config", help="The TOML file; without it the defaults.")
    ] = None,
    default: Annotated[
        bool, typer.Option("--default", help="Print an example file: all keys, commented out.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what is in effect as JSON.")
    ] = False,
) -> None:
    """Print the configuration in effect as commented TOML, secrets hidden."""
    if default and not as_json:
        typer.echo(render_example(Config()), nl=False)
        return
    try:
        effective = Config() if default else load_config(config)
    except ConfigError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps(tomllib.loads(effective.describe()), indent=2))
    else:
        typer.echo(effective.describe(), nl=False)


def _report(file: Path, error: ConfigError, as_json: bool) -> None:
    if not as_json:
        count = len(error.problems)
        typer.echo(str(error), err=True)
        typer.echo(f"{count} problem{'s' if count > 1 else ''}", err=True)
        return
    problems = [
        {"source": problem.source, "key": problem.key, "text": problem.text}
        for problem in error.problems
    ]
    typer.echo(json.dumps({"file": str(file), "ok": False, "problems": problems}))
