"""Running simulations: a scenario, a seed, and what came out of it.

A scenario says which programs run on which hosts and which checkers watch. `run_seed` lets a
world run for the time asked for: first the storm, then, with all faults over, the calm in which
everything must come right again. Everything about a run follows from scenario, seed and options.
"""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol, TextIO

from rhizome.testing.sim.checkers.checker import Checker, Violation, Watch
from rhizome.testing.sim.events.broker_events import Healed, Recovered
from rhizome.testing.sim.faults.fault_schedule import FaultPlan, Faults
from rhizome.testing.sim.world.event_scheduler import MINUTE, MS, SECOND, World
from rhizome.testing.sim.world.sim_host import Process
from rhizome.testing.sim.world.sim_network import Network

STORM_SHARE: Final = 0.7
CALM_US_MIN: Final = 40 * SECOND
"""Time for programs to come back, elect a root and catch up after the faults."""
STORM_START_US: Final = 5 * SECOND
EARLY_STORM_CHANCE: Final = 0.3
"""How often faults begin at the start of the run."""
RECOVERY_US_MIN: Final = 2 * SECOND
RECOVERY_US_MAX: Final = 6 * SECOND
"""How long after the faults the cluster counts as recovered: at the earliest, if it looks so, and
at the latest."""
QUIET_US: Final = 3 * SECOND
"""A run may end when no checker has waited for anything for this long."""
TAIL_LINES: Final = 40
GARBAGE_OBJECTS_MAX: Final = 200_000

Range = tuple[int, int]


@dataclass(frozen=True)
class RunOptions:
    """What to simulate. A seed draws from the ranges."""

    brokers: Range = (3, 3)
    secondaries: Range = (0, 0)
    minutes: float = 5.0
    faults: Sequence[str] = ()
    """Kinds of fault. Without any named a seed chooses among all."""
    pace: float = 1.0
    """How much more often than usual faults come."""
    broken: Sequence[str] = ()
    """Rules to break on purpose, by name: tests use it to show that checkers see it."""
    sessions: bool = False
    """Some applications come back with what they hold; in the scenario "messages"."""
    streams: bool = False
    """There are streams too, appended to and read; in the scenario "messages"."""
    leases: bool = False
    keys: bool = False
    """There is a queue that is leased; in the scenario "messages"."""
    flush: str = "always"
    """When journals are synced, as the setting `journal.flush` says; in the scenarios "messages"
    and "streams"."""
    distant_ms: int = 0
    """One of the brokers is far away: the delay of all that it sends and gets, for the whole
    run."""


class UnknownFlush(ValueError):
    """No flush policy has this name; the text lists those that there are."""


class UnknownRule(ValueError):
    """No rule that can be broken has this name; the text lists those that there are."""


class Simulation:
    """A world with its hosts and its checkers."""

    def __init__(self, world: World, checkers: Sequence[Checker]) -> None:
        self.world = world
        self.network = Network(world)
        self.processes: list[Process] = []
        """The brokers: faults happen to them."""
        self.applications: list[Process] = []
        """Other programs; only a scenario's own faults happen to these."""
        self.watch = Watch(world, checkers)
        self.plan = FaultPlan(0, 0)
        self.ends_when_done = False
        """Whether applications finish in the calm, so that the run may end early."""


class Scenario(Protocol):
    """Which programs run and which checkers watch."""

    name: str

    def build(self, world: World, options: RunOptions) -> Simulation:
        """Make the hosts, without starting them."""


@dataclass(frozen=True)
class Outcome:
    """What came out of one seed."""

    scenario: str
    seed: int
    checker: str
    """The checker that saw a violation; empty if none did."""
    text: str
    tail: list[str]
    events: int
    virtual_us: int
    wall_s: float
    digest: str
    """Of the trace; empty without one."""
    faults: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return not self.checker


def run_seed(
    scenario: Scenario,
    seed: int,
    options: RunOptions,
    sink: TextIO | None = None,
    traced: bool = True,
) -> Outcome:
    """Simulate one seed. Violations and crashes of programs are part of the outcome.

    One that isn't `traced` has neither digest nor tail, and is over sooner.
    """
    begun_s = time.perf_counter()
    world = World(seed, sink, traced)
    end_us = int(options.minutes * MINUTE)
    simulation = scenario.build(world, options)
    if options.distant_ms:
        _move_away(simulation, options.distant_ms)
    plan = simulation.plan
    plan.kinds = options.faults
    plan.pace = options.pace
    early = world.chance("storm").random() < EARLY_STORM_CHANCE
    plan.start_us = 0 if early else min(STORM_START_US, end_us)
    plan.end_us = max(plan.start_us, min(int(end_us * STORM_SHARE), end_us - CALM_US_MIN))
    faults = Faults(world, simulation.network, simulation.processes, plan, simulation.watch)
    with _rare_collections():
        checker, text = _run(simulation, faults, end_us)
    digest = world.trace.digest() if traced else ""
    return Outcome(
        scenario=scenario.name,
        seed=seed,
        checker=checker,
        text=text,
        tail=world.trace.tail(TAIL_LINES) if checker else [],
        events=world.events,
        virtual_us=world.now_us,
        wall_s=time.perf_counter() - begun_s,
        digest=digest,
        faults=dict(sorted(faults.counts.items())),
        counts=dict(sorted(simulation.watch.counts.items())),
    )


def _move_away(simulation: Simulation, distant_ms: int) -> None:
    """Slow down all paths between one broker and the others; it is no fault, so nothing undoes
    it."""
    names = [process.name for process in simulation.processes]
    far = simulation.world.chance("distance").choice(names)
    simulation.world.note(f"{far} is far away")
    for near in names:
        if near != far:
            simulation.network.slow((near, far), distant_ms * MS)
            simulation.network.slow((far, near), distant_ms * MS)


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Collect garbage rarely: a world is one big cycle that lives to the end of the run."""
    before = gc.get_threshold()
    gc.set_threshold(GARBAGE_OBJECTS_MAX)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _run(simulation: Simulation, faults: Faults, end_us: int) -> tuple[str, str]:
    """Run to the end or to the first violation; returns its checker and text."""
    world, watch = simulation.world, simulation.watch
    try:
        for process in [*simulation.processes, *simulation.applications]:
            process.start()
        faults.schedule()
        watch.glance()
        world.run_until(simulation.plan.end_us)
        watch.see(Healed())
        _run_calm(simulation, end_us)
        watch.final()
    except Violation as violation:
        return violation.checker, violation.text
    except Exception:
        # A program that fails is as bad as a rule that is broken.
        return "ProgramFailed", traceback.format_exc()
    return "", ""


def _run_calm(simulation: Simulation, end_us: int) -> None:
    """Run to the end, or until everything has recovered and nothing has happened since."""
    world, watch = simulation.world, simulation.watch
    healed_us, recovered = world.now_us, False
    quiet_us = 0
    while world.now_us < end_us and not (simulation.ends_when_done and quiet_us >= QUIET_US):
        step_us = min(SECOND, end_us - world.now_us)
        world.run_until(world.now_us + step_us)
        if not recovered and _has_recovered(watch, world.now_us - healed_us):
            recovered = True
            watch.see(Recovered())
        quiet_us = quiet_us + step_us if watch.is_done() else 0


def _has_recovered(watch: Watch, passed_us: int) -> bool:
    if passed_us >= RECOVERY_US_MAX:
        return True
    return passed_us >= RECOVERY_US_MIN and watch.has_recovered()


def drawn(world: World, name: str, limits: Range) -> int:
    """A number between two limits, from the seed."""
    return world.chance(name).randint(*limits)
