"""PlacementIndex: what placement asks of all groups, kept as they change.

A stream has a group of its own, so there may be ten thousands of groups. A declare that walked them
would cost more with each stream that is there already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

K = TypeVar("K")


class IndexedGroup(Protocol):
    """What the index looks at."""

    @property
    def home(self) -> str: ...
    @property
    def local(self) -> bool: ...
    @property
    def stream(self) -> bool: ...
    @property
    def copies(self) -> int: ...


class PlacementIndex:
    """The groups of queues by kind, and counts of all groups.

    Invariant: equal to what a walk over all groups finds. The tables of queues' groups are in the
    order in which the groups were first put, as the table of all groups is, so what is chosen from
    them is the same on every broker. A group never changes its kind.
    """

    replicated: dict[int, None]
    local: dict[int, None]
    streams_at: dict[str, int]
    _copies: dict[int, int]

    def __init__(self) -> None:
        self.replicated = {}
        """The groups that replicated queues are put into."""
        self.local = {}
        """The groups of queues that are not replicated (G9)."""
        self.streams_at = {}
        """How many streams each broker is the home of; never 0."""
        self._copies = {}
        """How many groups have each number of copies; never 0."""

    def replaced(self, number: int, old: IndexedGroup | None, new: IndexedGroup | None) -> None:
        """A group was added (``old`` is None), changed, or removed (``new`` is None)."""
        if new is not None:
            self._add(new, 1)
        if old is not None:
            self._add(old, -1)
        if old is None or new is None:
            self._list(number, old, new)

    def _add(self, group: IndexedGroup, count: int) -> None:
        _change(self._copies, group.copies, count)
        if group.stream:
            _change(self.streams_at, group.home, count)

    def _list(self, number: int, old: IndexedGroup | None, new: IndexedGroup | None) -> None:
        group = new if old is None else old
        assert group is not None
        if group.stream:
            return
        table = self.local if group.local else self.replicated
        if new is not None:
            table[number] = None
        else:
            del table[number]

    def most_copies(self) -> int:
        """The most copies that a group has; 0 without groups. There are few different numbers."""
        return max(self._copies, default=0)


def index_of(groups: Mapping[int, IndexedGroup]) -> PlacementIndex:
    index = PlacementIndex()
    for number, group in groups.items():
        index.replaced(number, None, group)
    return index


def _change(counts: dict[K, int], key: K, by: int) -> None:
    counts[key] = counts.get(key, 0) + by
    if counts[key] == 0:
        del counts[key]
