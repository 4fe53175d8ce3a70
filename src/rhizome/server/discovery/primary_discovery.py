"""Primary discovery: the list of primaries of `cluster.discover = "dns:NAME"`.

The SRV records of `_amqp._tcp.NAME` (`_amqps._tcp.NAME` with cluster.tls) are the primaries and
witnesses: the first label of a target is the broker's name, target and port are where it is
dialled. Targets are dialled by name, so that a broker whose address has changed is found again.

A new cluster is founded by all of its primaries (R7), and a list that is read while some of them
are not yet in it would found a smaller one. So a broker with a new store waits until as many are
found as cluster.discover_count says. One that belongs to a cluster knows its members from its
store: it waits for its own record for a short time, and starts without it all the same.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from rhizome.errors import RhizomeError
from rhizome.server.clustered_broker.sqlite_cluster_store import read_image
from rhizome.server.config.broker_config import Config
from rhizome.server.config.cluster_section import (
    DISCOVER_DNS,
    SECONDARY,
    Primary,
    check_broker_name,
)
from rhizome.server.config.config_fields import SettingError
from rhizome.server.config.units import Address, format_duration
from rhizome.server.data_directory_check import STORE_DIRECTORY
from rhizome.server.discovery.srv_records import (
    DnsError,
    SrvRecord,
    find_srv,
    read_resolv_conf,
)

logger = logging.getLogger("rhizome.server")

ROUND_SECONDS_MAX: Final = 5.0
"""How long one look at the records may take."""
PAUSE_SECONDS: Final = 0.5
SAY_AGAIN_SECONDS: Final = 30.0
KNOWN_STORE_PATIENCE_MS: Final = 15_000
"""How long a broker that belongs to a cluster waits for its own record."""

Find = Callable[[str], Sequence[SrvRecord]]


class DiscoveryError(RhizomeError):
    """The primaries can't be found; the text says what to check."""


def service_of(config: Config) -> str:
    """The name whose SRV records are asked for."""
    name = config.cluster.discover.removeprefix(DISCOVER_DNS)
    if name.startswith("_"):
        return name
    return f"{'_amqps' if config.cluster.tls else '_amqp'}._tcp.{name}"


def belongs_to_cluster(config: Config) -> bool:
    """Whether the store has joined a cluster, so that the list no longer says who founds it (R7).

    A store that was only made, by a broker that ended before the founding, has not; nor can one
    that is damaged be known to have.
    """
    directory = Path(config.broker.data) / STORE_DIRECTORY
    if config.broker.memory or not directory.exists():
        return False
    return bool(read_image(directory).cluster_uuid)


def find_by_dns(service: str) -> list[SrvRecord]:
    """Blocks for ROUND_SECONDS_MAX at most."""
    return find_srv(service, ROUND_SECONDS_MAX, read_resolv_conf())


def with_primaries(config: Config, primaries: tuple[Primary, ...]) -> Config:
    """A configuration with the primaries that were found, if it is to find them."""
    if not config.cluster.discover:
        return config
    return replace(config, cluster=replace(config.cluster, primaries=primaries))


async def discover_primaries(config: Config, find: Find = find_by_dns) -> Config:
    """Wait until the primaries are found; the configuration with them.

    Raises DiscoveryError when cluster.discover_timeout has passed, or at once if the records
    contradict the configuration.
    """
    search = _Search(config, await asyncio.to_thread(belongs_to_cluster, config))
    deadline = time.monotonic() + search.patience_ms / 1000
    said_at = 0.0
    said = ""
    while True:
        await search.look(find)
        missing = search.missing()
        if not missing:
            break
        now = time.monotonic()
        if now >= deadline:
            search.give_up(missing)
            break
        if missing != said or now - said_at >= SAY_AGAIN_SECONDS:
            logger.info("looking for primaries at %s: %s", search.service, missing)
            said, said_at = missing, now
        await asyncio.sleep(PAUSE_SECONDS)
    names = ", ".join(map(str, search.found)) or "none"
    logger.info("primaries found at %s: %s", search.service, names)
    return with_primaries(config, search.found)


class _Search:
    """What was found in the last round, and what is still missing of it."""

    def __init__(self, config: Config, has_cluster: bool) -> None:
        section = config.cluster
        self.service = service_of(config)
        self.found: tuple[Primary, ...] = ()
        self._me = config.broker.name
        self._is_secondary = section.role == SECONDARY
        self._count = section.discover_count
        self._has_cluster = has_cluster
        self._failure = ""
        timeout_ms = section.discover_timeout_ms
        short = min(timeout_ms, KNOWN_STORE_PATIENCE_MS)
        self.patience_ms = short if self._has_cluster else timeout_ms

    async def look(self, find: Find) -> None:
        """One round. A failure is kept for `missing`; what was found before stays."""
        try:
            records = await asyncio.to_thread(find, self.service)
        except DnsError as error:
            self._failure = str(error)
            return
        self._failure = ""
        self.found = read_primaries(records)
        if self._is_secondary and self._me in self._names():
            raise DiscoveryError(
                f'cluster.role is "secondary", and {self.service} lists this broker, {self._me!r}:'
                " take it out of that service, or make it a primary"
            )
        if not self._is_secondary and not self._has_cluster and len(self.found) > self._count:
            raise DiscoveryError(
                f"{self.service} lists {len(self.found)} primaries ({', '.join(self._names())}),"
                f" cluster.discover_count is {self._count}: set it to the number of primaries and"
                " witnesses, the same at all of them; secondaries don't belong into that service"
            )

    def _names(self) -> list[str]:
        return [each.name for each in self.found]

    def missing(self) -> str:
        """What is still waited for, in words; empty if nothing is."""
        names = self._names()
        listed = f"listed: {', '.join(names) or 'none'}"
        if self._failure:
            return self._failure
        if self._is_secondary:
            return "" if names else "no primary is listed yet"
        if not self._has_cluster and len(names) < self._count:
            return f"{len(names)} of {self._count} primaries; {listed}"
        if self._me not in names:
            return f"this broker, {self._me!r}, is not in it; {listed}"
        return ""

    def give_up(self, missing: str) -> None:
        """Waiting is over. A broker of a cluster starts all the same."""
        if self._has_cluster:
            logger.warning(
                "%s: %s. The broker starts with what its store knows of the cluster",
                self.service,
                missing,
            )
            return
        waited = format_duration(self.patience_ms)
        raise DiscoveryError(
            f"no cluster was found at {self.service} within {waited}: {missing}. Check that the"
            f" SRV records exist (dig SRV {self.service}), that the first label of each target is"
            " the broker.name of that broker, that they list brokers which are not ready yet, and"
            " that cluster.discover_count is right"
        )


def read_primaries(records: Sequence[SrvRecord]) -> tuple[Primary, ...]:
    """The primaries that records name, sorted by name."""
    found: dict[str, Primary] = {}
    for record in records:
        name = record.target.partition(".")[0]
        primary = Primary(name, Address(record.target, record.port))
        try:
            check_broker_name(name)
        except SettingError as error:
            raise DiscoveryError(f"SRV target {record.target!r}: {error}") from None
        if not record.port:
            raise DiscoveryError(f"SRV target {record.target!r} has port 0, nobody listens there")
        if found.setdefault(name, primary) != primary:
            raise DiscoveryError(
                f"SRV records name {name!r} twice, {found[name].address} and {primary.address}:"
                " the first label of a target is the broker's name"
            )
    return tuple(found[name] for name in sorted(found))
