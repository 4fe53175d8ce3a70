"""The two sides of `rhizome adopt`: their URIs, and what their HTTP APIs tell."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

from rhizome.adopt.errors import AdoptionError, SiteUnavailable
from rhizome.adopt.queue_listing import Listing, QueueCounts, QueueKey, read_queues
from rhizome.adopt.queue_probe import QueueProbe
from rhizome.cli.commands.resources.definitions_command import brokers_of
from rhizome.cli.errors import CliError, UsageError
from rhizome.cli.http_api.api_addresses import PORT_DEFAULT
from rhizome.cli.http_api.api_client import Api, Row, endpoint, path
from rhizome.cli.shared_options import JsonOption, checked_uri
from rhizome.client import ClientError, parse_uris
from rhizome.errors import AmqpError
from rhizome.shovel_parameters import split_uri

T = TypeVar("T")

LOOK_SECONDS_MAX: Final = 15.0
DEFINITIONS_SECONDS_MAX: Final = 900.0
"""An export or import of a large installation takes a while."""
QUEUE_COLUMNS: Final = (
    "name,vhost,type,arguments,exclusive,auto_delete,messages,messages_unacknowledged,"
    "message_stats.publish_details.rate"
)
CONSUMER_COLUMNS: Final = "queue,consumer_tag"
CONNECTION_COLUMNS: Final = "user,peer_host,client_properties"


class Site:
    """One side, RabbitMQ or Rhizome: both have the same HTTP API."""

    def __init__(self, option: str, uri: str, http: str) -> None:
        self._option = option
        self.uri = _resolved(option, uri)
        checked_uri(self.uri)
        if not split_uri(self.uri).hosts:
            raise UsageError(
                f"{option}: give the address of a broker with user and password, or env:NAME or"
                " file:/path where it is"
            )
        addresses = parse_uris(self.uri)
        self.label = ",".join(address.label for address in addresses)
        self.user = addresses[0].user
        self.where = endpoint(_http_address(option, self.uri, http))

    @cached_property
    def _api(self) -> Api:
        return Api(self.where, LOOK_SECONDS_MAX)

    @cached_property
    def _slow_api(self) -> Api:
        """For requests about all definitions."""
        return Api(self.where, DEFINITIONS_SECONDS_MAX)

    def definitions(self) -> Row:
        with self._failures():
            return self._slow_api.row(path("definitions"))

    def import_definitions(self, document: Row) -> None:
        with self._failures():
            self._slow_api.send("POST", path("definitions"), document)

    def brokers(self) -> int:
        """How many primaries it has; of Rhizome only."""
        with self._failures():
            return brokers_of(self._api)

    def queues(self) -> dict[QueueKey, QueueCounts]:
        """All queues with the consumers that applications have."""
        consumers = self._rows("consumers", CONSUMER_COLUMNS)
        return read_queues(self._rows("queues", QUEUE_COLUMNS), consumers)

    def connections(self) -> list[Row]:
        return self._rows("connections", CONNECTION_COLUMNS)

    def _rows(self, kind: str, columns: str) -> list[Row]:
        with self._failures():
            return self._api.rows(f"{path(kind)}?columns={columns}")

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Name the options of this side in what other commands say of theirs."""
        try:
            yield
        except CliError as error:
            text = str(error).replace("--http", f"{self._option}-http")
            text = text.replace("--user and --password", f"another login in {self._option}")
            raise CliError(text) from None


def _resolved(option: str, uri: str) -> str:
    """A URI, or what the variable (env:NAME) or the file (file:/path) has that it names."""
    kind, _, name = uri.partition(":")
    if kind not in ("env", "file"):
        return uri
    try:
        found = os.environ[name] if kind == "env" else Path(name).read_text(encoding="utf-8")
    except KeyError:
        raise UsageError(f"{option} {uri}: there is no variable {name}; export it") from None
    except OSError as error:
        raise UsageError(f"{option} {uri}: {error.strerror}") from None
    return found.strip()


def _http_address(option: str, uri: str, http: str) -> str:
    """The address of the HTTP API: as given, else the hosts of the URI; with the URI's login."""
    parts = split_uri(uri)
    if "@" in http:
        return http
    if not http and parts.scheme != "amqp":
        raise UsageError(f"{option}-http: give the HTTP API too, like https://host:15671")
    scheme, _, hosts = http.rpartition("://") if http else ("http", "", _http_hosts(parts.hosts))
    login = f"{parts.login}@" if parts.login else ""
    return f"{scheme or 'http'}://{login}{hosts}"


def _http_hosts(hosts: str) -> str:
    """`a:5672,b` as `a:15672,b:15672`."""
    without = [_without_port(each) for each in hosts.split(",")]
    return ",".join(f"{each}:{PORT_DEFAULT}" for each in without)


def _without_port(host: str) -> str:
    return host if host.endswith("]") or ":" not in host else host.rpartition(":")[0]


UriAt = Annotated[
    str,
    typer.Option(
        "--from",
        envvar="RHIZOME_ADOPT_FROM",
        metavar="URI",
        help="RabbitMQ: amqp://user:password@host:5672, env:NAME or file:/path.",
    ),
]
UriTo = Annotated[
    str,
    typer.Option("--to", envvar="RHIZOME_ADOPT_TO", metavar="URI", help="Rhizome, given alike."),
]
HttpAt = Annotated[
    str,
    typer.Option(
        "--from-http",
        metavar="HOST:PORT,...",
        help="HTTP API of RabbitMQ.",
        show_default="port 15672 of --from",
    ),
]
HttpTo = Annotated[
    str,
    typer.Option(
        "--to-http",
        metavar="HOST:PORT,...",
        help="HTTP API of Rhizome.",
        show_default="port 15672 of --to",
    ),
]


@dataclass
class Sites:
    """Both sides. Its fields are options of the commands."""

    source_uri: UriAt = field(default="", repr=False)
    target_uri: UriTo = field(default="", repr=False)
    source_http: HttpAt = ""
    target_http: HttpTo = ""
    as_json: JsonOption = False

    @cached_property
    def source(self) -> Site:
        return Site("--from", self.source_uri, self.source_http)

    @cached_property
    def target(self) -> Site:
        return Site("--to", self.target_uri, self.target_http)


class ListingReader:
    """Reads the queues of both sides, in threads, since it waits.

    A refusal at the first look ends the command: a wrong password. Later, anything may pass.
    """

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self._was_read = False
        self._probe = QueueProbe(sites.source.uri)

    async def read(self) -> Listing:
        """Raises SiteUnavailable, or AdoptionError at the first look."""
        source, target = await asyncio.gather(
            self._ask("RabbitMQ", self._sites.source.queues),
            self._ask("Rhizome", self._sites.target.queues),
        )
        self._was_read = True
        return Listing(source, target)

    async def source_consumers(self, keys: list[QueueKey]) -> dict[QueueKey, int]:
        """Asked over AMQP; nothing is told while the source can't be asked."""
        try:
            found = await self._probe.look(keys)
        except (ClientError, AmqpError, OSError):
            return {}
        return {key: each.consumers for key, each in found.items()}

    async def close(self) -> None:
        await self._probe.close()

    async def _ask(self, who: str, question: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(question)
        except CliError as error:
            kind = SiteUnavailable if self._was_read else AdoptionError
            raise kind(f"{who}: {error}") from None
