"""An ambush strikes within milliseconds, and never once the faults are over."""

from __future__ import annotations

import random

import pytest

from rhizome.testing.sim.checkers.checker import Watch
from rhizome.testing.sim.events.broker_events import BecameRoot
from rhizome.testing.sim.faults.event_triggered_faults import STRIKE_US_MAX, Ambushes
from rhizome.testing.sim.world.event_scheduler import SECOND, World


class Recorder:
    """Strikes nobody. The faults are over after a second."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.struck: list[tuple[int, str]] = []

    def is_over(self) -> bool:
        return self.world.now_us >= SECOND

    def isolate_host(self, name: str) -> None:
        self.struck.append((self.world.now_us, name))

    kill_host = cut_power_of = split_off = cut_power_of_all = isolate_host


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("too_late", [False, True])
def test_an_ambush_strikes_soon_and_only_during_the_storm(seed: int, too_late: bool) -> None:
    world = World(seed)
    watch = Watch(world, [])
    recorder = Recorder(world)
    ambushes = Ambushes(world, watch, recorder)
    ambushes.kinds()["ambush-root"](random.Random(seed))
    seen_us = SECOND if too_late else SECOND // 2
    world.at(seen_us, watch.see, BecameRoot("b1", 1, []))
    world.run_until(2 * SECOND)
    if too_late:
        assert recorder.struck == []
    else:
        ((struck_us, name),) = recorder.struck
        assert name == "b1"
        assert 0 <= struck_us - seen_us <= STRIKE_US_MAX
