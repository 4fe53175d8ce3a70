"""IndexSequence: the indexes of messages in ascending order, at 8 bytes each. Compiled."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64

SLACK_MIN: Final = 64
"""What is kept with entries that are out of date is rebuilt when there are this many of them, and
more than of the others."""


@final
class IndexSequence:
    """Indexes in ascending order, 8 bytes each; those that came out of order are in ``late``.

    An index may be in it that no longer counts, or twice: whoever takes one checks it. Those at
    the front are dropped when they are met; ``KeyedLane.prune`` drops the others.
    """

    rising: vec[i64]
    head: i64
    late: list[int]

    def __init__(self) -> None:
        self.rising = vec[i64]()
        self.head = 0
        self.late = []

    def __len__(self) -> int:
        return int(len(self.rising) - self.head) + len(self.late)

    def add(self, index: i64) -> None:
        end: i64 = len(self.rising)
        if end > self.head and index <= self.rising[end - 1]:
            heappush(self.late, int(index))
            return
        if self.head == end:
            self.rising = vec[i64]()
            self.head = 0
        self.rising = append(self.rising, index)

    def first(self) -> i64:
        """The lowest index; -1 if there is none."""
        found: i64 = -1
        if self.head < len(self.rising):
            found = self.rising[self.head]
        if len(self.late) > 0 and (found < 0 or self.late[0] < found):
            found = self.late[0]
        return found

    def drop_first(self) -> None:
        """Drop the lowest index; there must be one."""
        if len(self.late) > 0 and (
            self.head == len(self.rising) or self.late[0] < self.rising[self.head]
        ):
            heappop(self.late)
            return
        self.head += 1
        if self.head > SLACK_MIN and self.head * 2 > len(self.rising):
            self._trim()

    def _trim(self) -> None:
        rest = vec[i64]()
        at = self.head
        while at < len(self.rising):
            rest = append(rest, self.rising[at])
            at += 1
        self.rising = rest
        self.head = 0

    def indexes(self) -> list[int]:
        """All of them, in any order."""
        found = list(self.late)
        at = self.head
        while at < len(self.rising):
            found.append(int(self.rising[at]))
            at += 1
        return found

    def fill(self, indexes: list[int]) -> None:
        """Have these, ascending, and no others."""
        self.clear()
        for index in indexes:
            self.add(index)

    def place(self, index: i64) -> i64:
        """The place in ``rising`` of the first entry from this index on."""
        low = self.head
        high: i64 = len(self.rising)
        while low < high:
            middle: i64 = (low + high) >> 1
            if self.rising[middle] < index:
                low = middle + 1
            else:
                high = middle
        return low

    def clear(self) -> None:
        self.rising = vec[i64]()
        self.head = 0
        self.late = []
