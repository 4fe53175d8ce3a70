"""Sets of message indexes as ranges: [first, count, first, count, ...], ascending, none touching
another. Compiled: a live set of millions of messages is a few of these numbers.
"""

from __future__ import annotations

from mypy_extensions import i64

from rhizome.journal.index_chunk import add_to_ranges
from rhizome.journal.paged_index import PagedIndex


def united(parts: list[list[int]]) -> list[int]:
    """All indexes of several sets."""
    filled = [part for part in parts if len(part) > 0]
    if len(filled) == 0:
        return []
    if len(filled) == 1:
        return filled[0]
    pairs: list[tuple[int, int]] = []
    for part in filled:
        at: i64 = 0
        while at < len(part):
            pairs.append((part[at], part[at + 1]))
            at += 2
    pairs.sort()
    found: list[int] = []
    for first, count in pairs:
        add_to_ranges(found, first, count)
    return found


def without(ranges: list[int], others: list[int]) -> list[int]:
    """The indexes of `ranges` that are not in `others`."""
    found: list[int] = []
    other: i64 = 0
    at: i64 = 0
    while at < len(ranges):
        first: i64 = ranges[at]
        end: i64 = first + i64(ranges[at + 1])
        while other < len(others) and i64(others[other]) + i64(others[other + 1]) <= first:
            other += 2
        probe: i64 = other
        while first < end and probe < len(others) and i64(others[probe]) < end:
            begin: i64 = others[probe]
            if begin > first:
                add_to_ranges(found, first, begin - first)
            first = begin + i64(others[probe + 1])
            probe += 2
        if first < end:
            add_to_ranges(found, first, end - first)
        at += 2
    return found


def below(ranges: list[int], end: i64) -> list[int]:
    """The indexes below `end`."""
    return without(ranges, [int(end), 1 << 62])


def size(ranges: list[int]) -> i64:
    """How many indexes there are."""
    total: i64 = 0
    at: i64 = 1
    while at < len(ranges):
        total += ranges[at]
        at += 2
    return total


def indexes_between(levels: list[PagedIndex], first: i64, end: i64) -> list[int]:
    """The indexes in [first, end) of several parts of a queue."""
    parts: list[list[int]] = []
    for level in levels:
        part: list[int] = []
        level.collect_ranges(first, end, 1 << 62, part)
        parts.append(part)
    return united(parts)
