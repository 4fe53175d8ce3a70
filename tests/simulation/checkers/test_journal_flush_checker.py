"""The checker of flush policies, on journals that never were."""

from __future__ import annotations

import pytest

from rhizome.testing.sim.checkers.checker import Violation, Watch
from rhizome.testing.sim.checkers.journal_flush_checker import JournalKeepsWhatItsFlushPromises
from rhizome.testing.sim.events.broker_events import JournalAt, JournalOpened
from rhizome.testing.sim.world.event_scheduler import SECOND, World
from rhizome.testing.sim.world.sim_disk import SimDisk

SEGMENT = 3 << 32


def opened(end: int, cut: bool = False, flips: int = 0, begun: int = 0) -> None:
    """A broker ended with a journal that was written up to 900 and synced up to 500, and finds it
    up to ``end``. ``begun``: its last report was of a segment in which it had so much."""
    world = World(0)
    checker = JournalKeepsWhatItsFlushPromises()
    watch = Watch(world, [checker])
    disk = SimDisk(world, "b1")
    checker.disks = {"b1": disk}
    watch.see(JournalOpened("b1", 0))
    world.now_us += SECOND
    watch.see(JournalAt("b1", begun or SEGMENT + 900, begun or SEGMENT + 500))
    world.now_us += SECOND
    if cut:
        disk.power_cut()
    disk.flips = flips
    watch.see(JournalOpened("b1", end))


def test_a_kill_takes_nothing_that_counted_as_durable() -> None:
    opened(SEGMENT + 900)
    with pytest.raises(Violation, match="was killed"):
        opened(SEGMENT + 899)


def test_a_power_cut_takes_nothing_that_was_synced() -> None:
    opened(SEGMENT + 500, cut=True)
    with pytest.raises(Violation, match="lost power"):
        opened(SEGMENT + 499, cut=True)


def test_flipped_bits_and_segments_that_were_not_begun_are_excused() -> None:
    opened(SEGMENT, flips=1)
    opened(SEGMENT - 7, begun=SEGMENT)
