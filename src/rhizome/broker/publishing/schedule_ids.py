"""ScheduleIds: which message has an id, at 8 bytes for each and what is free. Compiled.

A hash table of message indexes in small parts, each of which grows by itself, so that none takes
long to grow. A slot has 23 bits of an id's hash and the lower 40 bits of an index. So what is found
may be another message: who looks reads the message and compares.
"""

from __future__ import annotations

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64

PARTS: Final = 1024
SLOTS_MIN: Final = 8
_INDEX_BITS: Final = 40
_INDEX_MASK: Final = (1 << _INDEX_BITS) - 1
_MARK: Final = 1 << 22
"""Is part of every slot that is used: none of them is 0."""


@final
class ScheduleIds:
    """Invariant: an entry is reached from its home place, without a free slot before it."""

    count: i64
    _parts: list[vec[i64]]
    _used: list[int]

    def __init__(self) -> None:
        self.count = 0
        self._parts = [vec[i64]() for _ in range(PARTS)]
        self._used = [0] * PARTS

    def __len__(self) -> int:
        return int(self.count)

    def add(self, key: i64, index: i64) -> None:
        """Add a message under the hash of its id."""
        number: i64 = key & (PARTS - 1)
        used: i64 = self._used[number] + 1
        if used * 5 > len(self._parts[number]) * 4:
            self._grow(number)
        self._used[number] = int(used)
        self.count += 1
        _place(self._parts[number], _print_of(key) << _INDEX_BITS | (index & _INDEX_MASK))

    def find(self, key: i64, next_index: i64) -> list[int]:
        """The messages that may have this id. ``next_index`` is above all."""
        part = self._parts[key & (PARTS - 1)]
        found: list[int] = []
        size: i64 = len(part)
        if size == 0:
            return found
        wanted = _print_of(key)
        at: i64 = wanted % size
        while part[at] != 0:
            if part[at] >> _INDEX_BITS == wanted:
                index: i64 = (next_index & ~_INDEX_MASK) | (part[at] & _INDEX_MASK)
                found.append(index if index < next_index else index - (1 << _INDEX_BITS))
            at = at + 1 if at + 1 < size else 0
        return found

    def remove(self, key: i64, index: i64) -> bool:
        """Remove a message; False if it isn't there."""
        number: i64 = key & (PARTS - 1)
        part = self._parts[number]
        size: i64 = len(part)
        if size == 0:
            return False
        wanted: i64 = _print_of(key) << _INDEX_BITS | (index & _INDEX_MASK)
        at: i64 = _print_of(key) % size
        while part[at] != wanted:
            if part[at] == 0:
                return False
            at = at + 1 if at + 1 < size else 0
        self.count -= 1
        self._used[number] -= 1
        _close_gap(part, at)
        return True

    def _grow(self, number: i64) -> None:
        old = self._parts[number]
        size: i64 = len(old) + len(old) // 2
        if size < SLOTS_MIN:
            size = SLOTS_MIN
        fresh = vec[i64]()
        at: i64 = 0
        while at < size:
            fresh = append(fresh, 0)
            at += 1
        at = 0
        while at < len(old):
            if old[at] != 0:
                _place(fresh, old[at])
            at += 1
        self._parts[number] = fresh


def _print_of(key: i64) -> i64:
    return ((key >> 10) & (_MARK - 1)) | _MARK


def _place(part: vec[i64], slot: i64) -> None:
    size: i64 = len(part)
    at: i64 = (slot >> _INDEX_BITS) % size
    while part[at] != 0:
        at = at + 1 if at + 1 < size else 0
    part[at] = slot


def _close_gap(part: vec[i64], gap: i64) -> None:
    """Free a slot, and move into it whatever would not be reached across it."""
    size: i64 = len(part)
    at = gap
    while True:
        at = at + 1 if at + 1 < size else 0
        slot = part[at]
        if slot == 0:
            break
        home: i64 = (slot >> _INDEX_BITS) % size
        # How far the entry is from its home, and how far the gap is from the entry.
        distance: i64 = at - home if at >= home else at - home + size
        back: i64 = at - gap if at >= gap else at - gap + size
        if distance >= back:
            part[gap] = slot
            gap = at
    part[gap] = 0
