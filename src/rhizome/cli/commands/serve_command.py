"""`rhizome serve`: run one broker, or one for each core, in the foreground."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from rhizome.cli.errors import print_failure

app = typer.Typer()


@app.command()
def serve(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="TOML file to read.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the broker.")] = None,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="HOST:PORT", help="AMQP listener.")
    ] = None,
    http: Annotated[
        str | None, typer.Option("--http", metavar="HOST:PORT", help="HTTP API and console.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Directory of the store.")
    ] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="Keep nothing on disk: a restart loses all.")
    ] = False,
    cores: Annotated[
        int | None,
        typer.Option(
            "--cores",
            metavar="N",
            help="Brokers that share the listeners: this one and N-1 secondaries beside it.",
        ),
    ] = None,
    cluster_key_file: Annotated[
        Path | None,
        typer.Option("--cluster-key-file", metavar="FILE", help="File with the cluster key."),
    ] = None,
    primary: Annotated[
        list[str] | None,
        typer.Option(
            "--primary",
            metavar="NAME=HOST:PORT",
            help="A primary of the cluster, this broker too; once for each.",
        ),
    ] = None,
    discover: Annotated[
        str | None,
        typer.Option(
            "--discover",
            metavar="dns:NAME",
            help="Find the primaries by DNS.",
        ),
    ] = None,
    role: Annotated[
        str | None, typer.Option("--role", help="primary, secondary or witness.")
    ] = None,
    machine: Annotated[
        str | None, typer.Option("--machine", help="Name of what fails together with this broker.")
    ] = None,
    log_level: Annotated[
        str | None, typer.Option("--log-level", help="debug, info, warning or error.")
    ] = None,
) -> None:
    """Run one broker in the foreground.

    Prints one line that begins with `ready` when it accepts connections. SIGTERM and SIGINT close
    it cleanly; a second one ends it at once; SIGHUP reads configuration and certificates again.
    With --cores there is a process for each broker, and one that ends is started again. Options go
    before environment variables (RHIZOME_SECTION_KEY), those before the file.
    """
    from rhizome.server.config.broker_config import check_files, load_config
    from rhizome.server.config.config_fields import ConfigError

    overrides = {
        "broker.name": name,
        "listen.amqp": listen,
        "listen.http": http,
        "broker.data": None if data is None else str(data),
        "broker.memory": True if memory else None,
        "broker.cores": cores,
        "cluster.key_file": None if cluster_key_file is None else str(cluster_key_file),
        "cluster.primaries": primary or None,
        "cluster.discover": discover,
        "cluster.role": role,
        "cluster.machine": machine,
        "log.level": log_level,
    }
    try:
        settings = load_config(config, overrides)
        check_files(settings, str(config or ""))
    except ConfigError as error:
        for problem in error.problems:
            print_failure(str(problem))
        raise typer.Exit(1) from None
    from rhizome.server.broker_server import run, run_core, say
    from rhizome.server.multi_core.core_supervisor import run_cores

    read_again = partial(load_config, config, overrides)
    if settings.broker.cores > 1:
        raise typer.Exit(run_cores(settings, run_core, say, read_again))
    raise typer.Exit(run(settings, read_again))
