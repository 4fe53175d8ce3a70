"""A whole broker of a cluster as a program on a simulated host.

The broker is composed as the server composes it (`server/clustered_broker/broker_composition.py`):
its core, its node, its links with their handshake, its journal and its cluster store, on a
simulated network and disk. Applications connect over the network; one may be embedded, which needs
no network and dies with the broker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from rhizome.amqp.frames import body_of as body_of_content
from rhizome.broker.access.auth_interface import AccessEpoch, OpenAuthenticator, Peer
from rhizome.broker.connection.connection import Connection as ClientConnection
from rhizome.broker.connection.connection_states import CLOSED, CLOSING
from rhizome.broker.queue.queue import Queue
from rhizome.cluster.consensus import NEVER_MS, Rules
from rhizome.cluster.consensus.consensus_events import BecameRoot, Event, LeaseGained, LeaseLost
from rhizome.cluster.consensus.log.cluster_store import Entry
from rhizome.cluster.link.accepted_link_port import ConnectionAdopter
from rhizome.cluster.link.link import CLOSED as LINK_CLOSED
from rhizome.cluster.link.link import Link
from rhizome.cluster.link.peers import LinkSettings
from rhizome.cluster.node_observer import NodeObserver
from rhizome.journal.errors import CorruptRecord, CorruptStore
from rhizome.journal.records import (
    RECORD_HEADER_BYTES,
    check_record,
    content_bytes_at,
    tail_at,
    u16_at,
    u32_at,
)
from rhizome.journal.store import StoreOptions
from rhizome.server.alarms_and_compaction import Maintenance
from rhizome.server.broker_bootstrap import make_log
from rhizome.server.clustered_broker.broker_composition import Clustered, World, compose
from rhizome.server.config.broker_config import Config
from rhizome.server.config.cluster_section import ClusterSection, Primary
from rhizome.server.config.units import Address
from rhizome.testing.in_memory_broker import BugReports
from rhizome.testing.sim.apps.app_program import id_of
from rhizome.testing.sim.apps.embedded_app import Application
from rhizome.testing.sim.brokers.group_contents import copies_missing_at, holdings_of, kept_at
from rhizome.testing.sim.brokers.stream_contents import StreamContents, streams_of
from rhizome.testing.sim.checkers.checker import Watch
from rhizome.testing.sim.checkers.fault_timeline import lease, pair
from rhizome.testing.sim.checkers.group_copy_checkers import GroupContents
from rhizome.testing.sim.events import application_events as told
from rhizome.testing.sim.events import broker_events as seen
from rhizome.testing.sim.faults.broken_rules import break_rules
from rhizome.testing.sim.world.sim_cluster_store import SimClusterStore
from rhizome.testing.sim.world.sim_host import Host, Program
from rhizome.testing.sim.world.sim_journal_store import SimStore
from rhizome.testing.sim.world.sim_network import Connection

KEY: Final = b"the key of a simulated cluster"
PORT: Final = 5672
WALL_START_MS: Final = 1_700_000_000_000
TICK_MS: Final = 100
MAINTENANCE_MS: Final = 1_000
DIGEST_CHARS: Final = 12


@dataclass(frozen=True)
class BrokerOptions:
    """How a broker is set up, and who uses it."""

    has_application: bool = True
    """An embedded application."""
    tells_traffic: bool = False
    """Whether to report where homes are, and what is wrong with links and leases."""
    compares_every: int = 1
    """After how many entries the state is to be compared with that of others; it takes time."""
    store: StoreOptions = field(default_factory=StoreOptions)
    resident_budget_bytes: int = 0
    """0: the usual."""
    broken: Sequence[str] = ()
    """Rules to break on purpose (`broken_rules.py`)."""


class Wire:
    """A simulated connection as a transport: of a client core until it turns out to be a link."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.client: ClientConnection | None = None
        self.link: Link | None = None
        self.is_over = False


class ProgramObserver(NodeObserver):
    def __init__(self, program: BrokerProgram) -> None:
        self._program = program

    def event(self, event: Event) -> None:
        self._program.node_event(event)

    def applied(self, entry: Entry) -> None:
        self._program.entry_applied(entry)

    def link_up(self, name: str) -> None:
        self._program.link_changed(name, True)

    def link_down(self, name: str, reason: str) -> None:
        self._program.link_changed(name, False)

    def bug(self, error: BaseException, where: str) -> None:
        raise error


class _MaintenanceShell:
    """What maintenance needs of a shell; the current turn does the rest."""

    def __init__(self, program: BrokerProgram) -> None:
        self._program = program

    def begin_turn(self) -> None:
        pass

    def submit(self) -> None:
        self._program.submit()


class BrokerProgram(Program, ConnectionAdopter):
    """One broker. Invariant: `wires` has one entry for each connection that is not over."""

    def __init__(
        self,
        host: Host,
        name: str,
        role: str,
        primaries: Sequence[str],
        watch: Watch,
        rules: Rules,
        options: BrokerOptions | None = None,
    ) -> None:
        super().__init__()
        self.options = options or BrokerOptions()
        self.host = host
        self.name = name
        self.watch = watch
        self.role = role
        self.observer = BugReports()
        self.wires: dict[Connection, Wire] = {}
        self.application: Application | None = None
        self._tick_ms = host.now_ms()
        identity = host.chance("identity")
        self.cluster_store = SimClusterStore(
            host, f"{identity.getrandbits(128):032x}", self._written
        )
        if self.cluster_store.load().damage:
            self.cluster_store.set_aside()
        self.uuid = self.cluster_store.load().uuid
        self.store = self._open_store()
        self.log = make_log(self.store)
        listed = tuple(Primary(each, Address(each, PORT)) for each in primaries)
        config = Config(users={}, cluster=ClusterSection(role=role, primaries=listed))
        config = replace(config, broker=replace(config.broker, name=name))
        if self.options.resident_budget_bytes:
            budget = self.options.resident_budget_bytes
            config = replace(config, memory=replace(config.memory, resident_budget_bytes=budget))
        world = World(
            self.store,
            self.log,
            self.cluster_store,
            self.observer,
            ProgramObserver(self),
            identity.getrandbits(256).to_bytes(32, "big"),
            host.chance("broker"),
            WALL_START_MS + host.wall_ms(),
            host.now_ms(),
            rules,
        )
        self.clustered: Clustered = compose(
            config,
            world,
            OpenAuthenticator(),
            AccessEpoch(),
            (KEY,),
            f"machine of {name}",
            (str(Address(name, PORT)),),
            LinkSettings(),
        )
        self.broker = self.clustered.broker
        self.node = self.clustered.node
        self.links = self.clustered.links
        self.links.adopter = self
        break_rules(self.node, self.options.broken)
        self.incarnation_name = self.broker.incarnation
        shell = cast(Any, _MaintenanceShell(self))
        self.maintenance = Maintenance(config, self.broker, self.store, shell)
        self._maintain_ms = host.now_ms() + MAINTENANCE_MS
        self._told_groups: dict[int, object] = {}
        self._told_queues = 0

    def _open_store(self) -> SimStore:
        """A person must accept what a damaged journal has lost; here it is accepted at once. A
        journal that no bit has flipped in must open by itself, whatever happened to the power."""
        uuid = self.name.encode().ljust(16, b"-")
        try:
            return SimStore(self.host, uuid, self, self.options.store)
        except CorruptStore as damage:
            if not self.host.disk.flips:
                raise
            self.host.note(f"accepts: {damage}")
            accepting = replace(self.options.store, accept_corruption=True)
            return SimStore(self.host, uuid, self, accepting)

    # --- the program

    def woken(self) -> None:
        self.broker.turn.now_ms = WALL_START_MS + self.host.wall_ms()
        self.node.begin(self.host.now_ms())

    def started(self) -> None:
        self.watch.brokers[self.name] = self
        self.watch.see(seen.Started(self.name, self.uuid, self.role))
        if not self.options.store.flush.waits:
            self.watch.see(seen.JournalOpened(self.name, self.store.end_found()))
        self.node.when_ready.append(self._joined)
        self.node.recover()

    def _joined(self) -> None:
        if self.options.tells_traffic:
            self._disturbed(f"down {self.name}", self.name, False)
        if self.role != "witness" and self.options.has_application:
            self.application = Application(self)

    def gone(self) -> None:
        self.watch.brokers.pop(self.name, None)
        if self.options.tells_traffic:
            self.watch.see(told.ProgramEnded(self.name))
            self._disturbed(f"down {self.name}", self.name, True)
        if self.application is not None:
            self.application.gone()

    def accepted(self, connection: Connection) -> None:
        wire = self._wire(connection)
        wire.client = self.broker.connect(repr(connection), Peer(connection.remote, 1, True))
        wire.client.port = wire

    def connected(self, connection: Connection) -> None:
        link = self._wire(connection).link
        if link is not None:
            link.connected()

    def received(self, connection: Connection, data: bytes) -> None:
        wire = self._wire(connection)
        if wire.link is not None:
            wire.link.receive(data)
        elif wire.client is not None:
            wire.client.receive(data)

    def writable(self, connection: Connection) -> None:
        wire = self._wire(connection)
        if wire.link is not None:
            wire.link.set_writable(True)
        elif wire.client is not None:
            wire.client.set_writable(True)
            wire.client.touch()

    def disconnected(self, connection: Connection, reason: str) -> None:
        wire = self.wires.pop(connection, None)
        if wire is None:
            return
        if wire.link is not None:
            wire.link.lost(reason)
        elif wire.client is not None:
            wire.client.lost()
            self._lets_go(wire)

    def tick(self, now_ms: int) -> None:
        if now_ms >= self._tick_ms:
            self._tick_ms = now_ms + TICK_MS
            self.broker.tick(self.broker.turn.now_ms)
        if now_ms >= self._maintain_ms:
            self._maintain_ms = now_ms + MAINTENANCE_MS
            self._maintain()
        self.node.tick()
        for link in self.links.wants_dial():
            connection = self.host.dial(link.address.partition(":")[0])
            wire = self._wire(connection)
            wire.link = link
            link.port = wire
        if self.application is not None:
            self.application.tick(now_ms)

    def next_deadline_ms(self) -> int:
        own = NEVER_MS if self.application is None else self.application.next_ms
        return min(self._tick_ms, self.node.next_deadline_ms(), own)

    def turn(self) -> None:
        broker = self.broker
        while True:
            broker.end_turn()
            self.node.end_turn()
            self.submit()
            self._flush()
            if not broker.turn.pending():
                break
        if self.observer.bugs:
            raise self.observer.bugs.pop()

    def submit(self) -> None:
        """Hand what was appended to the disk."""
        if self.store.pending():
            self.broker.handed_over(self.store.submit())
            self.broker.submitted()

    def _maintain(self) -> None:
        """As the server does, but for alarms that look at the real machine."""
        self.maintenance.compact()
        if self.store.checkpoint_due():
            self.maintenance.checkpoint()

    def _flush(self) -> None:
        connections = self.broker.turn.connections
        self.broker.turn.connections = []
        for connection in connections:
            port = connection.port
            if isinstance(port, Wire):
                self._flush_client(port)
            elif self.application is not None and port is self.application:
                self.application.flush()
        while touched := self.links.take_touched():
            for link in touched:
                self._flush_link(link)

    def _flush_client(self, wire: Wire) -> None:
        client = wire.client
        if client is None:
            return
        if not client.writable and client.stage != CLOSED:
            client.flushed()
            return
        for chunk in client.outbox.take():
            client.sent_bytes += len(chunk)
            client.last_sent_ms = self.broker.turn.now_ms
            if not wire.connection.send(chunk):
                client.set_writable(False)
        client.flushed()
        if client.stage >= CLOSING:
            self._lets_go(wire)
        if client.stage == CLOSED:
            self._close(wire)

    def _flush_link(self, link: Link) -> None:
        wire = link.port
        if isinstance(wire, Wire):
            while link.writable and (chunks := link.next_output()):
                for chunk in chunks:
                    if not wire.connection.send(chunk):
                        link.set_writable(False)
        link.flushed()
        self.node.flushed(link)
        if isinstance(wire, Wire) and link.stage == LINK_CLOSED:
            self._close(wire)

    def _close(self, wire: Wire) -> None:
        connection = wire.connection
        if self.wires.pop(connection, None) is not None:
            connection.close()
            if wire.client is not None:
                self._lets_go(wire)

    def _lets_go(self, wire: Wire) -> None:
        if self.options.tells_traffic and not wire.is_over:
            wire.is_over = True
            self.watch.see(told.ConnectionLetGo(self.name, wire.connection.number))

    def _wire(self, connection: Connection) -> Wire:
        wire = self.wires.get(connection)
        if wire is None:
            wire = self.wires[connection] = Wire(connection)
        return wire

    def adopted(self, link: Link, port: object) -> None:
        assert isinstance(port, Wire)
        port.client = None
        port.link = link
        link.port = port

    # --- stores

    def _written(self, token: int) -> None:
        self.node.written(token)

    def durable(self, token: int) -> None:
        if not self.options.store.flush.waits:
            self.watch.see(seen.JournalAt(self.name, self.store.written, self.store.synced))
        self.broker.synced(token)

    def alarm(self, text: str) -> None:
        if text:
            self.broker.block(text)
        else:
            self.broker.unblock()

    def failed(self, error: BaseException) -> None:
        raise error

    # --- for checkers

    def node_event(self, event: Event) -> None:
        if self.host.traced:
            self.host.note(f"event {event}")
        if isinstance(event, BecameRoot):
            self.watch.see(seen.BecameRoot(self.name, event.term, self._entries()))
        elif isinstance(event, LeaseGained) and self.has_lease():
            self.watch.see(seen.LeaseGained(self.name))
            if self.node.consensus.is_root:
                self.watch.see(seen.Serves(self.name, self.node.consensus.term))
        if self.options.tells_traffic and isinstance(event, (LeaseGained, LeaseLost)):
            places = f"{self.name} {lease(self.name)}"
            self._disturbed(f"isolated {self.name}", places, isinstance(event, LeaseLost))

    def link_changed(self, name: str, up: bool) -> None:
        if self.options.tells_traffic:
            place = pair(self.name, name)
            self._disturbed(f"link {self.name}-{name}", place, not up)
            if not up:
                self.watch.see(told.Struck("link", place))

    def _disturbed(self, key: str, places: str, begins: bool) -> None:
        if begins:
            self.watch.see(told.Disturbed(key, places))
        else:
            self.watch.see(told.Undisturbed(key))

    def _entries(self) -> list[seen.Entry]:
        log = self.node.consensus.state.persistent.log
        entries = log.between(log.start.index + 1, log.last_index)
        return [(entry.index, entry.term, _entry_digest(entry)) for entry in entries]

    def entry_applied(self, entry: Entry) -> None:
        digest = _entry_digest(entry)
        term = self.node.consensus.term
        self.watch.see(seen.Committed(self.name, entry.index, entry.term, digest, term))
        if entry.index % self.options.compares_every == 0:
            state = _digest(self.node.state.snapshot())
            self.watch.see(seen.Applied(self.name, entry.index, state))
        if self.options.tells_traffic:
            self._tell_groups()

    def _tell_groups(self) -> None:
        """Report where homes are and which queues they have, as far as it is new to this broker."""
        for number, group in self.node.state.groups.groups.items():
            if self._told_groups.get(number) is group:
                continue
            self._told_groups[number] = group
            members = " ".join(f"{each.broker}:{each.copy}" for each in group.in_sync)
            self.watch.see(
                told.GroupAt(
                    number, group.home, group.incarnation, group.epoch, group.version, members
                )
            )
        shared = self.broker.shared
        if len(shared) != self._told_queues:
            self._told_queues = len(shared)
            for queue in shared.values():
                self.watch.see(told.QueueIn(queue.name, int(queue.definition.group)))

    def applied_index(self) -> int:
        return int(self.node.applied.index)

    def incarnation(self) -> str:
        return self.incarnation_name

    def has_lease(self) -> bool:
        return self.node.consensus.holds_lease(self.host.now_ms())

    def serves_as_root(self) -> bool:
        return self.node.consensus.is_root and self.has_lease()

    def disk_silence_ms(self) -> int:
        return (self.watch.world.now_us - self.host.disk.synced_us) // 1_000

    def root_lease_ms(self) -> int:
        return self.node.consensus.state.settings.root_lease_ms

    def contents(self) -> dict[str, list[str]]:
        """The ids of the messages in each queue that is active here, held ones included."""
        shared = self.broker.shared.values()
        active = [queue for queue in shared if queue.away is None and queue.worker is None]
        return {queue.name: [id_of(body) for body in bodies(queue)] for queue in active}

    def contents_of(self, name: str, epoch: int) -> list[str] | None:
        """The ids of the messages in a shared queue; None if this broker isn't its home in that
        epoch."""
        for queue in self.broker.shared.values():
            if queue.name == name and queue.away is None and queue.worker is None:
                if queue.log.epoch == epoch:
                    return [id_of(body) for body in bodies(queue)]
        return None

    def depths(self) -> dict[str, str]:
        """What each queue that is active here and not empty has; group outboxes and prepared
        transactions of groups among them."""
        queues = [*self.broker.shared.values(), *self.broker.internal.values()]
        return {
            queue.name: f"{queue.ready} ready, {queue.unacked} unacked, {queue.consumer_count} "
            f"consumers"
            for queue in queues
            if queue.away is None and queue.stream is None and queue.ready + queue.unacked > 0
        }

    def places_on_disk(self) -> list[tuple[int, int]]:
        """Segment and offset of the last byte of each message that is on disk only, under the last
        checkpoint: a start doesn't look at it."""
        indexes = [index for _, index in self.node.roles.passive_indexes()]
        for queue in self.broker.shared.values():
            indexes.extend(lane.paged for lane in queue.lanes)
        found: list[tuple[int, int]] = []
        for index in indexes:
            for _, position in index.positions():
                record = self._record_at(position)
                if record:
                    at = int(tail_at(record, 0))
                    end = at + int(u16_at(record, at - 2)) + 4 + int(content_bytes_at(record, 0))
                    # Behind the body is the end octet of its frame.
                    found.append((position >> 32, (position & 0xFFFFFFFF) + end - 2))
        return found

    def _record_at(self, position: int) -> bytes:
        """The record of a message in the journal, under its checkpoint; empty if it isn't there."""
        if position >= self.store.journal._kept_from:
            return b""
        segment, offset = position >> 32, position & 0xFFFFFFFF
        header = self.store.read(segment, offset, RECORD_HEADER_BYTES)
        size = RECORD_HEADER_BYTES + int(u32_at(header, 0))
        record = self.store.read(segment, offset, size)
        return record if check_record(record, 0) == size else b""

    def kept(self) -> list[str]:
        """What is kept here for clients and edges that are away."""
        return kept_at(self.node)

    def holdings(self) -> list[GroupContents]:
        """What there is of each group here, as home or as a copy."""
        return holdings_of(self.node)

    def streams(self) -> list[StreamContents]:
        """The logs of streams that there are here."""
        return streams_of(self.node)

    def copies_missing(self) -> list[str]:
        """What is wrong with the groups whose home this broker is."""
        return copies_missing_at(self.node)

    def explain(self) -> str:
        status = self.node.consensus.status()
        return (
            f"{status.role} in term {status.term}, root {status.root or 'unknown'}, applied "
            f"{self.applied_index()}, ready {self.node.ready}, waits for "
            f"{status.waits_for or 'nothing'}"
        )

    def soon(self, action: Callable[[], None]) -> None:
        self.host.soon(action)


def bodies(queue: Queue) -> list[bytes]:
    """The bodies of all messages in a queue, in memory, on disk or with a consumer."""
    messages = [message for lane in queue.lanes for message in lane.resident()]
    messages.extend(queue.broker.unacked_messages(queue))
    contents = [bytes(message.content) for message in messages]
    for lane in queue.lanes:
        for _, position in lane.paged.positions():
            try:
                contents.append(bytes(queue.broker.pager.read_one(position).content))
            except CorruptRecord:
                # It is in the queue, but its body can't be read.
                continue
    return [body_of_content(content) for content in contents]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGEST_CHARS]


def _entry_digest(entry: Entry) -> str:
    return _digest(bytes((entry.kind,)) + entry.payload)
