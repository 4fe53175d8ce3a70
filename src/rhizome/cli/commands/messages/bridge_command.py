"""`rhizome bridge`: move messages from one cluster to another."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from rhizome.bridge import (
    BridgeEvent,
    BridgeSettings,
    Refused,
    follow_parameters,
    load_bridges,
    run_bridges,
)
from rhizome.bridge.bridge_events import FAILED, Report
from rhizome.bridge.settings import (
    CONFIRM_TIMEOUT_S_DEFAULT,
    DRAIN_S_DEFAULT,
    HOPS_MAX_DEFAULT,
    PREFETCH_DEFAULT,
    RETRY_S_MAX_DEFAULT,
)
from rhizome.bridge.shovel_supervisor import LOOK_S_DEFAULT, ShovelIntervals
from rhizome.cli import coroutine_runner
from rhizome.cli.commands.messages.shovel_parameter_reader import TIMEOUT_S, ParameterReader
from rhizome.cli.errors import CliError, UsageError, print_failure
from rhizome.cli.http_api.api_client import Api, endpoint
from rhizome.cli.output.printer import say
from rhizome.cli.shared_options import (
    HTTP_DEFAULT,
    HttpOption,
    PasswordOption,
    UserOption,
    parse_pairs,
)
from rhizome.shovel_parameters import split_uri

app = typer.Typer()


@app.command()
def bridge(
    source: Annotated[
        str,
        typer.Option(
            "--from", envvar="RHIZOME_BRIDGE_FROM", metavar="URI", help="Cluster to take from."
        ),
    ] = "",
    destination: Annotated[
        str,
        typer.Option(
            "--to", envvar="RHIZOME_BRIDGE_TO", metavar="URI", help="Cluster to bring to."
        ),
    ] = "",
    queue: Annotated[str, typer.Option("--queue", "-q", help="Queue to take from.")] = "",
    exchange: Annotated[
        str,
        typer.Option("--exchange", "-e", help="Exchange to take from, through a queue bridge.ID."),
    ] = "",
    key: Annotated[
        list[str] | None,
        typer.Option("--key", "-k", help="Binding key for --exchange; again for more; default #."),
    ] = None,
    to_queue: Annotated[
        str, typer.Option("--to-queue", help="Queue to bring to; default: as --queue.")
    ] = "",
    to_exchange: Annotated[
        str, typer.Option("--to-exchange", help="Exchange to bring to; default: as --exchange.")
    ] = "",
    to_key: Annotated[
        str | None, typer.Option("--to-key", help="Routing key instead of the message's own.")
    ] = None,
    name: Annotated[
        str, typer.Option("--id", metavar="NAME", help="Name of the bridge; default: its source.")
    ] = "",
    prefetch: Annotated[
        int, typer.Option("--prefetch", help="Messages under way at most; 1: strictly in order.")
    ] = PREFETCH_DEFAULT,
    dedup: Annotated[
        bool, typer.Option("--dedup/--no-dedup", help="Give messages an id that have none.")
    ] = True,
    content_ids: Annotated[
        bool,
        typer.Option("--content-ids", help="Make these ids from contents: equal ones are one."),
    ] = False,
    max_hops: Annotated[
        int, typer.Option("--max-hops", help="Bridges that a message may pass at most.")
    ] = HOPS_MAX_DEFAULT,
    refused: Annotated[
        Refused, typer.Option("--refused", help="What to do with what the other side won't take.")
    ] = Refused.KEEP,
    exclusive: Annotated[
        bool, typer.Option("--exclusive", help="Be the only consumer; a second bridge waits.")
    ] = False,
    argument: Annotated[
        list[str] | None,
        typer.Option("--argument", metavar="KEY=VALUE", help="Argument of the queue bridge.ID."),
    ] = None,
    from_name: Annotated[
        str,
        typer.Option("--from-name", help="Name of the source cluster, if it tells a wrong one."),
    ] = "",
    to_name: Annotated[str, typer.Option("--to-name", help="Name of the other cluster.")] = "",
    retry_s_max: Annotated[
        float, typer.Option("--retry-max", min=0.1, help="Longest pause between tries, seconds.")
    ] = RETRY_S_MAX_DEFAULT,
    confirm_timeout_s: Annotated[
        float,
        typer.Option("--confirm-timeout", min=1, help="Try another broker after so many seconds."),
    ] = CONFIRM_TIMEOUT_S_DEFAULT,
    drain_s: Annotated[
        float, typer.Option("--drain", min=0, help="Seconds for what is under way at a stop.")
    ] = DRAIN_S_DEFAULT,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="TOML file with several bridges."),
    ] = None,
    parameters: Annotated[
        bool,
        typer.Option("--parameters", help="Follow the shovels that a cluster has as parameters."),
    ] = False,
    own: Annotated[
        str,
        typer.Option(
            "--own",
            envvar="RHIZOME_BRIDGE_OWN",
            metavar="URI",
            help="Login for parameters that mean the cluster itself: amqp://user:password@",
        ),
    ] = "",
    tls_files: Annotated[
        Path | None,
        typer.Option(
            "--tls-files",
            envvar="RHIZOME_BRIDGE_TLS_FILES",
            metavar="DIRECTORY",
            help="Where parameters may name certificates and keys; without it: nowhere.",
        ),
    ] = None,
    look_s: Annotated[
        float, typer.Option("--look", min=0.1, help="Look at the parameters every so many seconds.")
    ] = LOOK_S_DEFAULT,
    http: HttpOption = HTTP_DEFAULT,
    user: UserOption = "",
    password: PasswordOption = "",
    status_s: Annotated[
        float, typer.Option("--status", min=0, help="Print counters every so many seconds; 0: not.")
    ] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print events as JSON lines.")] = False,
) -> None:
    """Move messages from one cluster to another, at least once, until it is stopped.

    Takes from a queue, or from an exchange by way of a durable queue of its own. A message is
    acknowledged at the source when the destination has confirmed it. SIGTERM and SIGINT wait for
    what is under way and end with 0; a second one ends at once. Addresses may list several brokers:
    amqp://user:password@b1:5672,b2:5672/vhost

    With --parameters there is a bridge for each parameter of the component `shovel` that the
    cluster at --http has, as RabbitMQ's tools set them; they are followed as they come and go.
    """
    settings = BridgeSettings(
        id=name or queue or exchange,
        source_uri=source,
        destination_uri=destination,
        queue=queue,
        exchange=exchange,
        keys=tuple(key or ()),
        to_queue=to_queue,
        to_exchange=to_exchange,
        to_key=to_key,
        prefetch=prefetch,
        dedup=dedup,
        content_ids=content_ids,
        hops_max=max_hops,
        refused=refused,
        exclusive=exclusive,
        arguments=parse_pairs("--argument", argument or [], guess_types=True),
        source_name=from_name,
        destination_name=to_name,
        retry_s_max=retry_s_max,
        confirm_timeout_s=confirm_timeout_s,
        drain_s=drain_s,
    )
    report = _printer(as_json)
    if parameters:
        _require_alone("--parameters", settings, config)
        reader = ParameterReader(Api(endpoint(http, user, password), TIMEOUT_S))
        work = follow_parameters(
            reader.read,
            report,
            template=settings,
            own_uri=_checked_own(own),
            tls_files="" if tls_files is None else str(tls_files.absolute()),
            status_s=status_s,
            pauses=ShovelIntervals(look_s),
        )
    else:
        work = run_bridges(_bridges(settings, config), report, status_s=status_s)
    raise typer.Exit(coroutine_runner.run(work))


def _bridges(settings: BridgeSettings, config: Path | None) -> list[BridgeSettings]:
    """The bridges of the file, or the one that the options describe."""
    if config is not None:
        _require_alone("--config", settings, None)
        return load_bridges(config)
    if not (settings.queue or settings.exchange):
        raise CliError(
            "give --queue or --exchange to take from, --config with bridges, or --parameters"
        )
    settings.check()
    return [settings]


def _require_alone(option: str, settings: BridgeSettings, config: Path | None) -> None:
    if config is not None:
        raise UsageError(f"{option} excludes --config")
    if settings.source_uri or settings.destination_uri or settings.queue or settings.exchange:
        raise UsageError(f"{option} excludes --from, --to, --queue and --exchange")


def _checked_own(uri: str) -> str:
    """Check a URI; errors don't quote it, since it has a password in it."""
    if uri and (not uri.startswith(("amqp://", "amqps://")) or not split_uri(uri).login):
        raise UsageError("--own: give it like amqp://user:password@ or amqp://user:password@b1,b2")
    return uri


def _printer(as_json: bool) -> Report:
    """Prints events, flushed: a log would get them late, or never after a kill."""

    def print_event(event: BridgeEvent) -> None:
        if as_json:
            say(event.json_line(int(time.time() * 1000)), flush=True)
        elif event.name == FAILED:
            print_failure(f"bridge {event.line()}")
        else:
            say(event.line(), flush=True)

    return print_event
