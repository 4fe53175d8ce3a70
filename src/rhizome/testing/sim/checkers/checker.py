"""The base class of checkers, and the checkers of consensus.

A checker registers a handler for each kind of event that it needs, and raises `Violation` as soon
as it sees something that must not happen. `Watch` hands events to them and keeps the trace.
Checkers that need the state of other brokers ask `watch.brokers`, the programs that run now: a
simulation may look everywhere at once, as no broker can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from rhizome.testing.sim.events.broker_events import (
    Accepted,
    Applied,
    BecameRoot,
    Committed,
    Healed,
    LeaseGained,
    LeaseOver,
    Observation,
    RegistryAt,
    Resigned,
    Serves,
    Settled,
    Started,
    Voted,
    trace_line,
)
from rhizome.testing.sim.world.event_scheduler import SECOND, World, shown_time

CLOCK_MARGIN: Final = 0.05
CATCH_UP_US: Final = 5 * SECOND
"""What was committed this long before the end must have reached every broker by then."""

GLANCE_US: Final = SECOND // 4
VOTER_ROLES: Final = ("primary", "witness")


class Violation(Exception):
    """A checker saw something that must not happen; its name says what."""

    def __init__(self, checker: str, text: str) -> None:
        super().__init__(f"{checker}: {text}")
        self.checker = checker
        self.text = text


class BrokerView(Protocol):
    """What a checker may ask of a running broker."""

    def applied_index(self) -> int: ...
    def incarnation(self) -> str: ...
    def has_lease(self) -> bool:
        """Whether it holds a lease by its own clock, so may serve applications."""

    def serves_as_root(self) -> bool:
        """Whether it would act as root now, by its own clock."""

    def disk_silence_ms(self) -> int:
        """How long ago its disk completed a write."""

    def root_lease_ms(self) -> int: ...
    def explain(self) -> str:
        """Role, term, root and what it waits for, in one line."""


class Checker:
    """One thing that must hold."""

    def __init__(self) -> None:
        self.watch: Watch

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        """The handler for each kind of event."""
        return {}

    def glance(self) -> None:
        """Called every so often: check what must hold at any time."""

    def has_recovered(self) -> bool:
        """In the calm: whether brokers are as they were before the faults."""
        return True

    def is_done(self) -> bool:
        """In the calm: whether there is nothing left that `final` would have to wait for."""
        return True

    def final(self) -> None:
        """Called at the end of the run: check what must have happened by now."""

    def fail(self, text: str) -> None:
        raise Violation(type(self).__name__, text)


class Watch:
    """Hands every event to the checkers that asked for its kind."""

    def __init__(self, world: World, checkers: Sequence[Checker]) -> None:
        self.world = world
        self.brokers: dict[str, BrokerView] = {}
        self.counts: dict[str, int] = {}
        self.checkers = list(checkers)
        self._handlers: dict[type, list[Callable[[Any], None]]] = {}
        for checker in checkers:
            checker.watch = self
            for kind, handler in checker.handlers().items():
                self.listen(kind, handler)

    def listen(self, kind: type, handler: Callable[[Any], None]) -> None:
        """Hand every event of a kind to `handler`."""
        self._handlers.setdefault(kind, []).append(handler)

    def see(self, observation: Observation) -> None:
        if self.world.traced:
            self.world.note(trace_line(observation))
        kind = type(observation)
        self.counts[kind.__name__] = self.counts.get(kind.__name__, 0) + 1
        for handler in self._handlers.get(kind, ()):
            handler(observation)

    def glance(self) -> None:
        """Call `glance` of the checkers, now and from now on."""
        for checker in self.checkers:
            checker.glance()
        self.world.after(GLANCE_US, self.glance)

    def has_recovered(self) -> bool:
        return all(checker.has_recovered() for checker in self.checkers)

    def is_done(self) -> bool:
        return all(checker.is_done() for checker in self.checkers)

    def final(self) -> None:
        for checker in self.checkers:
            checker.final()


class OneRootPerTerm(Checker):
    """R1, R3: a term has one root at most."""

    def __init__(self) -> None:
        super().__init__()
        self._roots: dict[int, str] = {}

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {BecameRoot: self._became_root}

    def _became_root(self, seen: BecameRoot) -> None:
        other = self._roots.setdefault(seen.term, seen.broker)
        if other != seen.broker:
            self.fail(f"both {other} and {seen.broker} became root of term {seen.term}")


class OneVotePerTerm(Checker):
    """R3, R7: a name gives one vote per term, whatever happens to its memory and disk."""

    def __init__(self) -> None:
        super().__init__()
        self._votes: dict[tuple[str, int], str] = {}

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {Voted: self._voted}

    def _voted(self, seen: Voted) -> None:
        other = self._votes.setdefault((seen.broker, seen.term), seen.candidate)
        if other != seen.candidate:
            self.fail(
                f"{seen.broker} voted for {other} and for {seen.candidate} in term {seen.term}"
            )


class OneVotePerMachine(Checker):
    """R13: of the brokers on one machine at most one votes in a term.

    Before the founding no broker knows which machines the others are on.
    """

    def __init__(self) -> None:
        super().__init__()
        self._founded = False
        self._machines: dict[str, str] = {}
        self._voters: dict[tuple[str, int], str] = {}

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {Started: self._started, Voted: self._voted, Committed: self._committed}

    def _started(self, seen: Started) -> None:
        self._machines[seen.broker] = seen.machine

    def _committed(self, _: Committed) -> None:
        self._founded = True

    def _voted(self, seen: Voted) -> None:
        if not self._founded:
            return
        machine = self._machines.get(seen.broker, "")
        other = self._voters.setdefault((machine, seen.term), seen.broker)
        if machine and other != seen.broker:
            self.fail(f"{other} and {seen.broker} on {machine} both voted in term {seen.term}")


class SecondariesNeverVote(Checker):
    """R5: only primaries vote."""

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {Voted: self._voted}

    def _voted(self, seen: Voted) -> None:
        if seen.role not in VOTER_ROLES:
            self.fail(f"{seen.broker}, a {seen.role}, voted for {seen.candidate}")


class _Known(NamedTuple):
    """An entry that a broker knew to be committed."""

    term: int
    digest: str
    broker: str
    seen_in: int


class CommittedStateNeverLost(Checker):
    """R1 to R4: what one broker knows to be committed stays so for all brokers, and every root of a
    later term has it. What applications were told to be committed is committed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, _Known] = {}

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {
            Committed: self._committed,
            BecameRoot: self._became_root,
            Accepted: self._accepted,
        }

    def _committed(self, seen: Committed) -> None:
        known = self._known.get(seen.entry)
        if known is None:
            self._known[seen.entry] = _Known(seen.term, seen.digest, seen.broker, seen.seen_in)
        elif (known.term, known.digest) != (seen.term, seen.digest):
            self.fail(
                f"at {seen.entry} {known.broker} has committed {known.digest} of term "
                f"{known.term}, {seen.broker} {seen.digest} of term {seen.term}"
            )

    def _became_root(self, seen: BecameRoot) -> None:
        entries = {index: (term, digest) for index, term, digest in seen.entries}
        first = seen.entries[0][0] if seen.entries else 1
        for index, known in self._known.items():
            if index < first or known.seen_in >= seen.term:
                continue
            if entries.get(index) != (known.term, known.digest):
                self.fail(
                    f"{seen.broker} became root of term {seen.term} with "
                    f"{entries.get(index, 'nothing')} at {index}, where {known.broker} has "
                    f"committed {known.digest} of term {known.term}"
                )

    def _accepted(self, seen: Accepted) -> None:
        known = self._known.get(seen.entry)
        if known is None or known.digest != seen.digest:
            self.fail(f"{seen.broker} told an application that {seen.entry} is committed: {known}")


class StateAgreesOnAllBrokers(Checker):
    """After the same entry every broker's state is the same, and its registry of brokers."""

    def __init__(self) -> None:
        super().__init__()
        self._states: dict[int, tuple[str, str]] = {}
        self._registries: dict[int, tuple[str, str]] = {}

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {Applied: self._applied, RegistryAt: self._registry}

    def _applied(self, seen: Applied) -> None:
        self._compare(self._states, seen.entry, seen.broker, seen.state)

    def _registry(self, seen: RegistryAt) -> None:
        self._compare(self._registries, seen.entry, seen.broker, seen.digest)

    def _compare(
        self, known: dict[int, tuple[str, str]], entry: int, broker: str, state: str
    ) -> None:
        other, expected = known.setdefault(entry, (broker, state))
        if state != expected:
            self.fail(f"after entry {entry} {other} has {expected}, and {broker} {state}")


class OneRootServes(Checker):
    """R9: at most one broker acts as root under a lease, whatever the clocks say."""

    def glance(self) -> None:
        serving = [name for name, each in self.watch.brokers.items() if each.serves_as_root()]
        if len(serving) > 1:
            self.fail(f"{' and '.join(serving)} serve as root at the same time")

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {Serves: self._serves}

    def _serves(self, seen: Serves) -> None:
        for name, broker in self.watch.brokers.items():
            if name != seen.broker and broker.serves_as_root():
                self.fail(
                    f"{seen.broker} begins to serve as root of term {seen.term} while {name} "
                    f"still does: {broker.explain()}"
                )


class RootHasDisk(Checker):
    """R9: a root whose disk takes no writes loses its lease and stops being root."""

    def glance(self) -> None:
        for name, broker in self.watch.brokers.items():
            allowed_ms = int(broker.root_lease_ms() * (1 + CLOCK_MARGIN)) + 1
            if broker.serves_as_root() and broker.disk_silence_ms() > allowed_ms:
                silence_ms = broker.disk_silence_ms()
                self.fail(f"{name} serves as root with a disk that is silent for {silence_ms} ms")


class HealthyRootStays(Checker):
    """R5: a broker that returns does not depose a root that holds its lease.

    Not among the checkers of every run: a candidate whose campaign began before the root was
    elected may depose it, once and rightly.
    """

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {Resigned: self._resigned}

    def _resigned(self, seen: Resigned) -> None:
        if seen.held and seen.reason.startswith("term "):
            self.fail(f"{seen.broker}, root of term {seen.term}, held its lease: {seen.reason}")


class LeaseOverMeansOver(Checker):
    """R9: a lease that a root counts as over is over by the holder's own clock."""

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {LeaseOver: self._over}

    def _over(self, seen: LeaseOver) -> None:
        broker = self.watch.brokers.get(seen.broker)
        if broker is not None and broker.incarnation() == seen.incarnation and broker.has_lease():
            self.fail(f"{seen.root} takes the lease of {seen.broker} for over: {broker.explain()}")


class SettledMeansApplied(Checker):
    """R10: once an entry counts as settled, every broker with a live lease has applied it."""

    def __init__(self) -> None:
        super().__init__()
        self._settled_index = 0

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {Settled: self._settled, LeaseGained: self._gained}

    def _gained(self, seen: LeaseGained) -> None:
        applied = self.watch.brokers[seen.broker].applied_index()
        if applied < self._settled_index:
            self.fail(
                f"{seen.broker} was given a lease having applied {applied}, while "
                f"{self._settled_index} is settled"
            )

    def _settled(self, seen: Settled) -> None:
        self._settled_index = max(self._settled_index, seen.entry)
        for name, broker in self.watch.brokers.items():
            if broker.has_lease() and broker.applied_index() < seen.entry:
                self.fail(
                    f"{seen.broker} says that {seen.entry} is settled, but {name} holds a lease "
                    f"and has applied {broker.applied_index()}: {broker.explain()}"
                )


class NothingStuck(Checker):
    """Once the faults are over, changes are committed again and reach every broker."""

    def __init__(self, expected: Sequence[str]) -> None:
        super().__init__()
        self._expected = list(expected)
        self._healed_us = -1
        self._accepted: list[tuple[int, int]] = []

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {Healed: self._healed, Accepted: self._note}

    def _healed(self, _: Healed) -> None:
        self._healed_us = self.watch.world.now_us

    def _note(self, seen: Accepted) -> None:
        if self._healed_us >= 0:
            self._accepted.append((self.watch.world.now_us, seen.entry))

    def final(self) -> None:
        if self._healed_us < 0:
            return
        due_us = self.watch.world.now_us - CATCH_UP_US
        due = [index for when_us, index in self._accepted if when_us <= due_us]
        if not due:
            self._stuck("no change was committed since then")
        for name in self._expected:
            broker = self.watch.brokers.get(name)
            if broker is None or broker.applied_index() < max(due):
                self._stuck(f"{name} has not applied entry {max(due)}")

    def _stuck(self, text: str) -> None:
        brokers = self.watch.brokers.items()
        states = "".join(f"\n    {name}: {broker.explain()}" for name, broker in brokers)
        self.fail(f"the faults were over at {shown_time(self._healed_us)}; {text}{states}")
