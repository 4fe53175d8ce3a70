"""Queue leases in the scenario "messages" (`--leases`): their applications and checkers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from rhizome.testing.sim.apps.app_program import AppProgram, Workload
from rhizome.testing.sim.apps.app_topology import WORK, QueuePlan, Topology
from rhizome.testing.sim.apps.publishers import Outgoing, Publisher
from rhizome.testing.sim.apps.queue_lease_readers import Checkpoint, QueueLeaseReader, SlowWorker
from rhizome.testing.sim.checkers.checker import Checker
from rhizome.testing.sim.checkers.fault_timeline import Timeline
from rhizome.testing.sim.checkers.loss_and_duplicate_checkers import Promises
from rhizome.testing.sim.checkers.message_history import History
from rhizome.testing.sim.checkers.queue_lease_checkers import (
    LeasedGoesToNobodyElse,
    LeasedWasFree,
    LeasesLast,
    PositionMeansOneMessage,
)
from rhizome.testing.sim.checkers.queue_lease_history import LeaseHistory
from rhizome.testing.sim.world.sim_host import Host

BATCHES: Final = "batches"
"""The queue that is leased; only some of it goes to a consumer."""
LEASERS: Final = (1, 2)

MakeApp = Callable[[Host, str, Workload], AppProgram]


def add_leased_queue(topology: Topology) -> None:
    topology.queues[BATCHES] = QueuePlan(BATCHES)
    topology.bindings.append((WORK, BATCHES, BATCHES))


def lease_checkers(history: History, timeline: Timeline, promises: Promises) -> list[Checker]:
    """The lease history, and all checkers of leases."""
    book = LeaseHistory()
    kinds = (PositionMeansOneMessage, LeasedGoesToNobodyElse, LeasedWasFree, LeasesLast)
    return [book, *[kind(history, timeline, book, promises) for kind in kinds]]


def lease_applications(chance: random.Random) -> dict[str, MakeApp]:
    """The applications: l1, ... lease, d1 publishes to the leased queue, c1 consumes from it."""
    found: dict[str, MakeApp] = {"d1": Dispatcher, "c1": _slow_worker}
    for number in range(1, 1 + chance.randint(*LEASERS)):
        found[f"l{number}"] = _leaser(Checkpoint(f"l{number}"))
    return found


class Dispatcher(Publisher):
    """Publishes to the leased queue only."""

    def _drawn(self) -> Outgoing:
        outgoing = super()._drawn()
        outgoing.exchange, outgoing.key, outgoing.delay_ms = "", BATCHES, 0
        return outgoing


def _slow_worker(host: Host, name: str, workload: Workload) -> AppProgram:
    return SlowWorker(host, name, workload, [BATCHES])


def _leaser(checkpoint: Checkpoint) -> MakeApp:
    return lambda host, name, workload: QueueLeaseReader(host, name, workload, BATCHES, checkpoint)
