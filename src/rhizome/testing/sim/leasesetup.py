"""Leases of a work queue in the scenario "messages": who leases, and who watches (`--leases`)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from rhizome.testing.sim.apps import AppProgram, Workload
from rhizome.testing.sim.checkers import Checker
from rhizome.testing.sim.history import History
from rhizome.testing.sim.lease_promises import (
    LeasedGoesToNobodyElse,
    LeasedWasFree,
    LeasesLast,
    PositionMeansOneMessage,
)
from rhizome.testing.sim.leaseapps import Checkpoint, Leaser, SlowWorker
from rhizome.testing.sim.leasebook import LeaseBook
from rhizome.testing.sim.process import Host
from rhizome.testing.sim.promises import Promises
from rhizome.testing.sim.publishers import Outgoing, Publisher
from rhizome.testing.sim.timeline import Timeline
from rhizome.testing.sim.topology import WORK, QueuePlan, Topology

BATCHES: Final = "batches"
"""The queue that is leased; only some of it goes to a consumer."""
LEASERS: Final = (1, 2)

MakeApp = Callable[[Host, str, Workload], AppProgram]


def add_leased_queue(topology: Topology) -> None:
    topology.queues[BATCHES] = QueuePlan(BATCHES)
    topology.bindings.append((WORK, BATCHES, BATCHES))


def lease_checkers(history: History, timeline: Timeline, promises: Promises) -> list[Checker]:
    """The book, and all that is promised about leases."""
    book = LeaseBook()
    kinds = (PositionMeansOneMessage, LeasedGoesToNobodyElse, LeasedWasFree, LeasesLast)
    return [book, *[kind(history, timeline, book, promises) for kind in kinds]]


def lease_applications(chance: random.Random) -> dict[str, MakeApp]:
    """Who leases, l1, ..., who publishes to them, d1, and who consumes beside them, c1."""
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
    return lambda host, name, workload: Leaser(host, name, workload, BATCHES, checkpoint)
