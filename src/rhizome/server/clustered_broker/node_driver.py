"""NodeDriver: a broker of a cluster on the event loop, with its node, links and cluster store.

The application (`broker_server.py`) runs a standalone broker and a clustered one alike; the
differences are here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from random import SystemRandom
from uuid import uuid4

from rhizome.broker.access.auth_interface import AccessEpoch, Authenticator
from rhizome.broker.group_log.local_group_log import LocalGroupLog
from rhizome.broker.observer import Observer
from rhizome.cluster.consensus.consensus_events import (
    BecameRoot,
    ClusterNamed,
    Event,
    IncarnationRetired,
    LeaseGained,
    LeaseLost,
    PeerRefused,
    Resigned,
    RootKnown,
    RootLost,
    VoterRests,
    VoterWakes,
)
from rhizome.cluster.consensus.log.cluster_store import ClusterStore, Image, MemoryClusterStore
from rhizome.cluster.link.cluster_key_proof import LinkKeys
from rhizome.cluster.link.link import Link
from rhizome.cluster.node_observer import NodeObserver
from rhizome.journal.files import make_directory
from rhizome.journal.salvaged_messages import SalvageManifest
from rhizome.journal.store import Store
from rhizome.listen_sockets import is_loopback
from rhizome.security.rate_limited_log import caused_by
from rhizome.security.tls import link_context
from rhizome.server.broker_bootstrap import SEED_BYTES
from rhizome.server.clustered_broker.broker_composition import Clustered, World, compose
from rhizome.server.clustered_broker.incarnation_file import remove_incarnation, write_incarnation
from rhizome.server.clustered_broker.link_driver import LinkDriver, monotonic_ms
from rhizome.server.clustered_broker.sqlite_cluster_store import SqliteClusterStore
from rhizome.server.config.broker_config import Config
from rhizome.server.config.cluster_section import ClusterSection, advertised, machine_id, read_keys
from rhizome.server.config.consensus_and_home_settings import link_settings
from rhizome.server.data_directory_check import STORE_DIRECTORY
from rhizome.server.event_loop.broker_driver import Shell

logger = logging.getLogger("rhizome.cluster")


class LogNodeObserver(NodeObserver):
    """Writes the node's events to the log. ``retired`` is called when this incarnation may never
    serve again."""

    def __init__(self, retired: Callable[[], None]) -> None:
        self._retired = retired

    def event(self, event: Event) -> None:
        if isinstance(event, IncarnationRetired):
            self._retired()
        elif isinstance(event, BecameRoot):
            logger.info("elected root in term %d", event.term)
        elif isinstance(event, RootKnown):
            logger.info("%s is root in term %d", event.name, event.term)
        elif isinstance(event, RootLost):
            logger.warning("the root %s is silent", event.name)
        elif isinstance(event, Resigned):
            logger.warning("resigned as root of term %d: %s", event.term, event.reason)
        elif isinstance(event, LeaseLost):
            logger.warning("isolated: deliveries, confirms and publishes wait for a lease")
        elif isinstance(event, LeaseGained):
            logger.info("holds a lease: serving")
        elif isinstance(event, ClusterNamed):
            logger.info("belongs to cluster %s", event.cluster_uuid)
        elif isinstance(event, VoterRests):
            logger.warning(
                "%s is away and doesn't count any more: %d vote now (last_man_standing)",
                event.name,
                event.voters,
            )
        elif isinstance(event, VoterWakes):
            logger.info("%s is back and counts again: %d vote now", event.name, event.voters)
        elif isinstance(event, PeerRefused):
            extra = caused_by(event.name)
            logger.error("refused broker %s: %s", event.name, event.reason, extra=extra)

    def link_up(self, name: str) -> None:
        logger.info("linked with %s", name)

    def link_down(self, name: str, reason: str) -> None:
        logger.warning("the link with %s is down: %s", name, reason)

    def link_problem(self, name: str, address: str, reason: str) -> None:
        extra = caused_by(name)
        logger.warning("no link with %s at %s: %s", name, address, reason, extra=extra)

    def reported(self, text: str) -> None:
        logger.warning("%s", text)

    def salvaged(self, about: SalvageManifest) -> None:
        logger.error(
            "%d messages of group %d, which its forced home %s doesn't have, were saved to"
            " salvage/%s in the data directory; see `rhizome salvage`",
            about.messages,
            about.group,
            about.home,
            about.name,
        )

    def bug(self, error: BaseException, where: str) -> None:
        extra = caused_by(type(error).__name__)
        logger.error("a fault of the broker itself at %s", where, exc_info=error, extra=extra)


class NodeDriver(LinkDriver):
    """Drives a node with its links, turn by turn (see ``rhizome.cluster.node``)."""

    def __init__(
        self,
        shell: Shell,
        clustered: Clustered,
        store: ClusterStore,
        loop: asyncio.AbstractEventLoop,
        tls: ssl.SSLContext | None,
        directory: Path | None,
    ) -> None:
        """``directory``: of the store; None if it is in memory."""
        super().__init__(shell, clustered.links, loop, tls)
        self.directory = directory
        self.node = clustered.node
        self.store = store

    def turn_began(self) -> None:
        super().turn_began()
        self.node.begin(int(self.links.now_ms))

    def turn_ending(self) -> None:
        self.node.end_turn()

    def ticked(self) -> None:
        self.node.tick()
        self.dial_due()

    def flush(self, link: Link) -> None:
        super().flush(link)
        self.node.flushed(link)

    def configure(self, config: Config) -> None:
        """Apply a new configuration, which differs only in what can change."""
        self.links.settings = link_settings(config.cluster, config.limits.message_bytes_max)

    def take_keys(self, keys: tuple[bytes, ...]) -> None:
        """Use these keys for proofs from here on; links made with other keys end, one after the
        other."""
        taken = LinkKeys(*keys)
        if taken.fingerprints != self.links.keys.fingerprints:
            logger.info("the cluster key has changed; keys that are taken now: %d", len(keys))
            self.links.keys = taken

    def written(self, token: int) -> None:
        """The cluster store has synced everything up to ``token``."""
        self.shell.begin_turn()
        self.node.written(token)

    async def leave(self) -> None:
        """Stop cleanly: give the lease back, so that nobody waits for it to expire."""
        self.shell.begin_turn()
        self.node.stop()
        self.turn_ended()
        await self.close("broker shut down")
        if self.directory is not None:
            remove_incarnation(self.directory)
        self.store.close()


def warn_of_plain_links(section: ClusterSection) -> None:
    """Warn of what somebody on the network path could do."""
    addresses = [primary.address for primary in section.primaries]
    away = [str(each) for each in addresses if not each.path and not _is_here(each.host)]
    if section.tls or not away:
        return
    logger.warning(
        "links between brokers are not encrypted, though their frames are authenticated: whoever"
        " is on the path to %s can read all messages. See cluster.tls",
        ", ".join(away),
    )
    if section.insecure_links:
        logger.warning(
            "cluster.insecure_links is on: whoever is on the path to a broker of release 0.1 can"
            " act as that broker. Set it to false once all are upgraded"
        )


def _is_here(host: str) -> bool:
    return host == "localhost" or is_loopback(host)


class ClusterHost:
    """Makes the clustered parts of an application.

    Invariant: ``driver`` is set once the shell exists; reports of the store before that are kept.
    """

    def __init__(
        self,
        config: Config,
        loop: asyncio.AbstractEventLoop,
        failed: Callable[[BaseException], None],
        retired: Callable[[], None],
    ) -> None:
        self.config = config
        self.loop = loop
        self.driver: NodeDriver | None = None
        self._failed = failed
        self._retired = retired
        self._tokens: list[int] = []
        self.store = self._open_store()

    def _open_store(self) -> ClusterStore:
        if self.config.broker.memory:
            return MemoryClusterStore(Image(uuid4().hex), self._report)
        directory = Path(self.config.broker.data) / STORE_DIRECTORY
        make_directory(directory.parent)
        return SqliteClusterStore(directory, self._report, self._report_failure)

    def _report(self, token: int) -> None:
        self.loop.call_soon_threadsafe(self._written, token)

    def _report_failure(self, error: Exception) -> None:
        self.loop.call_soon_threadsafe(self._failed, error)

    def _written(self, token: int) -> None:
        if self.driver is None:
            self._tokens.append(token)
        else:
            self.driver.written(token)

    def compose(
        self,
        store: Store,
        log: LocalGroupLog,
        applications: Authenticator,
        epoch: AccessEpoch,
        observer: Observer,
        wall_ms: int,
    ) -> Clustered:
        config = self.config
        section = config.cluster
        addresses = advertised(section, config.broker.name, config.listen.amqp)
        world = World(
            store,
            log,
            self.store,
            observer,
            LogNodeObserver(self._retired),
            os.urandom(SEED_BYTES),
            SystemRandom(),
            wall_ms,
            monotonic_ms(),
        )
        clustered = compose(
            config,
            world,
            applications,
            epoch,
            read_keys(section),
            machine_id(section),
            tuple(str(address) for address in addresses),
            link_settings(section, config.limits.message_bytes_max),
        )
        if not config.broker.memory:
            me = clustered.node.me
            write_incarnation(Path(config.broker.data), me.name, me.uuid, me.incarnation)
        clustered.node.recover()
        warn_of_plain_links(section)
        return clustered

    def drive(self, shell: Shell, clustered: Clustered) -> NodeDriver:
        tls = link_context(self.config.tls) if self.config.cluster.tls else None
        section = self.config.broker
        directory = None if section.memory else Path(section.data)
        self.driver = NodeDriver(shell, clustered, self.store, self.loop, tls, directory)
        tokens, self._tokens = self._tokens, []
        for token in tokens:
            self.driver.written(token)
        return self.driver
