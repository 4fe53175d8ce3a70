"""Brokers in one process, linked by byte pipes that deliver what, and when, a test wants."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from rhizome.broker.access.auth_interface import Peer
from rhizome.broker.connection.connection import Connection
from rhizome.broker.connection.connection_states import CLOSED as CONNECTION_CLOSED
from rhizome.cluster.link.accept_handshake import LinkAuthenticator
from rhizome.cluster.link.accepted_link_port import ConnectionAdopter
from rhizome.cluster.link.broker_hello import PRIMARY, Hello
from rhizome.cluster.link.cluster_key_proof import LinkKeys
from rhizome.cluster.link.link import CLOSED, Link, LinkHandler
from rhizome.cluster.link.link_manager import LinkTable
from rhizome.cluster.link.peers import LinkSettings
from rhizome.cluster.protocol.frame_dispatch import FrameHandler, FrameTable
from rhizome.testing.in_memory_broker import make_core

KEY = b"a key that all brokers share"
SETTINGS = LinkSettings(has_macs=True)


def make_hello(name: str, uuid: int = 0, **fields: object) -> Hello:
    """b1 has the UUID ...1, and so on, unless a test wants another order."""
    number = uuid or int(name[1:])
    hello = Hello(name, f"{number:032x}", "1", addresses=(f"{name}:5672",))
    return replace(hello, **fields)  # type: ignore[arg-type]


class Recorder(FrameHandler):
    """Takes the frames of a log, whatever their number."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self.log = log

    def take(self, link: Link, number: int, data: bytes, start: int, end: int) -> None:
        self.log.heard(link, number, data[start:end])


class Log(LinkHandler):
    """Writes down what it hears."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = FrameTable(Recorder(self))
        self.up: list[Link] = []
        self.events: list[str] = []
        self.received: list[tuple[str, int, bytes]] = []
        self.problems: list[str] = []
        self.bugs: list[BaseException] = []
        self.refuses: dict[str, str] = {}

    def link_up(self, link: Link) -> None:
        assert link.name not in [other.name for other in self.up], "two links with one peer"
        self.up.append(link)
        self.events.append(f"up {link.name}")

    def link_down(self, link: Link, reason: str) -> None:
        assert any(link is other for other in self.up), "a link that wasn't up went down"
        self.up = [other for other in self.up if other is not link]
        self.events.append(f"down {link.name}: {reason}")

    def heard(self, link: Link, number: int, payload: bytes) -> None:
        assert any(link is other for other in self.up), "a frame of a link that isn't up"
        self.received.append((link.name, int(number), payload))

    def link_congested(self, link: Link) -> None:
        self.events.append(f"{'congested' if link.congested else 'free'} {link.name}")

    def peer_changed(self, link: Link) -> None:
        self.events.append(f"changed {link.name}")

    def refusal(self, hello: Hello) -> str:
        return self.refuses.get(hello.name, "")

    def link_problem(self, name: str, address: str, reason: str) -> None:
        self.problems.append(reason)

    def bug(self, error: BaseException, where: str) -> None:
        self.bugs.append(error)


class End:
    """One end of a wire. What it has written waits in ``sent`` until it is delivered."""

    def __init__(self, broker: Broker, wire: Wire, link: Link | None) -> None:
        self.broker = broker
        self.wire = wire
        self.link = link
        self.connection: Connection | None = None
        self.other: End
        self.sent: list[bytes | None] = []
        self.closed = False

    def flush(self) -> None:
        """Write what the core wants written; None in ``sent`` is the end of the stream."""
        if self.closed:
            return
        link = self.link
        if link is not None:
            while link.writable or link.stage == CLOSED:
                chunks = link.next_output()
                if not chunks:
                    break
                self.sent.append(b"".join(chunks))
            link.flushed()
            if link.stage == CLOSED:
                self.close()
        elif self.connection is not None:
            chunks = self.connection.outbox.take()
            if chunks:
                self.sent.append(b"".join(chunks))
            self.connection.flushed()
            if self.connection.stage == CONNECTION_CLOSED:
                self.close()

    def close(self) -> None:
        self.closed = True
        self.sent.append(None)

    def deliver(self) -> None:
        """Give the oldest thing that was sent to the other end."""
        data = self.sent.pop(0)
        other = self.other
        if other.closed:
            return
        if data is not None:
            other.receive(data)
        else:
            other.closed = True
            other.sent.append(None)
            other.lose("connection reset")
        other.broker.turn()

    def receive(self, data: bytes) -> None:
        if self.link is not None:
            self.link.receive(data)
        elif self.connection is not None:
            self.connection.receive(data)

    def lose(self, reason: str) -> None:
        if self.link is not None:
            self.link.lost(reason)
        elif self.connection is not None:
            self.connection.lost()


class Wire:
    """A connection between two brokers."""

    def __init__(self, dialler: Broker, link: Link, acceptor: Broker) -> None:
        self.near = End(dialler, self, link)
        self.far = End(acceptor, self, None)
        self.near.other = self.far
        self.far.other = self.near

    def ends(self) -> list[End]:
        return [self.near, self.far]

    def cut(self) -> None:
        """Both ends lose it now; what was under way is lost too."""
        for end in self.ends():
            end.sent = []
            if not end.closed:
                end.closed = True
                end.lose("connection reset")
        for end in self.ends():
            end.broker.turn()


class Broker(ConnectionAdopter):
    """A broker core with its links, driven by hand."""

    def __init__(
        self, world: World, hello: Hello, key: bytes = KEY, settings: LinkSettings = SETTINGS
    ) -> None:
        self.world = world
        self.core = make_core().broker
        self.log = Log()
        chance = Random(f"{world.seed} {hello.name} {hello.incarnation}")
        self.links = LinkTable(hello, LinkKeys(key), settings, self.log, chance, world.now_ms)
        self.links.adopter = self
        self.core.authenticator = LinkAuthenticator(self.links, self.core.authenticator)

    def adopted(self, link: Link, port: object) -> None:
        assert isinstance(port, End)
        port.connection = None
        port.link = link
        link.port = port

    def accept(self, end: End) -> None:
        end.connection = self.core.connect("link", Peer("127.0.0.1", 1, loopback=True))
        end.connection.port = end

    def turn(self) -> None:
        self.core.end_turn()
        connections = self.core.turn.connections
        self.core.turn.connections = []
        for connection in connections:
            if isinstance(connection.port, End):
                connection.port.flush()
        for link in self.links.take_touched():
            if isinstance(link.port, End):
                link.port.flush()
            else:
                link.flushed()

    def dial(self) -> None:
        """Begin to dial whoever is due."""
        for link in self.links.wants_dial():
            self.world.connect(self, link)
        self.turn()

    def knows(self, *others: Broker) -> None:
        for other in others:
            hello = other.links.me
            self.links.configure(hello.name, hello.addresses, hello.role)

    def linked(self) -> list[str]:
        return sorted(link.name for link in self.log.up)


class World:
    """All brokers and the wires between them."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.now_ms = 1_000
        self.brokers: dict[str, Broker] = {}
        self.wires: list[Wire] = []
        self.dials: list[Link] = []
        self.unreachable: set[str] = set()

    def start(
        self,
        hello: Hello,
        key: bytes = KEY,
        settings: LinkSettings = SETTINGS,
        address: str = "",
    ) -> Broker:
        broker = Broker(self, hello, key, settings)
        self.brokers[address or hello.addresses[0]] = broker
        return broker

    def trio(self) -> list[Broker]:
        """Three primaries that know each other."""
        brokers = [self.start(make_hello(name, role=PRIMARY)) for name in ("b1", "b2", "b3")]
        for broker in brokers:
            broker.knows(*brokers)
        return brokers

    def connect(self, dialler: Broker, link: Link) -> None:
        self.dials.append(link)
        acceptor = self.brokers.get(link.address)
        if acceptor is None or link.address in self.unreachable:
            link.lost("connection refused")
            return
        wire = Wire(dialler, link, acceptor)
        self.wires.append(wire)
        link.port = wire.near
        acceptor.accept(wire.far)
        link.connected()

    def ready(self) -> list[End]:
        """The ends that have something under way."""
        self.wires = [
            wire for wire in self.wires if not all(e.closed and not e.sent for e in wire.ends())
        ]
        return [end for wire in self.wires for end in wire.ends() if end.sent]

    def settle(self) -> None:
        """Deliver everything, oldest wire first."""
        while ends := self.ready():
            ends[0].deliver()

    def dial_all(self) -> None:
        for broker in self.brokers.values():
            broker.dial()
        self.settle()

    def pass_time(self, ms: int, step_ms: int = 50) -> None:
        """Let time pass, with ticks, dials and deliveries in between."""
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms:
            self.now_ms = min(self.now_ms + step_ms, end_ms)
            for broker in self.brokers.values():
                broker.core.turn.now_ms = self.now_ms
                broker.links.tick(self.now_ms)
                broker.turn()
            self.dial_all()
