"""A whole broker of a cluster as a program on a simulated host, with an application inside.

The broker is composed as the server composes it (`server/composition.py`): its core, its node, its
links with their handshake, its journal and its cluster store, on a simulated network and disk.
Applications are connected to their own broker without a network, and die with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from rhizome.broker.access import AccessEpoch, OpenAuthenticator, Peer
from rhizome.broker.connection import Connection as ClientConnection
from rhizome.broker.stages import CLOSED
from rhizome.cluster.consensus import NEVER_MS, Rules
from rhizome.cluster.consensus.events import BecameRoot, Event, LeaseGained
from rhizome.cluster.handling import NodeObserver
from rhizome.cluster.link.link import CLOSED as LINK_CLOSED
from rhizome.cluster.link.link import Link
from rhizome.cluster.link.links import Adopter
from rhizome.cluster.link.peers import LinkSettings
from rhizome.cluster.storage import Entry
from rhizome.server.boot import make_log
from rhizome.server.cluster_section import ClusterSection, Primary
from rhizome.server.composition import Clustered, World, compose
from rhizome.server.config import Config
from rhizome.server.units import Address
from rhizome.testing.core import BugReports
from rhizome.testing.sim import observations as seen
from rhizome.testing.sim.application import Application
from rhizome.testing.sim.checkers import Watch
from rhizome.testing.sim.clusterstore import SimClusterStore
from rhizome.testing.sim.files import SimStore
from rhizome.testing.sim.network import Connection
from rhizome.testing.sim.process import Host, Program

KEY: Final = b"the key of a simulated cluster"
PORT: Final = 5672
WALL_START_MS: Final = 1_700_000_000_000
TICK_MS: Final = 100
DIGEST_CHARS: Final = 12


class Wire:
    """A simulated connection as a transport: of a client core until it turns out to be a link."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.client: ClientConnection | None = None
        self.link: Link | None = None


class ProgramObserver(NodeObserver):
    def __init__(self, program: BrokerProgram) -> None:
        self._program = program

    def event(self, event: Event) -> None:
        self._program.node_event(event)

    def applied(self, entry: Entry) -> None:
        self._program.entry_applied(entry)

    def bug(self, error: BaseException, where: str) -> None:
        raise error


class BrokerProgram(Program, Adopter):
    """One broker. Invariant: `wires` has one entry for each connection that is not over."""

    def __init__(
        self,
        host: Host,
        name: str,
        role: str,
        primaries: Sequence[str],
        watch: Watch,
        rules: Rules,
    ) -> None:
        super().__init__()
        self.host = host
        self.name = name
        self.watch = watch
        self.role = role
        self.observer = BugReports()
        self.wires: dict[tuple[int, bool], Wire] = {}
        self.application: Application | None = None
        self._tick_ms = host.now_ms()
        identity = host.chance("identity")
        self.cluster_store = SimClusterStore(
            host, f"{identity.getrandbits(128):032x}", self._written
        )
        if self.cluster_store.load().damage:
            self.cluster_store.set_aside()
        self.uuid = self.cluster_store.load().uuid
        self.store = SimStore(host, name.encode().ljust(16, b"-"), self)
        self.log = make_log(self.store)
        listed = tuple(Primary(each, Address(each, PORT)) for each in primaries)
        config = Config(users={}, cluster=ClusterSection(role=role, primaries=listed))
        config = replace(config, broker=replace(config.broker, name=name))
        world = World(
            self.store,
            self.log,
            self.cluster_store,
            self.observer,
            ProgramObserver(self),
            identity.getrandbits(256).to_bytes(32, "big"),
            host.chance("broker"),
            WALL_START_MS + host.now_ms(),
            host.now_ms(),
            rules,
        )
        self.clustered: Clustered = compose(
            config,
            world,
            OpenAuthenticator(),
            AccessEpoch(),
            KEY,
            f"machine of {name}",
            (str(Address(name, PORT)),),
            LinkSettings(),
        )
        self.broker = self.clustered.broker
        self.node = self.clustered.node
        self.links = self.clustered.links
        self.links.adopter = self
        self.incarnation_name = self.broker.incarnation

    # --- the program

    def started(self) -> None:
        self.watch.brokers[self.name] = self
        self.watch.see(seen.Started(self.name, self.uuid, self.role))
        self.node.when_ready.append(self._joined)
        self.node.recover()

    def _joined(self) -> None:
        if self.role != "witness":
            self.application = Application(self)

    def gone(self) -> None:
        self.watch.brokers.pop(self.name, None)
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
        self._begin()
        wire = self._wire(connection)
        if wire.link is not None:
            wire.link.receive(data)
        elif wire.client is not None:
            wire.client.receive(data)

    def writable(self, connection: Connection) -> None:
        wire = self._wire(connection)
        if wire.link is not None:
            wire.link.set_writable(True)

    def disconnected(self, connection: Connection, reason: str) -> None:
        self._begin()
        wire = self.wires.pop((connection.number, connection.dialled), None)
        if wire is None:
            return
        if wire.link is not None:
            wire.link.lost(reason)
        elif wire.client is not None:
            wire.client.lost()

    def tick(self, now_ms: int) -> None:
        self._begin()
        if now_ms >= self._tick_ms:
            self._tick_ms = now_ms + TICK_MS
            self.broker.tick(self.broker.turn.now_ms)
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
        self._begin()
        broker = self.broker
        while True:
            broker.end_turn()
            self.node.end_turn()
            if self.store.pending():
                self.broker.handed_over(self.store.submit())
                broker.submitted()
            self._flush()
            if not broker.turn.pending():
                break
        if self.observer.bugs:
            raise self.observer.bugs.pop()

    def _begin(self) -> None:
        now_ms = self.host.now_ms()
        self.broker.turn.now_ms = WALL_START_MS + now_ms
        self.node.begin(now_ms)

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
        for chunk in client.outbox.take():
            wire.connection.send(chunk)
        client.flushed()
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
        if self.wires.pop((connection.number, connection.dialled), None) is not None:
            connection.close()

    def _wire(self, connection: Connection) -> Wire:
        key = (connection.number, connection.dialled)
        if key not in self.wires:
            self.wires[key] = Wire(connection)
        return self.wires[key]

    def adopted(self, link: Link, port: object) -> None:
        assert isinstance(port, Wire)
        port.client = None
        port.link = link
        link.port = port

    # --- stores

    def _written(self, token: int) -> None:
        self._begin()
        self.node.written(token)

    def durable(self, token: int) -> None:
        self._begin()
        self.broker.synced(token)

    def alarm(self, text: str) -> None:
        raise AssertionError(f"a simulated store raised an alarm: {text}")

    def failed(self, error: BaseException) -> None:
        raise error

    # --- for checkers

    def node_event(self, event: Event) -> None:
        self.host.note(f"event {event}")
        if isinstance(event, BecameRoot):
            self.watch.see(seen.BecameRoot(self.name, event.term, self._entries()))
        elif isinstance(event, LeaseGained) and self.has_lease():
            self.watch.see(seen.LeaseGained(self.name))
            if self.node.consensus.is_root:
                self.watch.see(seen.Serves(self.name, self.node.consensus.term))

    def _entries(self) -> list[seen.Entry]:
        log = self.node.consensus.desk.ledger.log
        entries = log.between(log.start.index + 1, log.last_index)
        return [(entry.index, entry.term, _entry_digest(entry)) for entry in entries]

    def entry_applied(self, entry: Entry) -> None:
        digest = _entry_digest(entry)
        term = self.node.consensus.term
        self.watch.see(seen.Committed(self.name, entry.index, entry.term, digest, term))
        state = _digest(self.node.state.snapshot())
        self.watch.see(seen.Applied(self.name, entry.index, state))

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
        return self.node.consensus.desk.settings.root_lease_ms

    def explain(self) -> str:
        status = self.node.consensus.status()
        return (
            f"{status.role} in term {status.term}, root {status.root or 'unknown'}, applied "
            f"{self.applied_index()}, ready {self.node.ready}, waits for "
            f"{status.waits_for or 'nothing'}"
        )

    def soon(self, action: Callable[[], None]) -> None:
        self.host.soon(action)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGEST_CHARS]


def _entry_digest(entry: Entry) -> str:
    return _digest(bytes((entry.kind,)) + entry.payload)
