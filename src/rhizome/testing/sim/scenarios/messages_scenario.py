"""The scenario "messages": whole brokers, and applications on hosts of their own.

Publishers, transactional publishers and workers connect to any broker over the network, and to
another one when they lose the connection. `application_events.py` has the events that they report,
`loss_and_duplicate_checkers.py` what must hold for them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from rhizome.cluster.consensus import Rules
from rhizome.cluster.link.broker_hello import PRIMARY, SECONDARY
from rhizome.journal.store import StoreOptions
from rhizome.testing.sim.apps.app_program import AppProgram, TopologyDeclarer, Workload
from rhizome.testing.sim.apps.app_topology import (
    Topology,
    add_keyed_queue,
    drawn_streams,
    drawn_topology,
)
from rhizome.testing.sim.apps.consumers import QUEUES_MAX, Worker
from rhizome.testing.sim.apps.publishers import Publisher, TransactionalPublisher
from rhizome.testing.sim.apps.session_resume_consumers import SessionWorker
from rhizome.testing.sim.brokers.broker_program import BrokerOptions, BrokerProgram
from rhizome.testing.sim.checkers.checker import (
    Checker,
    OneRootPerTerm,
    OneRootServes,
    StateAgreesOnAllBrokers,
    Watch,
)
from rhizome.testing.sim.checkers.dead_letter_checker import LettersComeOnce
from rhizome.testing.sim.checkers.delivery_checkers import (
    CommitIsDoneWhenAnswered,
    NoMessageStuck,
    NothingMadeUp,
    OneActiveConsumer,
    OrderPerKey,
    OrderPerPublisherAndQueue,
    PrefetchIsKept,
    TransactionsAllOrNothing,
)
from rhizome.testing.sim.checkers.fault_timeline import Timeline
from rhizome.testing.sim.checkers.group_copy_checkers import (
    CopiesAgreeAtCommittedIndex,
    CopiesComeBack,
)
from rhizome.testing.sim.checkers.journal_flush_checker import JournalKeepsWhatItsFlushPromises
from rhizome.testing.sim.checkers.loss_and_duplicate_checkers import (
    TODAY,
    DuplicatesAreDropped,
    ExactlyOnceBetweenEdgeAndHome,
    NoAckedMessageRedelivered,
    NoConfirmedMessageLost,
    Promises,
    ToldLevelIsKept,
)
from rhizome.testing.sim.checkers.message_history import History
from rhizome.testing.sim.checkers.session_resume_checkers import (
    NothingKeptForNobody,
    SessionsKeepWhatTheyHold,
)
from rhizome.testing.sim.events.broker_events import Healed, Recovered
from rhizome.testing.sim.faults.broken_rules import rules_of_consensus
from rhizome.testing.sim.faults.fault_schedule import Fault, Faults
from rhizome.testing.sim.faults.messages_scenario_faults import MessageFaults
from rhizome.testing.sim.scenarios.cluster_scenario import AllJoined
from rhizome.testing.sim.scenarios.flush_policies import flush_of, promised, show_disks
from rhizome.testing.sim.scenarios.queue_lease_workload import (
    BATCHES,
    add_leased_queue,
    lease_applications,
    lease_checkers,
)
from rhizome.testing.sim.scenarios.stream_workload import (
    StreamAmbushes,
    stream_applications,
    stream_checkers,
)
from rhizome.testing.sim.seed_run import RunOptions, Simulation, drawn
from rhizome.testing.sim.world.event_scheduler import World
from rhizome.testing.sim.world.sim_host import Host, Process

PUBLISHERS: Final = (2, 3)
TRANSACTIONAL_PUBLISHERS: Final = (0, 1)
SESSION_CHANCE: Final = 0.7
SEGMENT_BYTES: Final = (32 * 1024, 256 * 1024, 8 * 1024 * 1024)
BUDGETS_BYTES: Final = (8 * 1024, 64 * 1024, 0)

MakeApp = Callable[[Host, str, Workload], AppProgram]


def checkers_of(topology: Topology, promises: Promises = TODAY) -> list[Checker]:
    """The history, the timeline, and all checkers of messages."""
    history, timeline = History(topology), Timeline()
    kinds = (
        NothingMadeUp,
        NoAckedMessageRedelivered,
        ExactlyOnceBetweenEdgeAndHome,
        LettersComeOnce,
        DuplicatesAreDropped,
        OrderPerPublisherAndQueue,
        OneActiveConsumer,
        OrderPerKey,
        PrefetchIsKept,
        TransactionsAllOrNothing,
        CommitIsDoneWhenAnswered,
        NoConfirmedMessageLost,
        ToldLevelIsKept,
        SessionsKeepWhatTheyHold,
        NothingKeptForNobody,
        NoMessageStuck,
    )
    told = [kind(history, timeline, promises) for kind in kinds]
    return [history, timeline, *told, JournalKeepsWhatItsFlushPromises()]


RARE: Final = {"flip-journal": 0.2, "blackout": 0.2}
"""How often a seed has these faults: they excuse much, so they are not in every other seed."""


class MessagesScenario:
    """Hosts b1, ... for primaries, s1, ... for secondaries, p1, t1, w1, ... for applications,
    a1, r1, ... for those that use streams, c1, l1, ... for leases."""

    name = "messages"

    def __init__(self, promises: Promises = TODAY) -> None:
        self._promises = promises

    def build(self, world: World, options: RunOptions) -> Simulation:
        chance = world.chance("scenario")
        primaries = [f"b{n + 1}" for n in range(drawn(world, "brokers", options.brokers))]
        secondaries = [f"s{n + 1}" for n in range(drawn(world, "secondaries", options.secondaries))]
        names = [*primaries, *secondaries]
        topology = drawn_topology(chance)
        if options.streams:
            topology.streams = drawn_streams(world.chance("streams"))
        _add_special_queues(topology, options)
        books = checkers_of(topology, promised(self._promises, options.flush))
        history, timeline = books[:2]
        assert isinstance(history, History)
        assert isinstance(timeline, Timeline)
        leases = lease_checkers(history, timeline, self._promises) if options.leases else ()
        simulation = Simulation(
            world,
            [
                *books,
                *leases,
                *(stream_checkers(topology.streams) if options.streams else ()),
                CopiesAgreeAtCommittedIndex(),
                CopiesComeBack(),
                OneRootPerTerm(),
                StateAgreesOnAllBrokers(),
                OneRootServes(),
                AllJoined(names),
            ],
        )
        rules = rules_of_consensus(options.broken)
        setup = replace(drawn_setup(chance, options.flush), broken=options.broken)
        for name in names:
            role = PRIMARY if name in primaries else SECONDARY
            broker = make_broker(simulation, name, role, primaries, rules, setup)
            simulation.processes.append(broker)
        show_disks(simulation, options.flush)
        workload = Workload(simulation.watch, topology, names)
        follow(workload, simulation.watch)
        sessions = world.chance("sessions") if options.sessions else None
        applications = _applications(chance, topology, sessions)
        if options.streams:
            applications |= stream_applications(world.chance("readers"), topology.streams)
        if options.leases:
            applications |= lease_applications(world.chance("leases"))
        for name, make in applications.items():
            simulation.applications.append(application(simulation, name, make, workload))

        def more(faults: Faults) -> dict[str, Fault]:
            made = MessageFaults(simulation, history, faults)
            kinds = made.kinds(options.sessions or options.streams)
            if options.streams:
                kinds |= StreamAmbushes(simulation.watch, history, made.ambushes).kinds()
            return kinds

        simulation.plan.more = more
        simulation.plan.rare = RARE
        simulation.ends_when_done = True
        return simulation


def _add_special_queues(topology: Topology, options: RunOptions) -> None:
    if options.keys:
        add_keyed_queue(topology)
    if options.leases:
        add_leased_queue(topology)


def drawn_setup(chance: random.Random, flush: str = "always") -> BrokerOptions:
    """Small segments and budgets, so that rare things happen: paging, checkpoints, compaction."""
    segment_bytes = chance.choice(SEGMENT_BYTES)
    store = StoreOptions(
        segment_bytes_max=segment_bytes,
        spill_segment_bytes_max=segment_bytes,
        checkpoint_bytes=2 * segment_bytes,
        flush=flush_of(flush),
    )
    return BrokerOptions(
        has_application=False,
        tells_traffic=True,
        compares_every=16,
        store=store,
        resident_budget_bytes=chance.choice(BUDGETS_BYTES),
    )


def make_broker(
    simulation: Simulation,
    name: str,
    role: str,
    primaries: list[str],
    rules: Rules,
    setup: BrokerOptions,
) -> Process:
    def make(host: Host) -> BrokerProgram:
        return BrokerProgram(host, name, role, primaries, simulation.watch, rules, replace(setup))

    return Process(simulation.world, simulation.network, name, make)


def follow(workload: Workload, watch: Watch) -> None:
    def healed(_: Healed) -> None:
        workload.is_calm = True

    def recovered(_: Recovered) -> None:
        workload.recovered_us = watch.world.now_us

    watch.listen(Healed, healed)
    watch.listen(Recovered, recovered)


def _applications(
    chance: random.Random, topology: Topology, sessions: random.Random | None
) -> dict[str, MakeApp]:
    """The applications that publish and consume; each queue has at least two workers. ``sessions``
    says which of these come back with what they hold; None: none of them."""
    found: dict[str, MakeApp] = {"f1": TopologyDeclarer}
    for number in range(1, 1 + chance.randint(*PUBLISHERS)):
        found[f"p{number}"] = Publisher
    for number in range(1, 1 + chance.randint(*TRANSACTIONAL_PUBLISHERS)):
        found[f"t{number}"] = TransactionalPublisher
    queues = [name for name in topology.queues if name != BATCHES]
    shares = [chance.sample(queues, len(queues)) for _ in range(2)]
    work = [queue for share in shares for queue in share]
    number = 0
    while work:
        number += 1
        mine = [*dict.fromkeys(work[:QUEUES_MAX])]
        work = work[QUEUES_MAX:]
        resumes = sessions is not None and sessions.random() < SESSION_CHANCE
        found[f"w{number}"] = _worker(SessionWorker if resumes else Worker, mine)
    return found


def _worker(kind: type[Worker], queues: list[str]) -> MakeApp:
    return lambda host, name, workload: kind(host, name, workload, queues)


def application(simulation: Simulation, name: str, make: MakeApp, workload: Workload) -> Process:
    return Process(
        simulation.world, simulation.network, name, lambda host: make(host, name, workload)
    )
