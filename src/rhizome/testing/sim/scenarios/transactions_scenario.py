"""The scenario "transactions": applications that work in transactions over several groups (L4).

Its queues keep everything, so that every outcome of a transaction leaves a trace, and there are few
of them, so that most transactions concern several homes. `TxRules` can be broken by name.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from rhizome.cluster.consensus import Rules
from rhizome.cluster.link.broker_hello import PRIMARY, SECONDARY
from rhizome.cluster.transactions.prepared_transactions import TxRules
from rhizome.testing.sim.apps.app_program import TopologyDeclarer, Workload
from rhizome.testing.sim.apps.app_topology import (
    ALL,
    DEAD,
    GRAVES,
    TOPICS,
    WORK,
    QueuePlan,
    Topology,
)
from rhizome.testing.sim.apps.consumers import Worker
from rhizome.testing.sim.apps.publishers import Publisher, TransactionalPublisher
from rhizome.testing.sim.brokers.broker_program import BrokerOptions, BrokerProgram
from rhizome.testing.sim.checkers.group_copy_checkers import CopiesComeBack
from rhizome.testing.sim.checkers.loss_and_duplicate_checkers import TODAY, Promises
from rhizome.testing.sim.checkers.message_history import History
from rhizome.testing.sim.faults.messages_scenario_faults import MessageFaults
from rhizome.testing.sim.scenarios.cluster_scenario import AllJoined
from rhizome.testing.sim.scenarios.messages_scenario import (
    RARE,
    MakeApp,
    application,
    checkers_of,
    drawn_setup,
    follow,
)
from rhizome.testing.sim.seed_run import RunOptions, Simulation, UnknownRule, drawn
from rhizome.testing.sim.world.event_scheduler import World
from rhizome.testing.sim.world.sim_host import Host, Process

QUEUES: Final = ("orders", "bills", "parcels", "claims", GRAVES)
TRANSACTIONAL_PUBLISHERS: Final = (2, 4)


class EagerTransactionalPublisher(TransactionalPublisher):
    """A transactional publisher that consumes from any queue, and more often."""

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
            setattr(program.node.roles.tx_transport.rules, rule, False)
        return program

    return Process(simulation.world, simulation.network, name, make)


def _applications(chance: random.Random) -> dict[str, MakeApp]:
    """Each queue has only two workers, so that transactions find messages to ack."""
    found: dict[str, MakeApp] = {"f1": TopologyDeclarer, "p1": Publisher}
    for number in range(1, 1 + chance.randint(*TRANSACTIONAL_PUBLISHERS)):
        found[f"m{number}"] = EagerTransactionalPublisher
    for number in (1, 2):
        found[f"w{number}"] = lambda host, name, workload: Worker(
            host, name, workload, list(QUEUES)
        )
    return found
