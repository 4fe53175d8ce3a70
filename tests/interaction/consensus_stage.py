"""A stage for consensus cores: virtual time, links, disks, and a script of who says what.

Every message takes ``DELAY_MS``, every sync ``SYNC_MS``. A play is a list of lines like

       3  b1 -> b2  shall I stand? log 0/0
       4  b2 -> b1  yes

Heartbeats, reports and appends are left out: they are the breathing of the cast. What was said
before to the same broker isn't printed again, and what is said to several at once is one line.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random

from rhizome.cluster.consensus import ALL_RULES, NEVER_MS, Consensus, ConsensusSettings, Rules
from rhizome.cluster.consensus.consensus_events import (
    BecameRoot,
    BrokerLeaseLive,
    BrokerLeaseOver,
    ClusterNamed,
    Event,
    IncarnationRetired,
    LeaseGained,
    PeerRefused,
    Resigned,
    RootKnown,
    RootLost,
    RootReady,
    VoterRests,
    VoterWakes,
)
from rhizome.cluster.consensus.consensus_messages import (
    Abdication,
    Append,
    AppendAnswer,
    Farewell,
    HandOver,
    Heartbeat,
    Message,
    PreVote,
    PreVoteAnswer,
    Register,
    Report,
    SnapshotAnswer,
    SnapshotChunk,
    Vote,
    VoteAnswer,
    decode,
    encode,
)
from rhizome.cluster.consensus.log.cluster_store import Entry, Image, MemoryClusterStore
from rhizome.cluster.consensus.log.log_entry_payloads import APPLICATION
from rhizome.cluster.link.broker_hello import PRIMARY, SECONDARY, Hello, hash_primaries

DELAY_MS = 1
SYNC_MS = 1
BREATH = (Heartbeat, Report, Append, AppendAnswer, SnapshotChunk, SnapshotAnswer, Register)


class Actor:
    """One broker: its store outlives its core."""

    def __init__(self, name: str, role: str, bootstrap: tuple[str, ...] | None) -> None:
        self.name = name
        self.role = role
        self.bootstrap = bootstrap
        self.machine = f"machine-of-{name}"
        self.starts = 0
        self.wipes = 0
        self.core: Consensus | None = None
        self.hanging = False
        self.stalled: list[Callable[[], None]] | None = None
        """What has come since it stands still; None if it doesn't."""
        self.starting = False
        self.clock_permille = 1000
        self.is_lazy = False
        """Whether it puts off applying what is committed, until ``Stage.catch_up``."""
        self.due: list[Entry] = []
        self.state: list[bytes] = []
        self.entries: list[Entry] = []
        self.store = self._empty_store()

    def _empty_store(self) -> MemoryClusterStore:
        return MemoryClusterStore(Image(uuid=f"{self.name}-uuid-{self.wipes}"))

    def wipe(self) -> None:
        assert self.core is None
        self.wipes += 1
        self.store = self._empty_store()

    def hello(self) -> Hello:
        image = self.store.image
        named = self.core.cluster_uuid if self.core is not None else image.cluster_uuid
        return Hello(
            name=self.name,
            uuid=image.uuid,
            incarnation=f"{self.name}-{self.starts}",
            role=self.role,
            machine=self.machine,
            cluster_uuid=named,
            primaries_hash=hash_primaries(self.bootstrap or ()),
        )

    def apply(self, entries: list[Entry]) -> None:
        for entry in entries:
            self.entries.append(entry)
            if entry.kind == APPLICATION:
                self.state.append(entry.payload)


class Stage:
    def __init__(
        self,
        primaries: tuple[str, ...],
        secondaries: tuple[str, ...] = (),
        settings: ConsensusSettings | None = None,
        seed: int = 1,
        rules: Rules = ALL_RULES,
    ) -> None:
        self.now_ms = 1000
        self.settings = settings or ConsensusSettings()
        self.seed = seed
        self.rules = rules
        self._said: dict[tuple[str, str, str], None] = {}
        self._speech = (0, "", "")
        self.lines: list[str] = []
        self.actors: dict[str, Actor] = {}
        self.links: dict[tuple[str, str], int] = {}
        """Linked pairs, with the number of the link: what is under way on an older one is lost."""
        self.censor: Callable[[str, str, Message], bool] = lambda sender, receiver, message: False
        """Whether a message gets lost, though its link stays up."""
        self.slow: dict[tuple[str, str], int] = {}
        """Milliseconds that messages from the one to the other take longer."""
        self.on_event: Callable[[Actor, Event], None] = lambda actor, event: None
        self.on_turn: Callable[[Actor], None] = lambda actor: None
        self._links_made = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._events_made = 0
        self.delay: Callable[[], int] = lambda: DELAY_MS
        self.sync_delay: Callable[[], int] = lambda: SYNC_MS
        self._arrivals: dict[tuple[str, str], int] = {}
        self._epoch_ms = self.now_ms
        for name in primaries:
            self.actors[name] = Actor(name, PRIMARY, primaries)
        for name in secondaries:
            self.actors[name] = Actor(name, SECONDARY, None)

    def clock(self, name: str) -> int:
        """The broker's own monotonic clock, which may be fast or slow."""
        return self.now_ms * self.actors[name].clock_permille // 1000

    def core(self, name: str) -> Consensus:
        core = self.actors[name].core
        assert core is not None, f"{name} isn't running"
        return core

    # Directions.

    def start(self, *names: str) -> None:
        """Start brokers and link them to all that run; secondaries not to each other."""
        for name in names:
            self._start(self.actors[name])
            for other in self.actors.values():
                if other.name != name and other.core is not None:
                    both = (self.actors[name].role, other.role)
                    if both != (SECONDARY, SECONDARY):
                        self.link(name, other.name)

    def _start(self, actor: Actor) -> None:
        actor.starts += 1
        actor.state.clear()
        actor.entries.clear()
        actor.due.clear()
        self.say(f"{actor.name} starts")
        actor.core = Consensus(
            actor.hello(),
            actor.store.load(),
            self.settings,
            Random(f"{self.seed} {actor.name} {actor.starts}"),
            self.clock(actor.name),
            actor.bootstrap,
            starting=actor.starting,
            rules=self.rules,
        )
        self._turn(actor)

    def kill(self, *names: str) -> None:
        for name in names:
            self.say(f"{name} dies")
            for other in list(self.actors):
                self._unlink(name, other)
            self.actors[name].core = None
            self.actors[name].store.crash()

    def link(self, a: str, b: str) -> None:
        if (a, b) in self.links:
            return
        self._links_made += 1
        self.links[(a, b)] = self.links[(b, a)] = self._links_made
        for me, peer in ((a, b), (b, a)):
            self.core(me).peer_up(self.actors[peer].hello(), self.clock(me))
            self._turn(self.actors[me])

    def cut(self, a: str, b: str) -> None:
        self.say(f"the link between {a} and {b} is cut")
        self._unlink(a, b)

    def isolate(self, *names: str) -> None:
        """Cut the links between these and the others."""
        self.say(f"{' and '.join(names)} cut off")
        for name in names:
            for other in self.actors:
                if other not in names:
                    self._unlink(name, other)

    def heal(self) -> None:
        self.say("all links are back")
        running = [a for a in self.actors.values() if a.core is not None]
        for a in running:
            for b in running:
                if a.name < b.name and (a.role, b.role) != (SECONDARY, SECONDARY):
                    self.link(a.name, b.name)

    def _unlink(self, a: str, b: str) -> None:
        if self.links.pop((a, b), None) is None:
            return
        del self.links[(b, a)]
        for me, peer in ((a, b), (b, a)):
            self.core(me).peer_down(peer, self.clock(me))
            self._turn(self.actors[me])

    def hang_disk(self, name: str) -> None:
        self.say(f"the disk of {name} hangs")
        self.actors[name].hanging = True

    def free_disk(self, name: str) -> None:
        self.say(f"the disk of {name} works again")
        self.actors[name].hanging = False
        self._sync(self.actors[name], self.core(name))

    def stall(self, name: str) -> None:
        """A broker gets no processor: what comes waits, and it doesn't know."""
        self.say(f"{name} stands still")
        self.actors[name].stalled = []

    def wake(self, name: str) -> None:
        """It goes on as an event loop does: timers first, then what has come."""
        self.say(f"{name} goes on")
        actor = self.actors[name]
        waiting, actor.stalled = actor.stalled, None
        self.core(name).stalled(self.clock(name))
        self.core(name).tick(self.clock(name))
        self._turn(actor)
        for action in waiting or []:
            action()

    def catch_up(self, name: str) -> None:
        """Have a lazy broker apply what it put off."""
        self.actors[name].is_lazy = False
        self._apply(self.actors[name], self.core(name))
        self._turn(self.actors[name])

    def propose(self, name: str, data: bytes) -> int | None:
        index = self.core(name).propose(data, self.clock(name))
        self._turn(self.actors[name])
        return index

    def order(self, name: str, what: Callable[[Consensus, int], object]) -> None:
        """Have a broker do something that a person ordered, at its own time."""
        try:
            what(self.core(name), self.clock(name))
        finally:
            self._turn(self.actors[name])

    # Time.

    def run(self, ms: int) -> None:
        end_ms = self.now_ms + ms
        while self._step(end_ms):
            pass
        self.now_ms = end_ms

    def run_until(self, holds: Callable[[], bool], ms_max: int = 20_000) -> int:
        """Run until the condition holds; how long it took. Fails after ``ms_max``."""
        began_ms = self.now_ms
        while not holds():
            assert self._step(began_ms + ms_max), f"not within {ms_max} ms:\n{self.play()}"
        return self.now_ms - began_ms

    def _step(self, end_ms: int) -> bool:
        """Do what is next, if it is due by ``end_ms``."""
        event_ms = self._events[0][0] if self._events else NEVER_MS
        wake_ms, name = NEVER_MS, ""
        for actor in self.actors.values():
            if actor.core is not None and actor.stalled is None:
                deadline_ms = min(actor.core.next_deadline_ms(), NEVER_MS // 2000)
                due_ms = max(-(-deadline_ms * 1000 // actor.clock_permille), self.now_ms)
                if due_ms < wake_ms:
                    wake_ms, name = due_ms, actor.name
        if min(event_ms, wake_ms) > end_ms:
            return False
        if event_ms <= wake_ms:
            self.now_ms = max(self.now_ms, event_ms)
            heapq.heappop(self._events)[2]()
        else:
            self.now_ms = max(self.now_ms, wake_ms)
            self.core(name).tick(self.clock(name))
            assert self.core(name).next_deadline_ms() > self.clock(name), f"{name} never rests"
            self._turn(self.actors[name])
        return True

    def at(self, ms: int, what: Callable[[], None]) -> None:
        self._events_made += 1
        heapq.heappush(self._events, (self.now_ms + ms, self._events_made, what))

    # Driving a core: the duties of Ready, in order.

    def _turn(self, actor: Actor) -> None:
        core = actor.core
        assert core is not None
        while True:
            ready = core.ready()
            if ready.is_empty():
                break
            if ready.batch is not None:
                actor.store.submit(ready.batch, ready.token)
                if not actor.hanging:
                    self.at(self.sync_delay(), lambda: self._sync(actor, core))
            for event in ready.events:
                self.say(f"{actor.name} {_describe(event)}")
            for name, message in ready.messages:
                self._send(actor.name, name, message)
            if ready.snapshot is not None:
                actor.state[:] = ready.snapshot.data.split(b"\n") if ready.snapshot.data else []
                actor.entries.clear()
                actor.due.clear()
                core.applied(ready.snapshot.index, self.clock(actor.name))
            actor.due.extend(ready.committed)
            if actor.due and not actor.is_lazy:
                self._apply(actor, core)
            for event in ready.events:
                self.on_event(actor, event)
            if core.snapshot_due:
                core.snapshot_taken(b"\n".join(actor.state))
        self.on_turn(actor)

    def _apply(self, actor: Actor, core: Consensus) -> None:
        actor.apply(actor.due)
        core.applied(actor.due[-1].index, self.clock(actor.name))
        actor.due.clear()

    def _sync(self, actor: Actor, core: Consensus) -> None:
        if actor.stalled is not None:
            actor.stalled.append(lambda: self._sync(actor, core))
        elif actor.core is core and not actor.hanging:
            token = actor.store.sync()
            if token:
                core.written(token, self.clock(actor.name))
                self._turn(actor)

    def _send(self, sender: str, receiver: str, message: Message) -> None:
        number = self.links[(sender, receiver)]
        if self.censor(sender, receiver, message):
            return
        if not isinstance(message, BREATH):
            self._tell(sender, receiver, _words(message))
        data = encode(message)
        pair = (sender, receiver)
        delay_ms = self.delay() + self.slow.get(pair, 0)
        arrives_ms = max(self.now_ms + delay_ms, self._arrivals.get(pair, 0))
        self._arrivals[pair] = arrives_ms
        self.at(arrives_ms - self.now_ms, lambda: self._deliver(sender, receiver, number, data))

    def _deliver(self, sender: str, receiver: str, number: int, data: bytes) -> None:
        waiting = self.actors[receiver].stalled
        if waiting is not None:
            waiting.append(lambda: self._deliver(sender, receiver, number, data))
        elif self.links.get((sender, receiver)) == number:
            self.core(receiver).step(sender, decode(data), self.clock(receiver))
            self._turn(self.actors[receiver])

    # The script.

    def _tell(self, sender: str, receiver: str, words: str) -> None:
        if (sender, receiver, words) in self._said:
            return
        self._said[(sender, receiver, words)] = None
        if self._speech == (self.now_ms, sender, words) and self.lines[-1].endswith(words):
            head, _, _ = self.lines[-1].rpartition(f"  {words}")
            self.lines[-1] = f"{head}, {receiver}  {words}"
        else:
            self.say(f"{sender} -> {receiver}  {words}")
        self._speech = (self.now_ms, sender, words)

    def say(self, line: str) -> None:
        self.lines.append(f"{self.now_ms - self._epoch_ms:5}  {line}")

    def play(self) -> str:
        return "\n".join(self.lines)

    def curtain(self) -> None:
        """Forget what was said, and count time anew."""
        self.lines.clear()
        self._said.clear()
        self._epoch_ms = self.now_ms

    # What the audience knows.

    def roots(self) -> list[str]:
        return [a.name for a in self.actors.values() if a.core is not None and a.core.is_root]

    def holders(self) -> list[str]:
        """Brokers with a lease."""
        return [
            a.name
            for a in self.actors.values()
            if a.core is not None and a.core.holds_lease(self.clock(a.name))
        ]


def _describe(event: Event) -> str:
    if isinstance(event, BecameRoot):
        return f"is elected root of term {event.term}"
    if isinstance(event, RootReady):
        return f"knows all that was committed: term {event.term} begins"
    if isinstance(event, Resigned):
        return f"resigns: {event.reason}"
    if isinstance(event, RootKnown):
        return f"follows {event.name} in term {event.term}"
    if isinstance(event, RootLost):
        return f"has lost its root {event.name}"
    if isinstance(event, BrokerLeaseLive):
        return f"grants {event.name} its first lease"
    if isinstance(event, BrokerLeaseOver):
        return f"counts the lease of {event.incarnation} as over"
    if isinstance(event, ClusterNamed):
        return "belongs to a cluster now"
    if isinstance(event, PeerRefused):
        return f"refuses {event.name}"
    if isinstance(event, VoterRests):
        return f"lets {event.name} rest: {event.voters} vote"
    if isinstance(event, VoterWakes):
        return f"counts {event.name} again: {event.voters} vote"
    if isinstance(event, IncarnationRetired):
        return f"was retired as {event.incarnation}"
    return "may serve" if isinstance(event, LeaseGained) else "may not serve"


def _words(message: Message) -> str:
    if isinstance(message, PreVote):
        impatient = ", impatient" if message.impatient else ""
        return f"shall I stand? log {message.last_term}/{message.last_index}{impatient}"
    if isinstance(message, PreVoteAnswer):
        return "yes" if message.yes else f"no: {message.reason}"
    if isinstance(message, Vote):
        return f"vote for me in term {message.term}, log {message.last_term}/{message.last_index}"
    if isinstance(message, VoteAnswer):
        return (
            f"you have my vote in term {message.term}" if message.yes else f"no: {message.reason}"
        )
    if isinstance(message, HandOver):
        return "the office is yours: stand now"
    if isinstance(message, Abdication):
        return "I am root no more"
    return "farewell" if isinstance(message, Farewell) else str(message)
