"""Sets of indexes as ranges, against sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rhizome.cluster.replication.index_ranges import below, indexes_between, size, united, without
from rhizome.journal.paged_index import PagedIndex
from rhizome.journal.records import ascending_ranges, position_of

NUMBERS = st.sets(st.integers(0, 80))


def ranges_of(numbers: set[int]) -> list[int]:
    return ascending_ranges(sorted(numbers))


@given(NUMBERS, NUMBERS, NUMBERS)
def test_ranges_are_united_and_subtracted_like_sets(a: set[int], b: set[int], c: set[int]) -> None:
    assert united([ranges_of(a), ranges_of(b), ranges_of(c)]) == ranges_of(a | b | c)
    assert without(ranges_of(a), ranges_of(b)) == ranges_of(a - b)
    assert below(ranges_of(a), 40) == ranges_of({each for each in a if each < 40})
    assert size(ranges_of(a)) == len(a)


@given(NUMBERS, NUMBERS)
def test_the_indexes_of_a_queue_are_those_of_all_its_levels(a: set[int], b: set[int]) -> None:
    levels = []
    for numbers in (a, b - a):
        level = PagedIndex()
        for number in sorted(numbers):
            level.append(number, position_of(1, 64 + number))
        levels.append(level)
    assert indexes_between(levels, 10, 60) == ranges_of({n for n in a | b if 10 <= n < 60})
