"""What went wrong where and when, as checkers need it for their excuses.

A place is a host ("b1"), a pair of hosts ("b1~b2", in the order of their names), which is what lies
between two of them, or a broker's lease ("lease:b1"). A disturbance slows a place down for a while,
or stops it, and loses nothing by itself: a pause, a disk that stalls, a blocked path. What
lies between two hosts is disturbed until what was slowed down or held back there has arrived. A
strike loses what is under way there at that instant: a killed program, a broken connection.

So an operation is done soon after it began, or soon after the disturbances of its places; and it
may be lost only if one of its places was struck before that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from rhizome.testing.sim.checkers.checker import Checker
from rhizome.testing.sim.events.application_events import (
    Disturbed,
    GroupAt,
    ProgramEnded,
    Struck,
    Undisturbed,
)
from rhizome.testing.sim.world.event_scheduler import SECOND

DONE_US: Final = 1 * SECOND
"""How long anything takes at most that needs no decision of the cluster and isn't disturbed."""


RECOVER_US: Final = 2 * SECOND
"""How long a new home may wait for its copies and edges before it serves (G7, A2)."""

BETWEEN: Final = "~"


def lease(broker: str) -> str:
    """The lease of a broker: disturbed while it has none, or cannot use it."""
    return f"lease:{broker}"


def pair(one: str, other: str) -> str:
    """What lies between two hosts."""
    return f"{min(one, other)}{BETWEEN}{max(one, other)}"


class _Span:
    """One disturbance; `end_us` is -1 while it lasts."""

    __slots__ = ("end_us", "start_us")

    def __init__(self, start_us: int) -> None:
        self.start_us = start_us
        self.end_us = -1


class Timeline(Checker):
    """Keeps the disturbances and strikes of a run; it never raises a violation."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: dict[str, list[int]] = {}
        """When the program of a broker ended."""
        self.damaged: dict[str, int] = {}
        """Since when a broker's disk has lost something."""
        self.cuts: dict[str, list[int]] = {}
        """When the power of a broker was cut; the lists are those of the disks, and grow."""
        self._spans: dict[str, list[_Span]] = {}
        self._open: dict[str, _Span] = {}
        self._strikes: dict[str, list[int]] = {}
        self._epochs: dict[int, int] = {}

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {
            Disturbed: self._disturbed,
            Undisturbed: self._undisturbed,
            Struck: self._struck,
            ProgramEnded: self._ended,
            GroupAt: self._group,
        }

    def _disturbed(self, seen: Disturbed) -> None:
        if seen.key in self._open:
            return
        span = _Span(self.watch.world.now_us)
        for place in seen.places.split():
            self._spans.setdefault(place, []).append(span)
        self._open[seen.key] = span

    def _undisturbed(self, seen: Undisturbed) -> None:
        span = self._open.pop(seen.key, None)
        if span is not None:
            span.end_us = self.watch.world.now_us

    def _struck(self, seen: Struck) -> None:
        for place in seen.places.split():
            self._strikes.setdefault(place, []).append(self.watch.world.now_us)
            if seen.kind == "damage":
                self.damaged.setdefault(place, self.watch.world.now_us)

    def _ended(self, seen: ProgramEnded) -> None:
        self.ends.setdefault(seen.broker, []).append(self.watch.world.now_us)
        self._strikes.setdefault(seen.broker, []).append(self.watch.world.now_us)

    def _group(self, seen: GroupAt) -> None:
        """A new home serves after a while."""
        if seen.epoch > self._epochs.get(seen.group, 0):
            self._epochs[seen.group] = seen.epoch
            span = _Span(self.watch.world.now_us)
            span.end_us = span.start_us + RECOVER_US
            self._spans.setdefault(seen.home, []).append(span)

    # --- questions

    def done_us(self, start_us: int, places: Iterable[str]) -> int:
        """When what began at `start_us` must be done, if nothing was lost. It may lie ahead."""
        due_us = start_us + DONE_US
        for span in sorted(self._at(places), key=lambda each: each.start_us):
            if span.start_us > due_us:
                break
            if self._end_us(span) >= start_us:
                due_us = max(due_us, self._end_us(span) + DONE_US)
        return due_us

    def begun_us(self, end_us: int, places: Iterable[str]) -> int:
        """When what came at `end_us` can have begun at the earliest."""
        begun_us = end_us - DONE_US
        for span in sorted(self._at(places), key=self._end_us, reverse=True):
            if self._end_us(span) < begun_us:
                break
            if span.start_us <= end_us:
                begun_us = min(begun_us, span.start_us - DONE_US)
        return begun_us

    def _at(self, places: Iterable[str]) -> list[_Span]:
        return [span for place in dict.fromkeys(places) for span in self._spans.get(place, ())]

    def _end_us(self, span: _Span) -> int:
        return self.watch.world.now_us if span.end_us < 0 else span.end_us

    def struck(self, places: Iterable[str], from_us: int, to_us: int) -> bool:
        """Whether something was lost at one of these places."""
        for place in places:
            for when_us in self._strikes.get(place, ()):
                if from_us <= when_us <= to_us:
                    return True
        return False

    def struck_around(self, hosts: Iterable[str], from_us: int, to_us: int) -> bool:
        """Whether something was lost at one of these hosts, or between it and any other."""
        around = [
            place
            for place in self._strikes
            if any(host in place.split(BETWEEN) for host in dict.fromkeys(hosts))
        ]
        return self.struck(around, from_us, to_us)

    def ended(self, brokers: Iterable[str], from_us: int, to_us: int) -> bool:
        """Whether the program of one of these brokers ended."""
        return any(from_us <= us <= to_us for name in brokers for us in self.ends.get(name, ()))

    def lost_power(self, brokers: Iterable[str], from_us: int, to_us: int) -> bool:
        """Whether the power of one of these brokers was cut."""
        return any(from_us <= us <= to_us for name in brokers for us in self.cuts.get(name, ()))

    def disturbed_for(self, places: Iterable[str], from_us: int, to_us: int, least_us: int) -> bool:
        """Whether a disturbance of one of these places lasted that long in that time."""
        for span in self._at(places):
            if min(self._end_us(span), to_us) - max(span.start_us, from_us) >= least_us:
                return True
        return False

    def disturbed_since_us(self, place: str, at_us: int) -> int:
        """Since when a place had been disturbed without a break at that instant; -1 if it was not
        disturbed."""
        since_us = at_us
        is_disturbed = False
        before = [span for span in self._at([place]) if span.start_us <= at_us]
        for span in sorted(before, key=self._end_us, reverse=True):
            if self._end_us(span) < since_us:
                break
            since_us = min(since_us, span.start_us)
            is_disturbed = True
        return since_us if is_disturbed else -1
