"""The scenario "streams": streams and nothing else, so that seeds are over sooner.

In the scenario "messages" with `--streams` the same applications share brokers with others.
"""

from __future__ import annotations

from dataclasses import replace

from rhizome.cluster.link.broker_hello import PRIMARY, SECONDARY
from rhizome.testing.sim.apps.app_program import TopologyDeclarer, Workload
from rhizome.testing.sim.apps.app_topology import QueuePlan, Topology, drawn_streams
from rhizome.testing.sim.checkers.checker import OneRootServes, StateAgreesOnAllBrokers
from rhizome.testing.sim.checkers.group_copy_checkers import CopiesComeBack
from rhizome.testing.sim.checkers.journal_flush_checker import JournalKeepsWhatItsFlushPromises
from rhizome.testing.sim.checkers.message_history import History
from rhizome.testing.sim.faults.broken_rules import rules_of_consensus
from rhizome.testing.sim.faults.fault_schedule import Fault, Faults
from rhizome.testing.sim.faults.messages_scenario_faults import MessageFaults
from rhizome.testing.sim.scenarios.cluster_scenario import AllJoined
from rhizome.testing.sim.scenarios.flush_policies import show_disks
from rhizome.testing.sim.scenarios.messages_scenario import (
    RARE,
    application,
    drawn_setup,
    follow,
    make_broker,
)
from rhizome.testing.sim.scenarios.stream_workload import (
    StreamAmbushes,
    stream_applications,
    stream_checkers,
)
from rhizome.testing.sim.seed_run import RunOptions, Simulation, drawn
from rhizome.testing.sim.world.event_scheduler import World


class StreamsScenario:
    """Hosts b1, ... and s1, ... for brokers, a1, r1, ... for applications."""

    name = "streams"

    def build(self, world: World, options: RunOptions) -> Simulation:
        primaries = [f"b{n + 1}" for n in range(drawn(world, "brokers", options.brokers))]
        secondaries = [f"s{n + 1}" for n in range(drawn(world, "secondaries", options.secondaries))]
        names = [*primaries, *secondaries]
        topology = Topology({"orders": QueuePlan("orders")}, [("work", "orders", "orders")])
        topology.exchanges = {"work": "direct"}
        topology.streams = drawn_streams(world.chance("streams"))
        history = History(topology)
        watching = [
            history,
            *stream_checkers(topology.streams),
            JournalKeepsWhatItsFlushPromises(),
            CopiesComeBack(),
            StateAgreesOnAllBrokers(),
            OneRootServes(),
            AllJoined(names),
        ]
        simulation = Simulation(world, watching)
        rules = rules_of_consensus(options.broken)
        chance = world.chance("scenario")
        setup = replace(drawn_setup(chance, options.flush), broken=options.broken)
        for name in names:
            role = PRIMARY if name in primaries else SECONDARY
            broker = make_broker(simulation, name, role, primaries, rules, setup)
            simulation.processes.append(broker)
        show_disks(simulation, options.flush)
        workload = Workload(simulation.watch, topology, names)
        follow(workload, simulation.watch)
        applications = stream_applications(world.chance("readers"), topology.streams)
        for name, make in {"f1": TopologyDeclarer, **applications}.items():
            simulation.applications.append(application(simulation, name, make, workload))

        def more(faults: Faults) -> dict[str, Fault]:
            made = MessageFaults(simulation, history, faults)
            ambushes = StreamAmbushes(simulation.watch, history, made.ambushes)
            return made.kinds(True) | ambushes.kinds()

        simulation.plan.more = more
        simulation.plan.rare = RARE
        simulation.ends_when_done = True
        return simulation
