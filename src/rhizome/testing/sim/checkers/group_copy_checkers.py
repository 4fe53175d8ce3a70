"""Checkers that compare copies of groups with their homes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

from rhizome.testing.sim.checkers.checker import Checker

Live = dict[int, list[int]]
"""For each queue the indexes of the messages in it, in order."""


@dataclass(frozen=True)
class GroupContents:
    """What a broker has of a group at this instant.

    `is_home`: its queues are active there. `is_whole`: the cluster state counts it among those that
    have everything up to the committed index, in this incarnation. `index`: how far its log goes.
    `installing`: it is catching up, and proves nothing yet. `unreadable`: live messages whose
    records are known to be damaged.
    """

    broker: str
    group: int
    is_home: bool
    is_whole: bool
    installing: bool
    epoch: int
    index: int
    live: Callable[[], Live]
    origins: Callable[[], dict[int, int]]
    unreadable: Callable[[], Live] = dict


class Holder(Protocol):
    """A broker that tells what it has of groups."""

    def holdings(self) -> list[GroupContents]: ...


class CopiesAgreeAtCommittedIndex(Checker):
    """G2, G6, L2: a whole copy of a group that is at the same index of the same epoch as its home
    has the same messages in the same queues, and the same numbers of publishes accepted from edges.
    A copy that is not whole has nothing that the home lacks: no acked message comes back.

    Copies at another index are not compared; a later glance finds them at the same one. A copy may
    lack what the home can't read from its own disk; nothing else excuses a difference.
    """

    def __init__(self) -> None:
        super().__init__()
        self.compared = 0

    def glance(self) -> None:
        holdings: dict[int, list[GroupContents]] = {}
        for broker in self.watch.brokers.values():
            for each in cast(Holder, broker).holdings():
                holdings.setdefault(each.group, []).append(each)
        for those in holdings.values():
            self._compare(those)

    def _compare(self, holdings: list[GroupContents]) -> None:
        for home in [each for each in holdings if each.is_home]:
            same = [
                each
                for each in holdings
                if not each.is_home
                and not each.installing
                and (each.epoch, each.index) == (home.epoch, home.index)
            ]
            if same:
                there = home.live()
                for copy in same:
                    self.compared += 1
                    self._compare_two(home, there, copy)

    def _compare_two(self, home: GroupContents, there: Live, copy: GroupContents) -> None:
        here, lost = copy.live(), home.unreadable()
        for queue in dict.fromkeys([*there, *here]):
            at_home, at_copy = there.get(queue, []), here.get(queue, [])
            extra = [index for index in at_copy if index not in at_home]
            unreadable = lost.get(queue, [])
            missing = [
                index for index in at_home if index not in at_copy and index not in unreadable
            ]
            if extra:
                self._fail(home, copy, f"has {extra[:5]} of queue {queue}, which the home has not")
            if missing and copy.is_whole:
                self._fail(home, copy, f"lacks {missing[:5]} of queue {queue}, which the home has")
        if copy.is_whole and copy.origins() != home.origins():
            self._fail(home, copy, f"knows {copy.origins()} of edges, the home {home.origins()}")

    def _fail(self, home: GroupContents, copy: GroupContents, text: str) -> None:
        self.fail(
            f"group {home.group} in epoch {home.epoch} at index {home.index}: the copy at "
            f"{copy.broker} of the home {home.broker} {text}"
        )


class CopiesComeBack(Checker):
    """After the faults every group has a home that serves, and as many whole copies as it requires
    and the brokers that are up can hold."""

    def has_recovered(self) -> bool:
        return not self._missing()

    def is_done(self) -> bool:
        return self.has_recovered()

    def final(self) -> None:
        for text in self._missing():
            self.fail(text)

    def _missing(self) -> list[str]:
        found: list[str] = []
        for broker in self.watch.brokers.values():
            wanted = getattr(broker, "copies_missing", None)
            if wanted is not None:
                found += wanted()
        return found
