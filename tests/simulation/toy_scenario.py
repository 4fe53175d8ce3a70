"""A replicated register that is wrong on purpose: whoever hears nothing makes itself root.

Without faults it works. Any partition gives two roots that commit without asking anybody, which the
checkers must see.
"""

from __future__ import annotations

import hashlib

from rhizome.testing.sim.checkers.checker import (
    Checker,
    CommittedStateNeverLost,
    NothingStuck,
    OneRootPerTerm,
    StateAgreesOnAllBrokers,
    Watch,
)
from rhizome.testing.sim.events.broker_events import (
    Accepted,
    Applied,
    BecameRoot,
    Committed,
    Started,
)
from rhizome.testing.sim.seed_run import RunOptions, Simulation, drawn
from rhizome.testing.sim.world.event_scheduler import World
from rhizome.testing.sim.world.sim_host import Host, Process, Program
from rhizome.testing.sim.world.sim_network import Connection

HEARTBEAT_MS = 200
SILENCE_MS = 1_000
REDIAL_MS = 500


class Register(Program):
    """Terms, a log of digests and no votes."""

    def __init__(self, host: Host, names: list[str], watch: Watch) -> None:
        self.host = host
        self.watch = watch
        self.others = [name for name in names if name != host.name]
        self.rank = names.index(host.name)
        self.links: dict[str, Connection] = {}
        self.buffers: dict[int, bytes] = {}
        self.redial_ms: dict[str, int] = {}
        self.term = 0
        self.root = ""
        self.log: list[tuple[int, str]] = []
        self.heard_ms = host.now_ms()
        self.beat_ms = 0
        self.state = ""

    # --- the program

    def started(self) -> None:
        self.watch.brokers[self.host.name] = self
        self.watch.see(Started(self.host.name, "", "primary"))
        file = self.host.disk.open("register")
        for line in bytes(file.content).decode("ascii", "replace").splitlines():
            if line.count(" ") == 1 and line.split()[0].isdigit():
                term, digest = line.split()
                self.log.append((int(term), digest))
                self.term = int(term)
        for name in self.others:
            if name > self.host.name:
                self.redial_ms[name] = self.host.now_ms()

    def accepted(self, connection: Connection) -> None:
        self._link(connection)

    def connected(self, connection: Connection) -> None:
        self._link(connection)

    def _link(self, connection: Connection) -> None:
        self.links[connection.remote] = connection
        self.buffers[connection.number] = b""

    def disconnected(self, connection: Connection, reason: str) -> None:
        if self.links.get(connection.remote) is connection:
            del self.links[connection.remote]
        if connection.dialled:
            self.redial_ms[connection.remote] = self.host.now_ms() + REDIAL_MS

    def received(self, connection: Connection, data: bytes) -> None:
        *lines, rest = (self.buffers.get(connection.number, b"") + data).split(b"\n")
        self.buffers[connection.number] = rest
        for line in lines:
            term, root, length, entry_term, digest = line.decode().split()
            self._heartbeat(int(term), root, int(length), int(entry_term), digest)

    def tick(self, now_ms: int) -> None:
        for name, due_ms in list(self.redial_ms.items()):
            if due_ms <= now_ms:
                del self.redial_ms[name]
                self.host.dial(name)
        if self.root == self.host.name:
            if self.beat_ms <= now_ms:
                self._beat(now_ms)
        elif now_ms >= self._silence_ends_ms():
            self._usurp(now_ms)

    def next_deadline_ms(self) -> int | None:
        mine = self.beat_ms if self.root == self.host.name else self._silence_ends_ms()
        return min([mine, *self.redial_ms.values()])

    def _silence_ends_ms(self) -> int:
        return self.heard_ms + SILENCE_MS * (1 + self.rank)

    # --- the mistake

    def _usurp(self, now_ms: int) -> None:
        self.term += 1
        self.root = self.host.name
        self.beat_ms = now_ms
        entries = [(at, *entry) for at, entry in enumerate(self.log, 1)]
        self.watch.see(BecameRoot(self.host.name, self.term, entries))

    def _beat(self, now_ms: int) -> None:
        self.beat_ms = now_ms + HEARTBEAT_MS
        digest = hashlib.sha256(f"{self.host.name} {now_ms}".encode()).hexdigest()[:8]
        self._take(self.term, digest)
        self.watch.see(Accepted(self.host.name, len(self.log), digest))
        for link in self.links.values():
            link.send(f"{self.term} {self.root} {len(self.log)} {self.term} {digest}\n".encode())

    def _heartbeat(self, term: int, root: str, length: int, entry_term: int, digest: str) -> None:
        if term < self.term:
            return
        self.term, self.root, self.heard_ms = term, root, self.host.now_ms()
        if length == len(self.log) + 1:
            self._take(entry_term, digest)

    def _take(self, term: int, digest: str) -> None:
        self.log.append((term, digest))
        file = self.host.disk.open("register")
        file.append(f"{term} {digest}\n".encode())
        self.host.sync(["register"], lambda: None)
        self.state = hashlib.sha256((self.state + digest).encode()).hexdigest()[:8]
        self.watch.see(Committed(self.host.name, len(self.log), term, digest, self.term))
        self.watch.see(Applied(self.host.name, len(self.log), self.state))

    # --- for checkers

    def applied_index(self) -> int:
        return len(self.log)

    def incarnation(self) -> str:
        return str(self.host.run)

    def has_lease(self) -> bool:
        return False

    def serves_as_root(self) -> bool:
        return self.root == self.host.name

    def disk_silence_ms(self) -> int:
        return 0

    def root_lease_ms(self) -> int:
        return 0

    def explain(self) -> str:
        return f"term {self.term}, root {self.root}, {len(self.log)} entries"


class ToyScenario:
    name = "toy"

    def build(self, world: World, options: RunOptions) -> Simulation:
        names = [f"b{number}" for number in range(1, 1 + drawn(world, "brokers", options.brokers))]
        checkers: list[Checker] = [
            OneRootPerTerm(),
            CommittedStateNeverLost(),
            StateAgreesOnAllBrokers(),
            NothingStuck(names),
        ]
        simulation = Simulation(world, checkers)
        simulation.processes = [
            Process(
                world,
                simulation.network,
                name,
                lambda host: Register(host, names, simulation.watch),
            )
            for name in names
        ]
        return simulation
