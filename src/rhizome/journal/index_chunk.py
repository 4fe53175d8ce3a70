"""IndexChunk: a run of entries of a PagedIndex in one segment. Compiled."""

from __future__ import annotations

from typing import Final, final

from librt.vecs import append, pop, vec
from mypy_extensions import i32, i64

CHUNK_ENTRIES_MAX: Final = 4095
"""A packed array grows to 2n + 1 places: at 4096 entries half of it would be waste."""
DISTANCE_MAX: Final = 0x7FFFFFFF
SIZE_UNKNOWN: Final = -1


@final
class IndexChunk:
    """Invariant: distances ascend; entries `start` and last are live; `live` counts the
    live ones.
    """

    base: i64
    segment: i64
    start: i64
    live: i64
    distances: vec[i32]
    offsets: vec[i32]
    sizes: vec[i32]

    def __init__(self, base: i64, segment: i64) -> None:
        self.base = base
        self.segment = segment
        self.start = 0
        self.live = 0
        self.distances = vec[i32]()
        self.offsets = vec[i32]()
        self.sizes = vec[i32]()

    def takes(self, index: i64, segment: i64) -> bool:
        """Whether an entry above all others may be appended here."""
        return (
            segment == self.segment
            and len(self.offsets) < CHUNK_ENTRIES_MAX
            and index - self.base <= DISTANCE_MAX
        )

    def push(self, index: i64, offset: i64) -> None:
        self.distances = append(self.distances, i32(index - self.base))
        self.offsets = append(self.offsets, i32(offset))
        self.live += 1

    def first_index(self) -> i64:
        return self.base + i64(self.distances[self.start])

    def last_index(self) -> i64:
        return self.base + i64(self.distances[len(self.distances) - 1])

    def slot(self, index: i64) -> i64:
        """Where the first entry at or above `index` is; the length if all are below."""
        low: i64 = self.start
        high: i64 = len(self.distances)
        wanted: i64 = index - self.base
        while low < high:
            middle: i64 = (low + high) >> 1
            if i64(self.distances[middle]) < wanted:
                low = middle + 1
            else:
                high = middle
        return low

    def sized_bytes(self) -> i64:
        """The sum of the sizes of live entries that are known."""
        total: i64 = 0
        slot: i64 = self.start
        while slot < len(self.sizes):
            if self.offsets[slot] != 0 and i64(self.sizes[slot]) > 0:
                total += i64(self.sizes[slot])
            slot += 1
        return total

    def kill(self, slot: i64) -> None:
        """Remove a live entry and restore the invariant at both ends."""
        self.offsets[slot] = i32(0)
        self.live -= 1
        if self.live == 0:
            return
        while self.offsets[self.start] == 0:
            self.start += 1
        while self.offsets[len(self.offsets) - 1] == 0:
            self.offsets, _ = pop(self.offsets)
            self.distances, _ = pop(self.distances)
            if len(self.sizes) > 0:
                self.sizes, _ = pop(self.sizes)

    def collect_ranges(self, first: i64, end: i64, found: list[int]) -> None:
        """Add the live indexes in [first, end) to [first, count, first, count, ...]."""
        slot = self.slot(first)
        begin: i64 = 0
        count: i64 = 0
        while slot < len(self.distances):
            index: i64 = self.base + i64(self.distances[slot])
            if index >= end:
                break
            if self.offsets[slot] != 0:
                if count > 0 and index == begin + count:
                    count += 1
                else:
                    if count > 0:
                        add_to_ranges(found, begin, count)
                    begin = index
                    count = 1
            slot += 1
        if count > 0:
            add_to_ranges(found, begin, count)

    def without_dead(self) -> IndexChunk:
        """The same live entries without the places of dead ones, and without sizes."""
        found = IndexChunk(self.base, self.segment)
        slot: i64 = self.start
        while slot < len(self.offsets):
            offset: i64 = i64(self.offsets[slot])
            if offset != 0:
                found.push(self.base + i64(self.distances[slot]), offset)
            slot += 1
        return found


def add_to_ranges(ranges: list[int], first: i64, count: i64) -> None:
    """Add [first, first + count), which begins at or above all that is there, to
    [first, count, first, count, ...].
    """
    last: i64 = len(ranges) - 2
    if last >= 0:
        end: i64 = i64(ranges[last]) + i64(ranges[last + 1])
        if first <= end:
            if first + count > end:
                ranges[last + 1] = first + count - i64(ranges[last])
            return
    ranges.append(first)
    ranges.append(count)
