"""Brokers on a machine that has too few processors: each stands still again and again."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rhizome.cluster.consensus import ALL_RULES, ConsensusSettings
from rhizome.cluster.consensus.settings import STALL_MS
from rhizome.cluster.takeover.takeover_driver import TakeoverDriver
from rhizome.testing.sim.brokers.broker_program import BrokerOptions, BrokerProgram
from rhizome.testing.sim.brokers.consensus_program import ConsensusProgram, Place, Workload
from rhizome.testing.sim.checkers.checker import (
    CommittedStateNeverLost,
    OneRootPerTerm,
    OneRootServes,
    OneVotePerTerm,
    StateAgreesOnAllBrokers,
)
from rhizome.testing.sim.seed_run import Simulation
from rhizome.testing.sim.world.event_scheduler import MS, SECOND, World
from rhizome.testing.sim.world.sim_host import Host, Process

NAMES = ("b1", "b2", "b3", "b4", "b5")
SEEDS = range(3)
RUN_MS_MEAN = 60
STILL_MS_MEAN = 80
LONG_SHARE = 0.03
LONG_MS_MIN = 300
LONG_MS_MAX = 1_800
"""Twice the lease of a root: some of these are real reasons for an election."""


class Unaware(ConsensusProgram):
    """As brokers were: whatever was not heard while they stood still counts as silence."""

    def _now_ms(self) -> int:
        return self.host.now_ms()


class Deaf(TakeoverDriver):
    """Takes every home for dead whose lease is over."""

    def hears(self, broker: str) -> bool:
        return False


class UnawareBroker(BrokerProgram):
    """The same of a whole broker: it never wakes up late, and waits for nobody."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        takeover = self.node.takeover_driver.takeover
        deaf = Deaf(self.node, takeover.settings)
        deaf.takeover = takeover
        takeover.port = deaf

    def woken(self) -> None:
        node, now_ms = self.node, self.host.now_ms()
        while now_ms - int(node.now_ms) > STALL_MS:
            node.begin(int(node.now_ms) + STALL_MS)
        super().woken()


class Starvation:
    """Lets processes run and stand still by turns."""

    def __init__(self, world: World, processes: list[Process]) -> None:
        self._world = world
        for process in processes:
            chance = world.chance(f"starvation/{process.name}")
            world.after(5 * SECOND, self._stop, process, chance)

    def _stop(self, process: Process, chance: random.Random) -> None:
        still_ms = chance.expovariate(1 / STILL_MS_MEAN)
        if chance.random() < LONG_SHARE:
            still_ms = LONG_MS_MIN + chance.random() * (LONG_MS_MAX - LONG_MS_MIN)
        process.pause()
        self._world.after(int(still_ms * MS), self._go_on, process, chance)

    def _go_on(self, process: Process, chance: random.Random) -> None:
        process.resume()
        run_ms = 1 + chance.expovariate(1 / RUN_MS_MEAN)
        self._world.after(int(run_ms * MS), self._stop, process, chance)


def terms_in_a_minute(seed: int, kind: type[ConsensusProgram], slow_disk: int) -> int:
    world = World(seed)
    checkers = [
        OneRootPerTerm(),
        OneVotePerTerm(),
        OneRootServes(),
        CommittedStateNeverLost(),
        StateAgreesOnAllBrokers(),
    ]
    simulation = Simulation(world, checkers)
    workload = Workload(ConsensusSettings(), ALL_RULES, 1_000, 50)

    def process(name: str) -> Process:
        dials = tuple(other for other in NAMES if other > name)
        place = Place(name, "primary", NAMES, True, f"machine-{name}", dials)

        def program(host: Host) -> ConsensusProgram:
            return kind(host, place, workload, simulation.watch)

        return Process(world, simulation.network, name, program)

    processes = [process(name) for name in NAMES]
    for each in processes:
        each.start()
        each.disk.slow(slow_disk)
    Starvation(world, processes)
    world.run_until(60 * SECOND)
    assert simulation.watch.counts["BecameRoot"] >= 1
    return max(
        each.program.core.term for each in processes if isinstance(each.program, ConsensusProgram)
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize("slow_disk", [1, 50])
def test_starved_brokers_elect_roots_only_when_there_is_a_reason(slow_disk: int) -> None:
    aware = sum(terms_in_a_minute(seed, ConsensusProgram, slow_disk) for seed in SEEDS)
    unaware = sum(terms_in_a_minute(seed, Unaware, slow_disk) for seed in SEEDS)
    assert 2 * aware < unaware, f"{aware} terms, and {unaware} without looking at the own clock"


def home_changes_in_a_minute(seed: int, kind: type[BrokerProgram]) -> int:
    """Epochs that began in the groups of whole brokers, be it by a takeover or a way back."""
    world = World(seed)
    checkers = [OneRootPerTerm(), OneRootServes(), StateAgreesOnAllBrokers()]
    simulation = Simulation(world, checkers)
    names = NAMES[:3]

    def process(name: str) -> Process:
        def program(host: Host) -> BrokerProgram:
            options = BrokerOptions(has_application=False)
            return kind(host, name, "primary", names, simulation.watch, ALL_RULES, options)

        return Process(world, simulation.network, name, program)

    processes = [process(name) for name in names]
    for each in processes:
        each.start()
    Starvation(world, processes)
    world.run_until(65 * SECOND)
    nodes = [each.program.node for each in processes if isinstance(each.program, BrokerProgram)]
    latest = max(nodes, key=lambda node: int(node.applied.index))
    return sum(group.epoch - 1 for group in latest.state.groups.groups.values())


@pytest.mark.timeout(300)
def test_starved_brokers_stay_home_of_their_groups_unless_there_is_a_reason() -> None:
    seeds = range(6)
    aware = sum(home_changes_in_a_minute(seed, BrokerProgram) for seed in seeds)
    unaware = sum(home_changes_in_a_minute(seed, UnawareBroker) for seed in seeds)
    assert 2 * aware < unaware, f"{aware} changes, and {unaware} without looking at the own clock"
