"""Flush policies in a scenario (`--flush`): when journals are synced, and what that promises."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rhizome.journal.writer import ALWAYS, NEVER, Flush, every
from rhizome.testing.sim.checkers.fault_timeline import Timeline
from rhizome.testing.sim.checkers.journal_flush_checker import JournalKeepsWhatItsFlushPromises
from rhizome.testing.sim.checkers.loss_and_duplicate_checkers import Promises
from rhizome.testing.sim.checkers.stream_history import StreamHistories
from rhizome.testing.sim.seed_run import Simulation, UnknownFlush
from rhizome.testing.sim.world.event_scheduler import MS

INTERVAL_MS: Final = 100
"""The default of `journal.flush_interval`."""
NEVER_SYNCED_US: Final = 1 << 60
FLUSHES: Final = {"always": ALWAYS, "interval": every(INTERVAL_MS), "never": NEVER}


def flush_of(name: str) -> Flush:
    """The flush policy of that name; raises UnknownFlush if there is none."""
    if name not in FLUSHES:
        raise UnknownFlush(f"no flush policy '{name}'; there are: {', '.join(FLUSHES)}")
    return FLUSHES[name]


def promised(promises: Promises, name: str) -> Promises:
    """What is promised if journals are synced so."""
    flush = flush_of(name)
    if flush.waits:
        return promises
    unsynced_us = flush.interval_ms * MS if flush.syncs else NEVER_SYNCED_US
    return replace(promises, unsynced_us=unsynced_us)


def show_disks(simulation: Simulation, flush: str) -> None:
    """Have the checkers that need it know when the power of brokers was cut."""
    disks = {each.name: each.disk for each in simulation.processes}
    for checker in simulation.watch.checkers:
        if isinstance(checker, JournalKeepsWhatItsFlushPromises):
            checker.disks = disks
        elif isinstance(checker, Timeline):
            checker.cuts = {name: disk.cuts_us for name, disk in disks.items()}
        elif isinstance(checker, StreamHistories) and not flush_of(flush).waits:
            checker.cuts = [disk.cuts_us for disk in disks.values()]
