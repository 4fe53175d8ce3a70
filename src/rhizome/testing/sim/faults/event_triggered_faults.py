"""Ambushes: faults that wait for an event and strike at that moment.

Most rules guard a moment that random faults seldom hit: between a vote and its sync, between a
commit and the news of it, just after an election. The fault schedule sets an ambush, which waits
for its event and strikes the broker concerned within a few milliseconds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from rhizome.testing.sim.checkers.checker import Watch
from rhizome.testing.sim.events.broker_events import BecameRoot, Committed, Ordered, Voted
from rhizome.testing.sim.world.event_scheduler import MS, World

STRIKE_US_MAX: Final = 5 * MS
AT_ONCE_CHANCE: Final = 0.5


class Striker(Protocol):
    """What can be done to a host, by name; nothing once `is_over`."""

    def is_over(self) -> bool: ...
    def isolate_host(self, name: str) -> None: ...
    def kill_host(self, name: str) -> None: ...
    def cut_power_of(self, name: str) -> None: ...
    def split_off(self, name: str) -> None: ...
    def cut_power_of_all(self, name: str) -> None: ...


class Ambushes:
    """The ambushes that are set, each for one kind of event."""

    def __init__(self, world: World, watch: Watch, striker: Striker) -> None:
        self._world = world
        self._striker = striker
        self._chance = world.chance("ambush")
        self._set: dict[str, bool] = {}
        watch.listen(Voted, self._voted)
        watch.listen(BecameRoot, self._became_root)
        watch.listen(Committed, self._committed)
        watch.listen(Ordered, self._ordered)
        self._newest = 0

    def kinds(self) -> dict[str, Callable[[random.Random], None]]:
        """The faults that set an ambush."""
        return {
            "ambush-voter": lambda _: self._arm("voter"),
            "ambush-root": lambda _: self._arm("root"),
            "ambush-commit": lambda _: self._arm("commit"),
            "ambush-change": lambda _: self._arm("change"),
        }

    def _arm(self, moment: str) -> None:
        self._set[moment] = True

    def _voted(self, seen: Voted) -> None:
        """A vote is on its way: perhaps the voter forgets it."""
        if seen.broker != seen.candidate:
            striker = self._striker
            self._spring("voter", seen.broker, [striker.cut_power_of, striker.cut_power_of_all])

    def _became_root(self, seen: BecameRoot) -> None:
        """A root has begun its term, and perhaps no other broker hears of it."""
        striker = self._striker
        self._spring("root", seen.broker, [striker.isolate_host, striker.kill_host])

    def _committed(self, seen: Committed) -> None:
        """A broker is the first to know that an entry is committed, and perhaps the only one."""
        if seen.entry > self._newest:
            self._newest = seen.entry
            striker = self._striker
            strikes = [
                striker.isolate_host,
                striker.kill_host,
                striker.split_off,
                striker.cut_power_of_all,
            ]
            self._spring("commit", seen.broker, strikes)

    def _ordered(self, seen: Ordered) -> None:
        """A change of membership is under way: the cluster falls apart around it."""
        striker = self._striker
        self._spring("change", seen.broker, [striker.split_off, striker.isolate_host])

    def _spring(self, moment: str, name: str, strikes: Sequence[Callable[[str], None]]) -> None:
        if self._set.pop(moment, False):
            strike = strikes[int(self._chance.random() * len(strikes))]
            at_once = self._chance.random() < AT_ONCE_CHANCE
            delay_us = 0 if at_once else int(self._chance.random() * STRIKE_US_MAX)
            self._world.note(f"ambush of {name}")
            self._world.after(delay_us, self._strike, strike, name)

    def _strike(self, strike: Callable[[str], None], name: str) -> None:
        if not self._striker.is_over():
            strike(name)
