"""BrokerServer: puts a broker together, serves, and stops it cleanly.

Start: open the store, restore the core, listen, print ``ready``. Stop: accept no new connections,
close clients with 320 CONNECTION_FORCED, write everything, and give the store a clean checkpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import uvloop

from rhizome.broker.access.application_cluster_token import ApplicationTokens
from rhizome.broker.access.auth_interface import AccessEpoch, Peer
from rhizome.broker.broker import Broker
from rhizome.broker.fault_log import FAULT_TASK
from rhizome.broker.group_log.local_group_log import LocalGroupLog
from rhizome.broker.metadata.metadata_commands import PutUser
from rhizome.build_info import describe
from rhizome.errors import RhizomeError
from rhizome.journal.files import MemoryFiles
from rhizome.journal.store import JournalStore, MemoryStore, Store, StoreOptions
from rhizome.journal.writer import ALWAYS, NEVER, Flush
from rhizome.listen_sockets import bind, bind_unix, is_loopback
from rhizome.management.metrics.slow_turns import SlowTurns
from rhizome.security.login_service import LoginService
from rhizome.security.password_check_queue import AT_ONCE_MAX
from rhizome.security.tls import ListenerTls, certificate_names, link_context
from rhizome.security.token_login import EXPIRED, TokenAuthenticator
from rhizome.server.alarms_and_compaction import Maintenance
from rhizome.server.allocator_and_file_limits import (
    connections_possible,
    raise_open_files_limit,
    tune_malloc,
)
from rhizome.server.broker_bootstrap import SEED_BYTES, apply_limits, make_broker, make_log
from rhizome.server.config.broker_config import Config
from rhizome.server.config.cluster_section import read_keys
from rhizome.server.config.config_reload import Reloader
from rhizome.server.config.units import Address
from rhizome.server.data_directory_check import check_data_directory
from rhizome.server.event_loop.broker_driver import ClientProtocol, Shell
from rhizome.server.event_loop.busy_poll import BusyPoll
from rhizome.server.event_loop.watchdog import Watchdog
from rhizome.server.known_login_addresses_file import KnownLoginsFile
from rhizome.server.log_output import (
    LogObserver,
    audit_of,
    configure_audit,
    configure_logging,
    configure_logs_again,
    flush_logs,
    log_handlers,
)
from rhizome.server.role_change_commands import Hooks, roles_of
from rhizome.server.startup_errors import report_startup_error

# Modules that only some brokers need are imported there: a standalone broker starts a third faster.
if TYPE_CHECKING:
    from rhizome.cluster.node import Node
    from rhizome.management.api_context import Context
    from rhizome.management.http_service import HttpService
    from rhizome.server.clustered_broker.broker_composition import Clustered
    from rhizome.server.clustered_broker.node_driver import ClusterHost, NodeDriver
    from rhizome.server.clustered_broker.peer_rpc import PeerRpc
    from rhizome.server.token_issuers.jwks_fetch import IssuerKeyFetcher

logger = logging.getLogger("rhizome.server")

TICK_S: Final = 0.025
MAINTENANCE_S: Final = 1.0
EXPIRY_S: Final = 0.25
"""How often the broker looks for connections whose access token has expired."""
BACKLOG: Final = 4096
CLOSE_GRACE_S: Final = 3.0
GC_THRESHOLDS: Final = (20_000, 10, 1000)
"""The thresholds of the garbage collector's generations. A visit to 200,000 objects takes tens of
milliseconds, for which everybody waits; a full collection practically never happens. No work per
message makes cycles."""


def run(config: Config, read_again: Callable[[], Config] | None = None) -> int:
    """Run a broker until it is told to stop; return the exit code of the process.

    ``read_again`` reads the configuration, as on SIGHUP.
    """
    configure_logging(config.log)
    return _run(BrokerServer(config, say, read_again))


def run_core(
    config: Config, announce: Callable[[str], None], read_again: Callable[[], Config]
) -> int:
    """Like `run`, for one of the brokers that share this machine's listeners."""
    configure_logging(config.log, config.broker.name)
    return _run(BrokerServer(config, announce, read_again, shares_listeners=True))


def _run(application: BrokerServer) -> int:
    prepare_process()
    try:
        return uvloop.run(application.serve())
    except (RhizomeError, OSError) as error:
        return report_startup_error(error, application.config)


def prepare_process() -> None:
    """Set up the allocator and the garbage collector for many small, acyclic messages, and allow as
    many open files as possible: each connection is one."""
    gc.set_threshold(*GC_THRESHOLDS)
    tune_malloc()
    raise_open_files_limit()


class BrokerServer:
    """One broker process. Invariant: ``stopping`` is set once; a second signal ends the process.

    ``announce`` gets the `ready` line, ``read_again`` reads the configuration on SIGHUP. A broker
    that shares its listeners accepts connections only once it is ready: until then the other
    brokers get them.
    """

    def __init__(
        self,
        config: Config,
        announce: Callable[[str], None],
        read_again: Callable[[], Config] | None,
        shares_listeners: bool = False,
    ) -> None:
        self.config = config
        self.announce = announce
        self.shares_listeners = shares_listeners
        self.audit = audit_of(config)
        self.reloader = Reloader(
            config,
            None if read_again is None else lambda: self._keep_primaries(read_again()),
            self._configure,
            self._load_certificates,
            self.audit.reload,
        )
        self._sharing: asyncio.Task[None] | None = None
        self.stopping = asyncio.Event()
        self.gone = asyncio.Event()
        self.failure: BaseException | None = None
        self.servers: list[asyncio.Server] = []
        self.addresses: list[str] = []
        self.store: Store
        self.broker: Broker
        self.shell: Shell | None = None
        self.host: ClusterHost | None = None
        self.driver: NodeDriver | None = None
        self.colleagues: PeerRpc | None = None
        self.http: HttpService | None = None
        self.tls: list[ListenerTls] = []
        self.slow_turns = SlowTurns()
        self.watchdog: Watchdog | None = None
        self.hooks = Hooks(config.hooks, config.broker.name)
        self.bearers: TokenAuthenticator
        self.key_fetcher: IssuerKeyFetcher | None = None

    async def serve(self) -> int:
        loop = asyncio.get_running_loop()
        if self.config.cluster.discover:
            await self._discover_primaries()
        if self.config.cluster.is_clustered:
            from rhizome.server.clustered_broker.death_messenger import report_predecessor

            report_predecessor(self.config)
        self._take_tokens(loop)
        self.store = self._open_store(loop)
        try:
            self._open(loop)
        except BaseException:
            self.store.close(None)  # its threads would keep the process
            raise
        assert self.shell is not None
        try:
            await self._listen_for_links(loop)
            if not self.shares_listeners:
                await self._listen(loop)
            self._handle_signals(loop)
            http = await self._serve_http(loop)
            self._take_process(self.shell)
            if self.driver is None or self.driver.node.ready:
                self._is_ready(http)
            else:
                self.driver.node.when_ready.append(lambda: self._is_ready(http))
                logger.info("%s, broker %r joins its cluster", describe(), self.config.broker.name)
            await self._run_until_stopped(loop)
        finally:
            await self._close(loop)
        return 1 if self.failure is not None else 0

    def _take_tokens(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read the keys of access tokens, and begin to fetch those that come over the network: they
        are likely to be here when the store is open."""
        self.bearers = TokenAuthenticator(self.config.oauth.provider_settings())
        self._fetch_keys(loop)

    def _fetch_keys(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start to fetch the keys of issuers that are due."""
        issuers = self.bearers.issuers()
        if not issuers:
            return
        if self.key_fetcher is None:
            from rhizome.server.token_issuers.jwks_fetch import IssuerKeyFetcher

            self.key_fetcher = IssuerKeyFetcher(loop.call_soon_threadsafe, wall_clock_ms)
        self.key_fetcher.start_due(issuers)

    def _handle_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        loop.add_signal_handler(signal.SIGHUP, self.reloader.reload)

    def _take_process(self, shell: Shell) -> None:
        """Set up what there is once in a process: garbage collector, watchdog and its timer."""
        gc.collect()
        gc.freeze()
        self.watchdog = Watchdog(shell.stopwatch, self.slow_turns, wall_clock_ms)
        self.watchdog.configure(self.config.broker.slow_turn_ms)
        self.watchdog.after_look = self._time_a_wake_up
        self.watchdog.start(TICK_S)

    def _time_a_wake_up(self) -> None:
        """In the watchdog's thread: have busy polling see how long it takes to wake the loop up."""
        assert self.shell is not None
        busy_poll = self.shell.busy_poll
        if busy_poll.wants_probe():
            self.shell.loop.call_soon_threadsafe(busy_poll.woken, time.monotonic_ns())

    async def _discover_primaries(self) -> None:
        from rhizome.server.discovery.primary_discovery import discover_primaries

        self.config = self.reloader.config = await discover_primaries(self.config)

    def _keep_primaries(self, config: Config) -> Config:
        """A configuration that was read again, with the primaries that were found at the start."""
        from rhizome.server.discovery.primary_discovery import with_primaries

        return with_primaries(config, self.config.cluster.primaries)

    # ---- putting it together --------------------------------------------------------------------

    def _open(self, loop: asyncio.AbstractEventLoop) -> None:
        config = self.config
        check_data_directory(config, self.store.recovered)
        configure_audit(config)
        log = make_log(self.store)
        epoch = AccessEpoch()
        records = StateRecords()
        authenticator = self.login = LoginService(
            records, epoch, config.login_settings(), verify_async=self._verify_aside(loop)
        )
        authenticator.bearers = self.bearers if self.bearers.providers else None
        observer = self.observer = LogObserver(self.gone.set, self.audit)
        clustered: Clustered | None = None
        if config.cluster.is_clustered:
            from rhizome.server.clustered_broker.node_driver import ClusterHost

            self.host = ClusterHost(config, loop, self.failed, self.retired)
            clustered = self.host.compose(
                self.store, log, authenticator, epoch, observer, wall_clock_ms()
            )
            self.broker = clustered.broker
        else:
            self.broker = make_broker(
                config,
                self.store,
                log,
                authenticator,
                epoch,
                observer,
                wall_clock_ms(),
                os.urandom(SEED_BYTES),
            )
        records.broker = self.broker
        busy_poll = busy_poll_of(config, loop)
        self.shell = Shell(
            self.broker, self.broker.cluster, self.store, loop, wall_clock_ms, busy_poll
        )
        if self.host is not None and clustered is not None:
            from rhizome.server.clustered_broker.peer_rpc import PeerRpc

            self.driver = self.host.drive(self.shell, clustered)
            self.colleagues = PeerRpc(self.shell, self.driver.node)
        self.maintenance = Maintenance(config, self.broker, self.store, self.shell)
        self._remember_logins()
        self._report_recovery(log)
        self.shell.begin_turn()

    def _remember_logins(self) -> None:
        """Remember where users have logged in from, and store better hashes of the passwords that
        they prove: in the whole cluster, if there is one."""
        self.known_logins = KnownLoginsFile(self.config, self.login.known)
        if self.driver is not None:
            gossip = self.driver.node.gossip
            gossip.known_logins = self.login.known
            self.login.upgrade = gossip.upgrade_password
        else:
            self.login.upgrade = partial(upgrade_password, self.broker)

    def _open_store(self, loop: asyncio.AbstractEventLoop) -> Store:
        config = self.config
        options = StoreOptions(
            segment_bytes_max=config.journal.segment_size_bytes,
            spill_segment_bytes_max=config.journal.segment_size_bytes,
            flush=flush_policy(config),
        )

        def hand_over(work: Callable[[], None]) -> None:
            loop.call_soon_threadsafe(work)

        if config.broker.memory:
            return MemoryStore(MemoryFiles(), os.urandom(16), self, hand_over, options)
        return JournalStore(Path(config.broker.data), os.urandom(16), self, hand_over, options)

    def _report_recovery(self, log: LocalGroupLog) -> None:
        recovered = self.store.recovered
        count = sum(queue.count for queue in recovered.queues.values())
        ready = sum(
            int(getattr(queue, "ready", 0))
            for vhost in self.broker.state.vhosts.values()
            for queue in vhost.destinations.values()
        )
        if recovered.records or recovered.snapshot:
            logger.info(
                "store opened: %d messages, %d records replayed, stopped %s, %d torn bytes dropped",
                count or ready,
                recovered.records,
                "cleanly" if recovered.clean else "without closing",
                recovered.torn_bytes,
            )
        if self.store.stopped_unsynced():
            logger.warning(
                "the broker was not stopped cleanly, and journal.flush is %s: if the machine lost"
                " power, what was confirmed since the last sync is lost",
                self.config.journal.flush,
            )
        if self.driver is None:
            recovered.queues.clear()
        recovered.commands.clear()

    def _verify_aside(
        self, loop: asyncio.AbstractEventLoop
    ) -> Callable[[Callable[[], bool], Callable[[bool], None]], None]:
        """Password hashes are slow on purpose: verify them in threads of their own."""
        threads = self._examiners = ThreadPoolExecutor(AT_ONCE_MAX, "passwords")

        def verify(work: Callable[[], bool], done: Callable[[bool], None]) -> None:
            def finish(future: asyncio.Future[bool]) -> None:
                assert self.shell is not None
                self.shell.begin_turn()
                done(not future.cancelled() and future.exception() is None and future.result())

            loop.run_in_executor(threads, work).add_done_callback(finish)

        return verify

    async def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Open the listeners for applications, and for links unless those have their own."""
        for address in self.config.listen.amqp:
            await self._listen_for_applications(loop, address, None)
        if self.config.listen.tls:
            context = self._tls(self.config.tls.verify_client)
            for address in self.config.listen.tls:
                await self._listen_for_applications(loop, address, context)

    def _tls(self, verify_client: str) -> ssl.SSLContext:
        """The TLS context of a listener, whose certificates are kept up to date."""
        made = ListenerTls(self.config.tls, verify_client)
        self.tls.append(made)
        return made.context

    async def _listen_for_applications(
        self, loop: asyncio.AbstractEventLoop, address: Address, context: ssl.SSLContext | None
    ) -> None:
        sockets = bind(address.host, address.port, "AMQP", self.shares_listeners)
        for sock in sockets:
            name, port = sock.getsockname()[:2]
            host = f"[{name}]" if ":" in name else name
            self.addresses.append(f"{'amqps' if context else 'amqp'}://{host}:{port}")
        await self._take_connections(loop, sockets, str(address), context)

    async def _listen_for_links(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self.shell is not None
        self.shell.connections_max = connections_possible(self.config.http.connections_max)
        secured = self.config.cluster.tls and self.config.listen.links
        context = self._tls(self.config.tls.verify_client) if secured else None
        for address in self.config.listen.links:
            if address.path:
                protocol = self._protocol(str(address), False)
                sock = bind_unix(address.path)
                self.servers.append(await loop.create_unix_server(protocol, sock=sock))
            else:
                sockets = bind(address.host, address.port, "links")
                await self._take_connections(loop, sockets, str(address), context)

    async def _take_connections(
        self,
        loop: asyncio.AbstractEventLoop,
        sockets: list[socket.socket],
        local: str,
        context: ssl.SSLContext | None,
    ) -> None:
        timeout_s = self.config.limits.handshake_timeout_ms / 1000
        for sock in sockets:
            server = await loop.create_server(
                self._protocol(local, context is not None),
                sock=sock,
                ssl=context,
                backlog=BACKLOG,
                ssl_handshake_timeout=timeout_s if context else None,
                ssl_shutdown_timeout=CLOSE_GRACE_S if context else None,
            )
            self.servers.append(server)

    def _protocol(self, local: str, tls: bool) -> Callable[[], Any]:
        assert self.shell is not None
        shell = self.shell

        def protocol() -> Any:
            return ClientProtocol(shell, local, tls, peer_of)

        return protocol

    async def _serve_http(self, loop: asyncio.AbstractEventLoop) -> list[str]:
        listen = self.config.listen
        if not (listen.http or listen.https) and self.driver is None:
            return []
        from rhizome.management.http_service import HttpService

        assert self.shell is not None
        tls = self._tls(self.config.tls.verify_browser) if listen.https else None
        self.http = HttpService(
            self.config, self.broker, self.shell, self.login, self.store, tls=tls
        )
        self.http.context.audit = self.audit
        self.http.context.slow_turns = self.slow_turns
        self.http.context.logs = log_handlers()
        self.http.context.issuers = self.bearers.issuers
        if self.driver is not None:
            self._show_cluster(self.http.context, self.driver.node)
        addresses = await self.http.start()
        if self.colleagues is not None:
            self.http.context.others = self.colleagues
            self.colleagues.answer = self.http.respond
        return addresses

    def _show_cluster(self, context: Context, node: Node) -> None:
        from rhizome.server.operator_views.cluster_view_and_control import NodeControl, NodeView
        from rhizome.server.operator_views.copy_and_transaction_stalls import copy_stalls, tx_stalls

        context.view = NodeView(node, self.config)
        context.control = NodeControl(node)
        context.stall_sources += [partial(copy_stalls, node), partial(tx_stalls, node)]

    def _is_ready(self, http: list[str]) -> None:
        if self.shares_listeners:
            loop = asyncio.get_running_loop()
            self._sharing = loop.create_task(self._share_listeners(loop, http))
        else:
            self._say_ready(http)

    async def _share_listeners(self, loop: asyncio.AbstractEventLoop, http: list[str]) -> None:
        try:
            await self._listen(loop)
            self._say_ready(http)
        except OSError as error:
            logger.critical("cannot listen, stopping: %s", error)
            self.failure = error
            self.stopping.set()

    def _say_ready(self, http: list[str]) -> None:
        for faulty in self.broker.state.faulty_patterns():
            logger.warning("%s; it fits nothing until it is set again or deleted", faulty)
        self.announce(self._ready_line(http))
        logger.info("%s, broker %r is ready", describe(), self.config.broker.name)

    def _ready_line(self, http: list[str]) -> str:
        return " ".join(["ready", self.config.broker.name, *self.addresses, *http])

    # ---- running --------------------------------------------------------------------------------

    async def _run_until_stopped(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self.shell is not None
        next_maintenance = loop.time() + MAINTENANCE_S
        next_expiry = loop.time() + EXPIRY_S
        while not self.stopping.is_set():
            try:
                await asyncio.wait_for(self.stopping.wait(), TICK_S)
            except TimeoutError:
                self._run_task("the tick", self.shell.tick)
                self._run_task("the tick of the store", self.shell.store.tick)
                self._run_task("the tick of the alarms", self.maintenance.tick)
                if self.hooks.has_commands:
                    self._run_task("hooks", self._observe_roles)
            if loop.time() >= next_expiry:
                next_expiry = loop.time() + EXPIRY_S
                self._run_task("expired tokens", self._close_expired)
                self._run_task("keys of access tokens", lambda: self._fetch_keys(loop))
            if loop.time() >= next_maintenance:
                next_maintenance = loop.time() + MAINTENANCE_S
                self.shell.step_began("maintenance")
                self._run_task("maintenance", self.maintenance.run)
                self._run_task("the count of connections", self._report_turned_away)
                self._run_task("the reading of changed files", self.reloader.check_files)
                self._run_task("known logins", lambda: self.known_logins.save_aside(loop))
                self.shell.step_ended()

    def _run_task(self, name: str, task: Callable[[], object]) -> None:
        """Run a periodic task; a fault in it must not end the broker."""
        try:
            task()
        except Exception as error:
            assert self.shell is not None
            self.shell.broker.report_bug(error, name, FAULT_TASK)

    def _report_turned_away(self) -> None:
        assert self.shell is not None
        if self.shell.turned_away:
            logger.warning(
                "%d connections were closed, those that had not logged in first: %d are possible"
                " with the limit of open files; raise it (ulimit -n, LimitNOFILE)",
                self.shell.turned_away,
                self.shell.connections_max,
            )
            self.shell.turned_away = 0

    def _observe_roles(self) -> None:
        self.hooks.observe(roles_of(self.driver.node if self.driver else None))

    def _close_expired(self) -> None:
        """Close connections whose access token has expired and was not renewed."""
        for connection in self.observer.expiries.expired():
            assert self.shell is not None
            self.shell.begin_turn()
            connection.force_close(EXPIRED)

    def _configure(self, config: Config) -> None:
        """Apply a new configuration, which differs only in what can change."""
        self.config = config
        self.hooks.settings = config.hooks
        configure_logs_again(config, config.broker.name if self.shares_listeners else "")
        self.audit.topology = config.audit.topology
        apply_limits(self.broker.limits, config)
        self.broker.pager.budget_bytes = config.memory.resident_budget_bytes
        self.maintenance.configure(config)
        if self.watchdog is not None:
            self.watchdog.configure(config.broker.slow_turn_ms)
        self.login.configure(config.login_settings())
        if self.driver is not None:
            self.driver.configure(config)
        if self.http is not None:
            self.http.context.config = config

    def _load_certificates(self, config: Config) -> None:
        """Load the certificates for new connections, those of clients and the links that this
        broker dials, and the keys of the cluster and of access tokens."""
        section = config.cluster
        keys = read_keys(section) if section.is_clustered or section.demand_key else ()
        providers = self.bearers.prepare(config.oauth.provider_settings())
        links = link_context(config.tls) if config.cluster.tls else None
        for listener in self.tls:
            listener.load(config.tls)
        if self.driver is not None:
            self.driver.tls = links
            self.driver.take_keys(keys)
        self.broker.cluster.demand(ApplicationTokens(section.demand_key, keys))
        self.bearers.adopt(providers)
        self.login.bearers = self.bearers if providers else None

    def _signalled(self, number: int) -> None:
        if self.stopping.is_set():
            logger.warning("second signal: stopping at once, the store is not closed cleanly")
            flush_logs()
            os._exit(128 + number)
        logger.info("stopping on %s", signal.Signals(number).name)
        self.stopping.set()

    async def _close(self, loop: asyncio.AbstractEventLoop) -> None:
        if self.watchdog is not None:
            self.watchdog.stop()
        for server in self.servers:
            server.close()
        await self.hooks.close()
        if self.http is not None:
            await self.http.stop()
        shell = self.shell
        if shell is None:
            return
        await self.known_logins.close()
        self._examiners.shutdown(wait=False, cancel_futures=True)
        shell.begin_turn()
        for connection in list(self.broker.connections.values()):
            connection.force_close("broker shut down: reconnect, or connect to another broker")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._all_gone(), CLOSE_GRACE_S)
        for connection in list(self.broker.connections.values()):
            shell.begin_turn()
            connection.lost()
        await asyncio.sleep(0)
        if self.driver is not None:
            await self.driver.leave()
        self.broker.end_turn()
        shell.submit()
        self.store.close(None if self.failure else self.maintenance.build_checkpoint())

    async def _all_gone(self) -> None:
        """Every client has closed its connection."""
        while self.broker.connections:
            self.gone.clear()
            await self.gone.wait()

    # ---- events of the store --------------------------------------------------------------------

    def durable(self, token: int) -> None:
        if self.shell is not None:
            self.shell.durable(token)

    def alarm(self, text: str) -> None:
        self.maintenance.disk_alarm = text
        self.maintenance.check_alarms()

    def failed(self, error: BaseException) -> None:
        """The disk no longer stores what we confirm: stop, rather than confirm what is not safe."""
        logger.critical("the store failed, stopping: %s", error)
        self.failure = error
        self.stopping.set()

    def retired(self) -> None:
        """This incarnation may never serve again: it was declared dead (R15), or was away for too
        long. The next start of the broker is a new one."""
        logger.critical(
            "the cluster has ended this incarnation of broker %r, stopping: start it again",
            self.config.broker.name,
        )
        self.failure = IncarnationEnded()
        self.stopping.set()


class IncarnationEnded(RhizomeError):
    """The cluster has ended this incarnation of the broker."""


class StateRecords:
    """The users and permissions of the broker's state, which may be replaced while it boots."""

    broker: Broker | None = None

    @property
    def users(self) -> Any:
        assert self.broker is not None
        return self.broker.state.users

    @property
    def permissions(self) -> Any:
        assert self.broker is not None
        return self.broker.state.permissions

    @property
    def topic_permissions(self) -> Any:
        assert self.broker is not None
        return self.broker.state.topic_permissions


def flush_policy(config: Config) -> Flush:
    if config.journal.flush == "always":
        return ALWAYS
    if config.journal.flush == "never":
        return NEVER
    return Flush(config.journal.flush_interval_ms)


def peer_of(transport: Any, tls: bool) -> Peer:
    """The peer of a transport; at a Unix socket, a process on this machine."""
    name = transport.get_extra_info("peername")
    if not isinstance(name, tuple):
        return Peer("unix", 0, True, tls, "", "")
    host, port = str(name[0]), int(name[1])
    subject, common_name = (
        certificate_names(transport.get_extra_info("peercert")) if tls else ("", "")
    )
    return Peer(host, port, is_loopback(host), tls, subject, common_name)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def upgrade_password(broker: Broker, user: str, before: str, after: str) -> None:
    """Replace the hash of a standalone broker's user, unless it has changed meanwhile."""
    record = broker.state.users.get(user)
    if record is not None and record.password_hash == before:
        broker.cluster.propose(PutUser(user, after, record.kind, record.tags), None)


def busy_poll_of(config: Config, loop: asyncio.AbstractEventLoop) -> BusyPoll:
    window_us, percent = config.broker.busy_poll_us, config.broker.busy_poll_budget_percent
    return BusyPoll(loop, window_us, time.monotonic_ns, os.sched_yield, percent)


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000
