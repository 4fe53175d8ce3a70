"""`rhizome edge`: a broker beside an application, through which it uses a cluster."""

from __future__ import annotations

import re
import socket
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rhizome.cli.errors import CliError, UsageError, print_failure

if TYPE_CHECKING:
    from rhizome.server.config.broker_config import Config

app = typer.Typer()

LISTEN_DEFAULT: Final = "127.0.0.1:5672"
PORT_DEFAULT: Final = "5672"
NAME_CHARS_MAX: Final = 64


@app.command()
def edge(
    cluster: Annotated[
        str,
        typer.Option(
            "--cluster",
            metavar="HOST:PORT,...",
            help="Addresses of the cluster's primaries; one that answers is enough.",
        ),
    ] = "",
    cluster_key_file: Annotated[
        Path | None,
        typer.Option("--cluster-key-file", metavar="FILE", help="File with the cluster key."),
    ] = None,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where applications connect.")
    ] = LISTEN_DEFAULT,
    http: Annotated[
        str, typer.Option("--http", metavar="HOST:PORT", help="HTTP API; off if not given.")
    ] = "",
    name: Annotated[
        str, typer.Option("--name", help="Name of the edge.", show_default="edge-HOST")
    ] = "",
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="TOML file for everything else."),
    ] = None,
    log_level: Annotated[
        str | None, typer.Option("--log-level", help="debug, info, warning or error.")
    ] = None,
) -> None:
    """Run an edge: a broker on an application's own host, in the foreground.

    The application connects to 127.0.0.1 and to nothing else. The edge knows the cluster: when a
    broker dies, is drained or upgraded, the application sees a pause and no error, whatever client
    library it has. An edge keeps nothing on disk, holds no queue but private ones, and comes and
    goes without a change of the cluster's configuration.
    """
    from rhizome.server.config.config_fields import ConfigError

    overrides: dict[str, object] = {
        "broker.name": name or default_name(listen),
        "broker.memory": True,
        "listen.amqp": listen,
        "listen.http": [http] if http else [],
        "cluster.edge": True,
        "cluster.role": "secondary",
        "cluster.key_file": None if cluster_key_file is None else str(cluster_key_file),
        "log.level": log_level,
    }
    try:
        code = _run(config, overrides, [each for each in cluster.split(",") if each])
    except ConfigError as error:
        for problem in error.problems:
            print_failure(str(problem))
        code = 1
    raise typer.Exit(code)


def default_name(listen: str) -> str:
    """The name of the edge of this host that listens there: two edges of a host have two names."""
    host = re.sub(r"[^A-Za-z0-9.-]+", "-", socket.gethostname()) or "host"
    port = listen.rpartition(":")[2]
    ending = "" if port == PORT_DEFAULT else f"-{port}"
    return f"edge-{host}"[: NAME_CHARS_MAX - len(ending)] + ending


def _run(path: Path | None, overrides: dict[str, object], addresses: list[str]) -> int:
    from rhizome.server.broker_server import run
    from rhizome.server.config.broker_config import check_files, load_config

    if addresses:
        listed = [
            each if "=" in each else f"unnamed-{place}={each}"
            for place, each in enumerate(addresses)
        ]
        overrides["cluster.primaries"] = listed
    settings = load_config(path, overrides)
    if not settings.cluster.is_clustered:
        raise UsageError("--cluster: give the addresses of the cluster's primaries")
    check_files(settings, str(path or ""))
    if any("=" not in each for each in addresses):
        overrides["cluster.primaries"] = _named(settings)
        settings = load_config(path, overrides)
    return run(settings, partial(load_config, path, overrides))


def _named(settings: Config) -> list[str]:
    """The primaries that answer, with their names."""
    import asyncio

    from rhizome.errors import RhizomeError
    from rhizome.security.tls import link_context
    from rhizome.server.discovery.broker_name_lookup import answering_brokers

    addresses = [each.address for each in settings.cluster.primaries]
    try:
        tls = link_context(settings.tls) if settings.cluster.tls else None
    except RhizomeError as error:
        raise CliError(str(error)) from None
    found = asyncio.run(answering_brokers(addresses, tls, print_failure))
    return [str(each) for each in found]
