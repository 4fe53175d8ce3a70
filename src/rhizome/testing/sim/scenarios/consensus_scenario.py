"""The scenario "consensus": brokers that run the consensus core and nothing else.

A seed draws how many primaries and secondaries there are, what is odd about one of them, how many
primaries can be added later, how small the logs and snapshots are. Besides the faults of every
simulation, primaries are added and removed, and the root hands over.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Final

from rhizome.cluster.consensus import ConsensusSettings, Rules
from rhizome.cluster.link.broker_hello import PRIMARY, SECONDARY, WITNESS
from rhizome.testing.sim.brokers.consensus_program import ConsensusProgram, Place, Workload
from rhizome.testing.sim.checkers.checker import (
    Checker,
    CommittedStateNeverLost,
    LeaseOverMeansOver,
    NothingStuck,
    OneRootPerTerm,
    OneRootServes,
    OneVotePerMachine,
    OneVotePerTerm,
    RootHasDisk,
    SecondariesNeverVote,
    SettledMeansApplied,
    StateAgreesOnAllBrokers,
)
from rhizome.testing.sim.events.broker_events import MembershipAt, Started
from rhizome.testing.sim.faults.fault_schedule import Faults
from rhizome.testing.sim.seed_run import RunOptions, Simulation, UnknownRule, drawn
from rhizome.testing.sim.world.event_scheduler import MS, SECOND, World
from rhizome.testing.sim.world.sim_host import Process

VOTERS_MIN: Final = 2
SPARES_MAX: Final = 2
CERTIFIED_US_MAX: Final = 20 * SECOND
SLANDERED_US_MAX: Final = 50 * MS
RESTARTED_US: Final = 4 * SECOND


class MembershipHistory(Checker):
    """Keeps which brokers vote and which identities exist. It never raises a violation."""

    def __init__(self) -> None:
        super().__init__()
        self.voters: dict[str, str] = {}
        self.entry = 0
        self._identities: dict[str, str] = {}
        self._lost: dict[str, bool] = {}

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {MembershipAt: self._membership, Started: self._started}

    def _membership(self, seen: MembershipAt) -> None:
        if seen.entry > self.entry:
            self.entry = seen.entry
            self.voters = dict(seen.voters)

    def _started(self, seen: Started) -> None:
        self._identities[seen.broker] = seen.uuid
        self._lost.pop(seen.broker, None)

    def may_lose_disk(self, name: str) -> bool:
        """Whether E voters with sound stores are left without this one (R1, R7).

        More losses at a time than that are beyond what the cluster promises to survive.
        """
        if not self.voters or self._is_changing():
            return False
        if name in self.voters:
            sound = [each for each in self.voters if each != name and self._is_sound(each)]
            if len(sound) < len(self.voters) // 2 + 1:
                return False
        self._lost[name] = True
        return True

    def _is_sound(self, name: str) -> bool:
        return self._identities.get(name) == self.voters[name] and name not in self._lost

    def _is_changing(self) -> bool:
        programs = [
            each for each in self.watch.brokers.values() if isinstance(each, ConsensusProgram)
        ]
        return any(p.core.state.persistent.log.memberships[-1][0] > self.entry for p in programs)


class ConsensusScenario:
    """Hosts b1, b2, ... for primaries and s1, ... for secondaries."""

    name = "consensus"

    def __init__(
        self, more: Callable[[], list[Checker]] = list, settings: dict[str, int] | None = None
    ) -> None:
        """`more` makes checkers that watch besides the usual ones; `settings` of the core are the
        same in every seed, the others are drawn."""
        self._more = more
        self._settings = settings or {}

    def build(self, world: World, options: RunOptions) -> Simulation:
        chance = world.chance("scenario")
        primaries = _numbered("b", 1, drawn(world, "brokers", options.brokers))
        spares = _numbered("b", len(primaries) + 1, int(chance.random() * (SPARES_MAX + 1)))
        secondaries = _numbered("s", 1, drawn(world, "secondaries", options.secondaries))
        places = _places(primaries, spares, secondaries)
        _make_odd(places, primaries, chance)
        book = MembershipHistory()
        checkers = [
            OneRootPerTerm(),
            OneVotePerTerm(),
            OneVotePerMachine(),
            SecondariesNeverVote(),
            CommittedStateNeverLost(),
            StateAgreesOnAllBrokers(),
            OneRootServes(),
            RootHasDisk(),
            LeaseOverMeansOver(),
            SettledMeansApplied(),
            book,
            NothingStuck([place.name for place in places]),
            *self._more(),
        ]
        simulation = Simulation(world, checkers)
        workload = _workload(chance, options, self._settings)
        simulation.processes = [_process(simulation, place, workload) for place in places]
        simulation.plan.may_lose_disk = book.may_lose_disk
        orders = _Orders(simulation, primaries + spares, book)
        simulation.plan.extra = {"membership": orders.change, "hand-over": orders.hand_over}
        deaths = _Deaths(simulation)
        simulation.plan.more = lambda faults: {
            "death": lambda chance: deaths.kill(chance, faults),
            "slander": lambda chance: deaths.slander(chance, faults),
        }
        simulation.plan.rare = {"slander": 0.0}
        return simulation


def _numbered(letter: str, first: int, count: int) -> list[str]:
    return [f"{letter}{number}" for number in range(first, first + count)]


def _places(primaries: list[str], spares: list[str], secondaries: list[str]) -> list[Place]:
    voters = primaries + spares
    return [
        Place(
            name=name,
            role=SECONDARY if name in secondaries else PRIMARY,
            primaries=tuple(primaries),
            bootstrap=name in primaries,
            machine=f"machine-{name}",
            dials=tuple(voters if name in secondaries else [v for v in voters if v > name]),
        )
        for name in voters + secondaries
    ]


def _make_odd(places: list[Place], primaries: list[str], chance: random.Random) -> None:
    """Make one broker unusual, as in real configurations: a witness, two primaries on one machine,
    or a broker that the others list as a primary and that is none."""
    last = len(primaries) - 1
    choice = chance.random()
    if choice < 0.15:
        places[last] = replace(places[last], role=WITNESS)
    elif choice < 0.25 and last >= 2:
        places[last] = replace(places[last], machine=places[last - 1].machine)
    elif choice < 0.35 and last >= 2:
        places[last] = replace(places[last], role=SECONDARY, bootstrap=False)


def _workload(chance: random.Random, options: RunOptions, fixed: dict[str, int]) -> Workload:
    heartbeat_ms = chance.choice((150, 250, 400))
    settings = {
        "heartbeat_ms": heartbeat_ms,
        "root_lease_ms": 6 * heartbeat_ms,
        "home_lease_ms": 6 * heartbeat_ms + 2_000,
        "log_entries_max": chance.choice((16, 64, 256, 4096)),
        "log_entries_kept": chance.choice((0, 8, 64)),
        "append_entries_max": chance.choice((1, 4, 1024)),
        "appends_in_flight_max": chance.choice((1, 8)),
        "snapshot_chunk_bytes": chance.choice((64, 1024, 262_144)),
        "retire_ms": chance.choice((10_000, 60_000)),
    }
    return Workload(
        settings=ConsensusSettings(**{**settings, **fixed}),
        rules=_rules(options),
        propose_ms=chance.choice((200, 1_000, 4_000)),
        payload_bytes_max=chance.choice((50, 2_000)),
    )


def _rules(options: RunOptions) -> Rules:
    known = [each.name for each in fields(Rules)]
    for rule in options.broken:
        if rule not in known:
            raise UnknownRule(f"no rule '{rule}'; there are: {', '.join(known)}")
    return Rules(**dict.fromkeys(options.broken, False))


def _process(simulation: Simulation, place: Place, workload: Workload) -> Process:
    return Process(
        simulation.world,
        simulation.network,
        place.name,
        lambda host: ConsensusProgram(host, place, workload, simulation.watch),
    )


class _Orders:
    """Orders of people, given whether it is a good moment or not."""

    def __init__(self, simulation: Simulation, voters: list[str], book: MembershipHistory) -> None:
        self._simulation = simulation
        self._voters = voters
        self._book = book

    def change(self, chance: random.Random) -> None:
        """Add a primary that is none, or remove one that is."""
        members = list(self._book.voters)
        others = [name for name in self._voters if name not in members]
        add = bool(others) and (len(members) <= VOTERS_MIN or chance.random() < 0.5)
        if not add and len(members) <= VOTERS_MIN:
            return
        chosen = others if add else members
        name = chosen[int(chance.random() * len(chosen))]
        self._order(
            f"{'add' if add else 'remove'} {name}", lambda p: p.change_membership(add, name)
        )

    def hand_over(self, chance: random.Random) -> None:
        name = self._voters[int(chance.random() * len(self._voters))]
        self._order(f"hand over to {name}", lambda program: program.hand_over(name))

    def _order(self, text: str, order: Callable[[ConsensusProgram], str]) -> None:
        """Give an order to every broker that believes it is root; there may be two."""
        for process in self._simulation.processes:
            program = process.program
            if isinstance(program, ConsensusProgram) and program.core.is_root:
                process.put(_ordered, process, program, text, order)


class _Deaths:
    """Certificates of death (R15): true ones, which come at once or after the next start; and false
    ones, of brokers that live."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def kill(self, chance: random.Random, faults: Faults) -> None:
        program = self._some(chance)
        if program is not None:
            faults.kill_host(program.place.name)
            self._certify(program, chance, CERTIFIED_US_MAX)

    def slander(self, chance: random.Random, faults: Faults) -> None:
        """Everybody hears that a broker died that lives and is linked. It is started anew later, as
        one that stops for it would be."""
        program = self._some(chance)
        processes = self._simulation.processes
        if program is None or not all(each.is_running() for each in processes):
            return
        self._certify(program, chance, SLANDERED_US_MAX)
        name = program.place.name
        self._simulation.world.after(RESTARTED_US, faults.kill_host, name)

    def _some(self, chance: random.Random) -> ConsensusProgram | None:
        processes = self._simulation.processes
        program = processes[int(chance.random() * len(processes))].program
        return program if isinstance(program, ConsensusProgram) else None

    def _certify(self, dead: ConsensusProgram, chance: random.Random, us_max: int) -> None:
        name, incarnation = dead.place.name, dead.incarnation()
        for process in self._simulation.processes:
            delay_us = int(us_max * chance.random() ** 4)
            self._simulation.world.after(delay_us, _certified, process, name, incarnation)


def _certified(process: Process, name: str, incarnation: str) -> None:
    program = process.program
    if isinstance(program, ConsensusProgram):
        process.put(program.certified, name, incarnation)


def _ordered(
    process: Process, program: ConsensusProgram, text: str, order: Callable[[ConsensusProgram], str]
) -> None:
    process.world.note(f"{process.name} is told to {text}: {order(program)}")
