"""A cluster of broker cores without sockets, threads or clock, and without faults of its own.

`CoreCluster` runs whole brokers over pipes that deliver at once, on stores in memory and a clock
that only `advance` moves. Clients are those of `in_memory_broker.py`, each on a broker of its own
choice.

    cluster = make_cluster(3)
    client = cluster["b2"].connect()
    client.declare("q")

For faults, delays and randomness there is the simulator (`rhizome.testing.sim`); this is for tests
that want to say exactly what happens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, Final

from rhizome.broker.access.auth_interface import AccessEpoch, OpenAuthenticator, Peer
from rhizome.broker.connection.connection import Connection
from rhizome.broker.connection.connection_states import CLOSED
from rhizome.broker.queue.queue import Queue
from rhizome.cluster.consensus.log.cluster_store import Image, MemoryClusterStore
from rhizome.cluster.link.accepted_link_port import ConnectionAdopter
from rhizome.cluster.link.link import CLOSED as LINK_CLOSED
from rhizome.cluster.link.link import Link
from rhizome.cluster.link.peers import LinkSettings
from rhizome.cluster.node_observer import NodeObserver
from rhizome.journal.files import MemoryFiles
from rhizome.journal.store import MemoryStore, StoreOptions
from rhizome.journal.writer import ALWAYS
from rhizome.server.broker_bootstrap import make_log
from rhizome.server.clustered_broker.broker_composition import Clustered, World, compose
from rhizome.server.config.broker_config import Config
from rhizome.server.config.cluster_section import ClusterSection, Primary
from rhizome.server.config.units import Address
from rhizome.testing.in_memory_broker import START_MS, BugReports, CoreClient

KEY: Final = b"the key of a cluster in a test"
TICK_MS: Final = 25
PORT_FIRST: Final = 1000
TURNS_MAX: Final = 10_000


class PipeEnd:
    """One end of a pipe between two members: what came in waits until its owner's turn."""

    def __init__(self, owner: Member) -> None:
        self.owner = owner
        self.other: PipeEnd | None = None
        self.connection: Connection | None = None
        self.link: Link | None = None
        self.incoming: list[bytes] = []
        self.ended = False

    def write(self, chunks: list[bytes]) -> None:
        if self.other is not None and not self.other.ended:
            self.other.incoming.extend(chunks)

    def close(self) -> None:
        """Break the pipe; the other end learns of it behind what was written."""
        self.ended = True
        other, self.other = self.other, None
        if other is not None:
            other.other = None
            other.owner.busy = True

    def flush(self) -> None:
        """Take the outbox of a connection that isn't a link yet."""
        if self.connection is None:
            return
        self.write(self.connection.outbox.take())
        self.connection.flushed()
        if self.connection.stage == CLOSED:
            self.close()


class MemberStore(MemoryStore):
    """Tells what the flush policy counts as durable; while its disk is held nothing is synced."""

    held = False
    _written = 0
    _on_disk = 0

    def _durable(self, token: int, synced: int) -> None:
        self._written = token
        if not self.held:
            self._on_disk = synced
        if not self.held or not self.options.flush.waits:
            super()._durable(token, self._on_disk)

    def let_go(self) -> None:
        if self.held:
            self.held = False
            self._durable(self._written, self._written)


class MemberObserver(NodeObserver):
    def __init__(self, member: Member) -> None:
        self.member = member

    def bug(self, error: BaseException, where: str) -> None:
        self.member.observer.bugs.append(error)


class Member(ConnectionAdopter):
    """One broker of the cluster. Invariant: as for `Core`: between calls no turn is under way."""

    def __init__(self, cluster: CoreCluster, name: str, config: Config) -> None:
        super().__init__()
        self.cluster = cluster
        self.name = name
        self.config = config
        self.files = MemoryFiles()
        self.image = Image(cluster.make_uuid())
        self.starts = 0
        self.running = False
        self.busy = False
        self.flush_policy = ALWAYS
        """When its journal is synced, from its next start on."""
        self.start()

    def start(self) -> None:
        """Start it, again if it was killed, on what it has written."""
        self.starts += 1
        self.running = True
        self.observer = BugReports()
        self._synced: list[Callable[[], None]] = []
        self._lost: list[Connection] = []
        self._tokens: list[int] = []
        self.ends: list[PipeEnd] = []
        self.cluster_store = MemoryClusterStore(self.image, self._tokens.append)
        self._disk = MemberStore(
            self.files,
            self.name.encode().ljust(16, b"-"),
            self,
            self._synced.append,
            StoreOptions(flush=self.flush_policy),
        )
        self.store: MemoryStore = self._disk
        self.log = make_log(self.store)
        world = World(
            self.store,
            self.log,
            self.cluster_store,
            self.observer,
            MemberObserver(self),
            f"{self.name} {self.starts}".encode().ljust(32, b"."),
            Random(f"{self.name} {self.starts}"),
            self.now_ms,
            self.cluster.elapsed_ms,
        )
        self.clustered: Clustered = compose(
            self.config,
            world,
            OpenAuthenticator(),
            AccessEpoch(),
            (KEY,),
            f"machine of {self.name}",
            self._addresses(),
            LinkSettings(),
        )
        self.broker = self.clustered.broker
        self.node = self.clustered.node
        self.links = self.clustered.links
        self.links.adopter = self
        self.node.recover()

    def _addresses(self) -> tuple[str, ...]:
        """What it tells the others: an edge nothing."""
        section = self.config.cluster
        is_edge = section.edge and section.role == "secondary"
        return () if is_edge else (str(self.cluster.address_of(self.name)),)

    def kill(self) -> None:
        """End it at once, as a crash would; its disk keeps what was written."""
        self.running = False
        self.image = self.cluster_store.image
        for end in self.ends:
            end.close()
        self.ends = []
        self.cluster.settle()

    def hold_disk(self) -> None:
        """Let its disk write, and complete no sync."""
        self._disk.held = True

    def let_disk_go(self) -> None:
        self._disk.let_go()
        self.cluster.settle()

    @property
    def now_ms(self) -> int:
        return self.cluster.now_ms

    def connect(self, **options: Any) -> CoreClient:
        return CoreClient(self, **options)  # type: ignore[arg-type]

    def queue(self, name: str, vhost: str = "/") -> Queue:
        found = self.broker.state.vhosts[vhost].destinations[name]
        assert isinstance(found, Queue)
        return found

    def has_queue(self, name: str, vhost: str = "/") -> bool:
        return name in self.broker.state.vhosts[vhost].destinations

    def settle(self) -> None:
        """A client has given this broker something to do."""
        self.busy = True
        self.cluster.settle()

    def socket_closed(self, connection: Connection) -> None:
        self._lost.append(connection)
        self.busy = True

    # --- turns

    def turn(self) -> bool:
        """One wake-up; False if there was nothing to do."""
        broker, node = self.broker, self.node
        if not (
            self.busy
            or self._synced
            or self._tokens
            or self._lost
            or broker.turn.pending()
            or any(end.incoming for end in self.ends)
        ):
            return False
        self.busy = False
        broker.turn.now_ms = self.now_ms
        node.begin(self.cluster.elapsed_ms)
        self._inputs()
        broker.end_turn()
        node.end_turn()
        if self.store.pending():
            self.broker.handed_over(self.store.submit())
            broker.submitted()
        self._outputs()
        if self.observer.bugs:
            raise self.observer.bugs.pop()
        return True

    def _inputs(self) -> None:
        synced, self._synced[:] = list(self._synced), []
        for event in synced:
            event()
        tokens, self._tokens[:] = list(self._tokens), []
        for token in tokens:
            self.node.written(token)
        lost, self._lost = self._lost, []
        for connection in lost:
            connection.lost()
        for end in list(self.ends):
            incoming, end.incoming = end.incoming, []
            for data in incoming:
                if end.link is not None:
                    end.link.receive(data)
                elif end.connection is not None:
                    end.connection.receive(data)
            if end.other is None:
                self.ends.remove(end)
                if end.link is not None:
                    end.link.lost("the pipe broke")
                elif end.connection is not None:
                    end.connection.lost()

    def _outputs(self) -> None:
        connections = self.broker.turn.connections
        self.broker.turn.connections = []
        for connection in connections:
            port = connection.port
            if isinstance(port, (CoreClient, PipeEnd)):
                port.flush()
        while touched := self.links.take_touched():
            for link in touched:
                end = link.port
                if isinstance(end, PipeEnd):
                    while chunks := link.next_output():
                        end.write(chunks)
                link.flushed()
                self.node.flushed(link)
                if link.stage == LINK_CLOSED and isinstance(end, PipeEnd):
                    end.close()
                    if end in self.ends:
                        self.ends.remove(end)

    def tick(self) -> None:
        self.broker.turn.now_ms = self.now_ms
        self.node.begin(self.cluster.elapsed_ms)
        self.broker.tick(self.now_ms)
        self.node.tick()
        for link in self.links.wants_dial():
            self._dial(link)
        self.busy = True

    # --- links

    def _dial(self, link: Link) -> None:
        target = self.cluster.at(link.address)
        if target is None or not target.running or not self.cluster.is_reachable(self, target):
            link.lost("nobody is there")
            return
        near, far = PipeEnd(self), PipeEnd(target)
        near.other, far.other = far, near
        near.link = link
        link.port = near
        self.ends.append(near)
        target.ends.append(far)
        peer = Peer(self.name, 1, loopback=True)
        far.connection = target.broker.connect(f"{self.name} -> {target.name}", peer)
        far.connection.port = far
        link.connected()

    def adopted(self, link: Link, port: object) -> None:
        assert isinstance(port, PipeEnd)
        port.connection = None
        port.link = link
        link.port = port

    # --- events of the store

    def durable(self, token: int) -> None:
        self.broker.synced(token)

    def alarm(self, text: str) -> None:
        raise AssertionError(f"a store in memory raised an alarm: {text}")

    def failed(self, error: BaseException) -> None:
        raise error


class CoreCluster:
    """Brokers by name: primaries b1.., secondaries s1.. ."""

    def __init__(self, primaries: int, secondaries: int, **section: Any) -> None:
        self.elapsed_ms = 0
        self._uuids = Random("uuids")
        self._cut: set[frozenset[str]] = set()
        names = [f"b{number + 1}" for number in range(primaries)]
        others = [f"s{number + 1}" for number in range(secondaries)]
        self._ports = {name: PORT_FIRST + at for at, name in enumerate([*names, *others])}
        self._listed = tuple(Primary(name, self.address_of(name)) for name in names)
        self._section = section
        self.members: dict[str, Member] = {}
        for name in names:
            self._add(name, "primary")
        for name in others:
            self._add(name, "secondary")

    def _add(self, name: str, role: str) -> None:
        section = ClusterSection(role=role, primaries=self._listed, **self._section)
        config = Config(users={}, cluster=section)
        config = replace(config, broker=replace(config.broker, name=name))
        self.members[name] = Member(self, name, config)

    def add_secondary(self, name: str) -> Member:
        """Start a broker that the cluster has never heard of."""
        assert name not in self.members
        self._ports[name] = PORT_FIRST + len(self._ports)
        self._add(name, "secondary")
        return self.members[name]

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    @property
    def now_ms(self) -> int:
        return START_MS + self.elapsed_ms

    def make_uuid(self) -> str:
        return f"{self._uuids.getrandbits(128):032x}"

    def address_of(self, name: str) -> Address:
        return Address("127.0.0.1", self._ports[name])

    def at(self, address: str) -> Member | None:
        for name, member in self.members.items():
            if str(self.address_of(name)) == address:
                return member
        return None

    def running(self) -> list[Member]:
        return [member for member in self.members.values() if member.running]

    def root(self) -> str:
        """The broker that knows itself to be root; "" if none or several do."""
        roots = [member.name for member in self.running() if member.node.consensus.is_root]
        return roots[0] if len(roots) == 1 else ""

    # --- faults

    def is_reachable(self, one: Member, other: Member) -> bool:
        return frozenset((one.name, other.name)) not in self._cut

    def cut(self, one: str, other: str) -> None:
        """Break the link between two brokers and let none be made."""
        self.part(one, other)
        for end in list(self.members[one].ends):
            if end.other is not None and end.other.owner.name == other:
                end.close()
                end.ended = False
                self.members[one].busy = True
        self.settle()

    def part(self, one: str, other: str) -> None:
        """Let no link be made between two brokers; the one that there is may stay."""
        self._cut.add(frozenset((one, other)))

    def mend(self, one: str, other: str) -> None:
        self._cut.discard(frozenset((one, other)))

    def heal(self) -> None:
        self._cut.clear()

    # --- time

    def settle(self) -> None:
        """Run turns until no broker has anything left to do."""
        for _ in range(TURNS_MAX):
            busy = [member for member in self.running() if member.turn()]
            if not busy:
                return
        raise AssertionError("the cluster doesn't come to rest")

    def advance(self, ms: int) -> None:
        end_ms = self.elapsed_ms + ms
        while self.elapsed_ms < end_ms:
            self.elapsed_ms = min(self.elapsed_ms + TICK_MS, end_ms)
            for member in self.running():
                member.tick()
            self.settle()

    def advance_until(self, condition: Callable[[], bool], ms_max: int = 30_000) -> None:
        """Let time pass until something is so."""
        end_ms = self.elapsed_ms + ms_max
        while not condition():
            assert self.elapsed_ms < end_ms, f"still not so after {ms_max} ms"
            self.advance(TICK_MS)

    def advance_until_ready(self) -> None:
        """Let time pass until all running brokers have joined and are linked."""
        self.advance_until(self._is_whole)

    def _is_whole(self) -> bool:
        running = self.running()
        primaries = [each for each in running if each.config.cluster.role == "primary"]
        return all(each.node.ready and not each.node.isolated for each in running) and all(
            each is other or each.links.link_to(other.name) is not None
            for each in running
            for other in primaries
        )


def make_cluster(primaries: int = 3, secondaries: int = 0, **section: Any) -> CoreCluster:
    """A cluster that has elected its root; ``section`` are settings of its configuration."""
    cluster = CoreCluster(primaries, secondaries, **section)
    cluster.advance_until_ready()
    return cluster
