"""The consensus core as a program on a simulated host, with an application that counts.

Every broker runs the core over simple links, keeps a digest of all that was applied, and, while it
is root, proposes payloads. The application is slow at times, takes snapshots often, and reports
everything to the checkers.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from typing import Final

from rhizome.cluster.consensus import (
    NEVER_MS,
    ChangeRefused,
    Consensus,
    ConsensusSettings,
    NotRoot,
    Rules,
    consensus_events,
)
from rhizome.cluster.consensus.consensus_messages import Message, Vote, VoteAnswer, decode, encode
from rhizome.cluster.consensus.consensus_output import Ready
from rhizome.cluster.consensus.dataclass_codec import encode as encode_plain
from rhizome.cluster.consensus.log.cluster_store import Entry
from rhizome.cluster.consensus.log.log_entry_payloads import APPLICATION, membership_of
from rhizome.cluster.link.broker_hello import Hello, hash_primaries
from rhizome.testing.sim.brokers.consensus_links import Links
from rhizome.testing.sim.checkers.checker import Watch
from rhizome.testing.sim.events import broker_events as seen
from rhizome.testing.sim.world.sim_cluster_store import SimClusterStore
from rhizome.testing.sim.world.sim_host import Host, Program
from rhizome.testing.sim.world.sim_network import Connection

LATE_MS: Final = 20
SLOW_APPLY_CHANCE: Final = 0.1
SLOW_APPLY_MS_MAX: Final = 300
DIGEST_CHARS: Final = 12


@dataclass(frozen=True)
class Place:
    """A host's part in the cluster."""

    name: str
    role: str
    primaries: tuple[str, ...]
    bootstrap: bool
    machine: str
    dials: tuple[str, ...]


@dataclass(frozen=True)
class Workload:
    """How a seed drives its brokers."""

    settings: ConsensusSettings
    rules: Rules
    propose_ms: int
    payload_bytes_max: int


class ConsensusProgram(Program):
    """One broker.

    Invariant: `state` is the digest of everything up to `applied`, in order; what is committed and
    not applied yet waits in `_due`.
    """

    def __init__(self, host: Host, place: Place, workload: Workload, watch: Watch) -> None:
        self.host = host
        self.place = place
        self.workload = workload
        self.watch = watch
        self.applied = 0
        self.state = ""
        self.cluster_uuid = ""
        self.was_damaged = ""
        self._chance: random.Random = host.chance("application")
        self._due: list[Entry] = []
        self._apply_ms = NEVER_MS
        self._propose_ms = NEVER_MS
        self._deadline_ms = NEVER_MS
        self._waiting: dict[int, str] = {}
        self._settled = 0
        self._committed = 0
        self._root_lease_until_ms = 0
        identity = host.chance("identity")
        self._incarnation = f"{identity.getrandbits(64):016x}"
        self.store = SimClusterStore(host, f"{identity.getrandbits(128):032x}", self._written)
        image = self.store.load()
        if image.damage:
            self.was_damaged = image.damage
            host.note(f"sets its store aside: {image.damage}")
            image = self.store.set_aside()
        self.uuid = image.uuid
        self.cluster_uuid = image.cluster_uuid
        self.core = Consensus(
            me=self.hello(),
            image=image,
            settings=workload.settings,
            chance=host.chance("core"),
            now_ms=host.now_ms(),
            bootstrap=place.primaries if place.bootstrap else None,
            starting=True,
            rules=workload.rules,
        )
        self.links = Links(host, self, place.dials)

    def hello(self) -> Hello:
        place = self.place
        return Hello(
            name=place.name,
            uuid=self.uuid,
            incarnation=self._incarnation,
            role=place.role,
            addresses=(place.name,),
            machine=place.machine,
            cluster_uuid=self.cluster_uuid,
            primaries_hash=hash_primaries(place.primaries) if place.bootstrap else "",
        )

    # --- the program

    def started(self) -> None:
        self.watch.brokers[self.place.name] = self
        place = self.place
        self.watch.see(seen.Started(place.name, self.uuid, place.role, place.machine))
        self.core.started(self.host.now_ms())

    def gone(self) -> None:
        self.watch.brokers.pop(self.place.name, None)

    def accepted(self, connection: Connection) -> None:
        self.links.opened(connection)

    def connected(self, connection: Connection) -> None:
        self.links.opened(connection)

    def received(self, connection: Connection, data: bytes) -> None:
        self.links.received(connection, data)

    def disconnected(self, connection: Connection, reason: str) -> None:
        self.links.disconnected(connection)

    def tick(self, now_ms: int) -> None:
        self._now_ms()
        self.links.tick(now_ms)
        if now_ms >= self._apply_ms:
            self._apply(now_ms)
        if now_ms >= self._propose_ms:
            self._propose(now_ms)
        if now_ms >= self.core.next_deadline_ms():
            self.core.tick(now_ms)

    def next_deadline_ms(self) -> int:
        self._deadline_ms = min(
            self._apply_ms,
            self._propose_ms,
            self.core.next_deadline_ms(),
            self.links.next_deadline_ms(),
        )
        return self._deadline_ms

    def _now_ms(self) -> int:
        """The time; the core is told first if this program was due long ago."""
        now_ms = self.host.now_ms()
        if now_ms > self._deadline_ms + LATE_MS:
            self._deadline_ms = NEVER_MS
            self.core.stalled(now_ms)
        return now_ms

    def turn(self) -> None:
        ready = self.core.ready()
        while not ready.is_empty():
            self._do(ready)
            ready = self.core.ready()
        self._tell_settled()
        self._root_lease_until_ms = self.core.lease_until_ms() if self.core.is_root else 0
        self.links.flush()

    # --- links

    def link_up(self, hello: Hello) -> None:
        self.core.peer_up(hello, self._now_ms())

    def link_down(self, name: str) -> None:
        self.core.peer_down(name, self._now_ms())

    def frame(self, name: str, data: bytes) -> None:
        self.core.step(name, decode(data), self._now_ms())

    # --- what the core wants done, in its order

    def _written(self, token: int) -> None:
        self.core.written(token, self._now_ms())

    def _do(self, ready: Ready) -> None:
        if ready.batch is not None:
            self.store.submit(ready.batch, ready.token)
        for name, message in ready.messages:
            self._send(name, message)
        if ready.snapshot is not None:
            self._install(ready.snapshot.index, ready.snapshot.data)
        for entry in ready.committed:
            self._commit(entry)
        self._plan_apply()
        for event in ready.events:
            self._event(event)
        if self.core.snapshot_due and not self._due:
            self.core.snapshot_taken(f"{self.applied} {self.state}".encode())
            self.host.note(f"snapshot at {self.applied}")

    def _send(self, name: str, message: Message) -> None:
        if isinstance(message, Vote):
            self._voted(message.term, self.place.name)
        elif isinstance(message, VoteAnswer) and message.yes:
            self._voted(message.term, name)
        if self.host.traced:
            self.host.note(f"> {name} {_shown(message)}")
        self.links.send(name, encode(message))

    def _voted(self, term: int, candidate: str) -> None:
        place = self.place
        self.watch.see(seen.Voted(place.name, self.uuid, place.role, term, candidate))

    def _event(self, event: consensus_events.Event) -> None:
        name = self.place.name
        now_ms = self.host.now_ms()
        self.host.note(f"event {event}")
        if isinstance(event, consensus_events.BecameRoot):
            self.watch.see(seen.BecameRoot(name, event.term, self._log()))
            self._propose_ms = now_ms
        elif isinstance(event, consensus_events.Resigned):
            held = int(self._root_lease_until_ms > now_ms)
            self.watch.see(seen.Resigned(name, event.term, held, event.reason))
            self._propose_ms = NEVER_MS
            self._waiting.clear()
        elif isinstance(event, consensus_events.LeaseGained):
            if self.core.holds_lease(now_ms):
                self.watch.see(seen.LeaseGained(name))
                if self.core.is_root:
                    self.watch.see(seen.Serves(name, self.core.term))
        elif isinstance(event, consensus_events.BrokerLeaseOver):
            self.watch.see(seen.LeaseOver(name, event.name, event.incarnation))
        elif isinstance(event, consensus_events.ClusterNamed):
            self.cluster_uuid = event.cluster_uuid
        elif isinstance(event, consensus_events.PeerRefused):
            self.links.close(event.name)

    def _log(self) -> list[seen.Entry]:
        log = self.core.state.persistent.log
        entries = log.between(log.start.index + 1, log.last_index)
        return [(entry.index, entry.term, _digest(entry)) for entry in entries]

    # --- the application

    def _install(self, index: int, data: bytes) -> None:
        applied, _, self.state = data.decode().partition(" ")
        assert int(applied) == index, f"the snapshot of {applied} was handed over as of {index}"
        self.applied = index
        self._due.clear()
        self.watch.see(seen.Applied(self.place.name, index, self.state))
        self.core.applied(index, self.host.now_ms())

    def _commit(self, entry: Entry) -> None:
        name = self.place.name
        digest = _digest(entry)
        self.watch.see(seen.Committed(name, entry.index, entry.term, digest, self.core.term))
        membership = membership_of(entry)
        if membership is not None:
            voters = [(voter.name, voter.uuid) for voter in membership.voting()]
            self.watch.see(seen.MembershipAt(name, entry.index, voters))
        self._due.append(entry)

    def _plan_apply(self) -> None:
        """Apply at once, or after a delay."""
        now_ms = self.host.now_ms()
        self._tell_registry()
        if not self._due or self._apply_ms != NEVER_MS:
            return
        if self._chance.random() < SLOW_APPLY_CHANCE:
            self._apply_ms = now_ms + 1 + int(self._chance.random() * SLOW_APPLY_MS_MAX)
        else:
            self._apply(now_ms)

    def _apply(self, now_ms: int) -> None:
        self._apply_ms = NEVER_MS
        if not self._due:
            return
        for entry in self._due:
            assert entry.index == self.applied + 1, f"{entry.index} comes after {self.applied}"
            self.applied = entry.index
            fed = f"{self.state} {entry.index} {entry.kind} ".encode() + entry.payload
            self.state = hashlib.sha256(fed).hexdigest()[:DIGEST_CHARS]
            self.watch.see(seen.Applied(self.place.name, self.applied, self.state))
        self._due.clear()
        self.core.applied(self.applied, now_ms)

    def _tell_registry(self) -> None:
        if self.core.commit_index != self._committed:
            self._committed = self.core.commit_index
            digest = hashlib.sha256(encode_plain(self.core.registry)).hexdigest()[:DIGEST_CHARS]
            self.watch.see(seen.RegistryAt(self.place.name, self._committed, digest))

    def _propose(self, now_ms: int) -> None:
        self._propose_ms = now_ms + 1 + int(self._chance.expovariate(1 / self.workload.propose_ms))
        size = 1 + int(self._chance.random() ** 4 * self.workload.payload_bytes_max)
        data = f"{self.place.name}/{self.host.run}/{now_ms} ".encode().ljust(size, b".")
        if not self.core.holds_lease(now_ms):
            return
        index = self.core.propose(data, now_ms)
        if index is not None:
            self._waiting[index] = _digest(Entry(index, 0, APPLICATION, data))

    def _tell_settled(self) -> None:
        """Tell applications what is settled (R10)."""
        settled = self.core.settled_index
        if settled <= self._settled:
            return
        self._settled = settled
        self.watch.see(seen.Settled(self.place.name, settled))
        for index in [index for index in self._waiting if index <= settled]:
            self.watch.see(seen.Accepted(self.place.name, index, self._waiting.pop(index)))

    # --- for checkers

    def applied_index(self) -> int:
        return self.applied

    def incarnation(self) -> str:
        return self._incarnation

    def has_lease(self) -> bool:
        return self.core.holds_lease(self.host.now_ms())

    def serves_as_root(self) -> bool:
        return self.core.is_root and self.has_lease()

    def disk_silence_ms(self) -> int:
        return (self.watch.world.now_us - self.host.disk.synced_us) // 1_000

    def root_lease_ms(self) -> int:
        return self.workload.settings.root_lease_ms

    def explain(self) -> str:
        status = self.core.status()
        quorum = status.quorum
        return (
            f"{status.role} in term {status.term}, root {status.root or 'unknown'}, "
            f"log {status.last_index}, synced {status.synced_index}, "
            f"committed {status.commit_index}, applied {self.applied}, "
            f"settled {status.settled_index}, sees {quorum.active} of {quorum.defined}, needs "
            f"{quorum.needed}, lease {status.lease_left_ms} ms, "
            f"waits for {status.waits_for or 'nothing'}"
        )

    # --- what people order

    def change_membership(self, add: bool, name: str) -> str:
        """Try a change; returns its outcome."""
        now_ms = self.host.now_ms()
        change = self.core.add_primary if add else self.core.remove_primary
        try:
            entry = change(name, now_ms)
        except (ChangeRefused, NotRoot) as refusal:
            return f"refused: {refusal}"
        self.watch.see(seen.Ordered(self.place.name, f"{'add' if add else 'remove'} {name}"))
        return f"entry {entry}"

    def certified(self, name: str, incarnation: str) -> None:
        """Somebody brings a certificate of death (R15)."""
        self.core.died(name, incarnation, self._now_ms())

    def hand_over(self, name: str) -> str:
        try:
            self.core.transfer_root(name, self.host.now_ms())
        except (ChangeRefused, NotRoot) as refusal:
            return f"refused: {refusal}"
        return "begun"


def _digest(entry: Entry) -> str:
    return hashlib.sha256(bytes((entry.kind,)) + entry.payload).hexdigest()[:DIGEST_CHARS]


def _shown(message: Message) -> str:
    return type(message).__name__ + str(message.term)
