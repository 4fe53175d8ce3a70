"""The scenario "transactions": applications that work in transactions over several groups (L4).

Its queues keep everything, so that whatever becomes of a transaction leaves a trace, and there are
few, so that a transaction mostly concerns several homes. `TxRules` can be broken by name.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from rhizome.cluster.consensus import Rules
from rhizome.cluster.docket import TxRules
from rhizome.cluster.identity import PRIMARY, SECONDARY
from rhizome.testing.sim.agreement import CopiesComeBack
from rhizome.testing.sim.apps import Founder, Workload
from rhizome.testing.sim.broker_program import BrokerOptions, BrokerProgram
from rhizome.testing.sim.cluster_scenario import AllJoined
from rhizome.testing.sim.consumers import Worker
from rhizome.testing.sim.history import History
from rhizome.testing.sim.message_faults import MessageFaults
from rhizome.testing.sim.messages_scenario import (
    RARE,
    MakeApp,
    application,
    checkers_of,
    drawn_setup,
    follow,
)
from rhizome.testing.sim.process import Host, Process
from rhizome.testing.sim.promises import TODAY, Promises
from rhizome.testing.sim.publishers import Publisher, Trader
from rhizome.testing.sim.run import RunOptions, Simulation, UnknownRule, drawn
from rhizome.testing.sim.topology import ALL, DEAD, GRAVES, TOPICS, WORK, QueuePlan, Topology
from rhizome.testing.sim.world import World

QUEUES: Final = ("orders", "bills", "parcels", "claims", GRAVES)
TRADERS: Final = (2, 4)


class Merchant(Trader):
    """Like a trader, but it takes messages of any queue, and more often."""

    pulls = QUEUES
    pull_chance = 0.45


class TransactionsScenario:
    """Hosts b1, ... and s1, ... for brokers, p1, m1, ..., w1, ... for applications."""

    name = "transactions"

    def __init__(self, promises: Promises = TODAY) -> None:
        self._promises = promises

    def build(self, world: World, options: RunOptions) -> Simulation:
        chance = world.chance("scenario")
        primaries = [f"b{n + 1}" for n in range(drawn(world, "brokers", options.brokers))]
        secondaries = [f"s{n + 1}" for n in range(drawn(world, "secondaries", options.secondaries))]
        names = [*primaries, *secondaries]
        topology = plain_topology()
        books = checkers_of(topology, self._promises)
        simulation = Simulation(world, [*books, CopiesComeBack(), AllJoined(names)])
        broken = _broken(options)
        setup = drawn_setup(chance)
        for name in names:
            role = PRIMARY if name in primaries else SECONDARY
            simulation.processes.append(_broker(simulation, name, role, primaries, broken, setup))
        workload = Workload(simulation.watch, topology, names)
        follow(workload, simulation.watch)
        for name, make in _applications(chance).items():
            simulation.applications.append(application(simulation, name, make, workload))
        history = books[0]
        assert isinstance(history, History)
        simulation.plan.more = lambda faults: MessageFaults(simulation, history, faults).kinds()
        simulation.plan.rare = RARE
        simulation.ends_when_done = True
        return simulation


def plain_topology() -> Topology:
    topology = Topology({name: QueuePlan(name) for name in QUEUES})
    topology.exchanges = {DEAD: "fanout", WORK: "direct", ALL: "fanout", TOPICS: "topic"}
    bind = topology.bindings.append
    bind((DEAD, "", GRAVES))
    for name in QUEUES[:-1]:
        bind((WORK, name, name))
        bind((ALL, "", name))
    bind((WORK, "both", "orders"))
    bind((WORK, "both", "bills"))
    bind((TOPICS, "eu.#", "orders"))
    bind((TOPICS, "#.paid", "claims"))
    return topology


def _broken(options: RunOptions) -> list[str]:
    known = list(vars(TxRules()))
    for rule in options.broken:
        if rule not in known:
            raise UnknownRule(f"no rule '{rule}'; there are: {', '.join(known)}")
    return list(options.broken)


def _broker(
    simulation: Simulation,
    name: str,
    role: str,
    primaries: list[str],
    broken: list[str],
    setup: BrokerOptions,
) -> Process:
    def make(host: Host) -> BrokerProgram:
        watch = simulation.watch
        program = BrokerProgram(host, name, role, primaries, watch, Rules(), replace(setup))
        for rule in broken:
            setattr(program.node.roles.txs.rules, rule, False)
        return program

    return Process(simulation.world, simulation.network, name, make)


def _applications(chance: random.Random) -> dict[str, MakeApp]:
    """Each queue has two workers, who are not very many, so that transactions find something."""
    found: dict[str, MakeApp] = {"f1": Founder, "p1": Publisher}
    for number in range(1, 1 + chance.randint(*TRADERS)):
        found[f"m{number}"] = Merchant
    for number in (1, 2):
        found[f"w{number}"] = lambda host, name, workload: Worker(
            host, name, workload, list(QUEUES)
        )
    return found
