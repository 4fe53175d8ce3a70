"""PagedIndex against a sorted list."""

import tracemalloc
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from rhizome.journal.index_chunk import CHUNK_ENTRIES_MAX
from rhizome.journal.paged_index import PagedIndex
from rhizome.journal.record_replay import merged
from rhizome.journal.records import position_of


def filled(count: int, segment: int = 1, step: int = 100) -> PagedIndex:
    index = PagedIndex()
    for number in range(count):
        index.append(number + 1, position_of(segment, 64 + number * step))
    return index


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5000), st.integers(1, 3)),
        st.tuples(st.just("insert"), st.integers(1, 400), st.integers(1, 3)),
        st.tuples(st.just("take"), st.integers(0, 40), st.just(0)),
        st.tuples(st.just("remove"), st.integers(1, 400), st.just(0)),
        st.tuples(st.just("remove_range"), st.integers(1, 400), st.integers(1, 60)),
        st.tuples(st.just("pop_last"), st.just(0), st.just(0)),
        st.tuples(st.just("relocate"), st.integers(1, 3), st.integers(4, 6)),
        st.tuples(st.just("reload"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


def apply(index: PagedIndex, model: dict[int, int], operation: tuple[str, int, int]) -> PagedIndex:
    name, first, second = operation
    if name == "append":
        # A few entries above the last; large steps make distances overflow now and then.
        step = first if first < 4000 else first << 20
        for number in range(first % 7 + 1):
            at = max(model, default=0) + step
            model[at] = position_of(second, 64 + at % 60_000 + number)
            index.append(at, model[at])
    elif name == "insert":
        model[first] = position_of(second, 70_000 + first)
        index.insert_sorted(first, model[first])
    elif name == "take":
        expected = sorted(model.items())[:first]
        assert index.take(first) == expected
        for number, _ in expected:
            del model[number]
    elif name == "remove":
        assert index.remove(first) == model.pop(first, 0)
    elif name == "remove_range":
        gone = [number for number in model if first <= number < first + second]
        released: dict[int, int] = {}
        assert index.remove_range(first, second, released) == len(gone)
        assert released == Counter(model[number] >> 32 for number in gone)
        for number in gone:
            del model[number]
    elif name == "pop_last":
        if model:
            last = max(model)
            assert index.pop_last() == (last, model.pop(last))
    elif name == "relocate":
        victims = [n for n, position in model.items() if position >> 32 == first and n % 3]
        moves = {n: position_of(second, 64 + n % 70_000) for n in victims}
        assert index.relocate(first, moves) == len(moves)
        model.update(moves)
    else:
        index = PagedIndex.from_bytes(index.to_bytes(), index.sized)
    return index


def spread(ranges: list[int]) -> list[int]:
    """The numbers of [first, count, first, count, ...], which must be as few as can be."""
    found: list[int] = []
    for first, count in zip(ranges[::2], ranges[1::2], strict=True):
        assert count > 0
        assert not found or first > found[-1] + 1
        found.extend(range(first, first + count))
    return found


@settings(max_examples=300, deadline=None)
@given(OPERATIONS)
def test_paged_index_behaves_like_a_sorted_map(operations: list[tuple[str, int, int]]) -> None:
    for sized in (False, True):
        index = PagedIndex(sized)
        model: dict[int, int] = {}
        for operation in operations:
            index = apply(index, model, operation)
            assert index.positions() == sorted(model.items())
            assert len(index) == index.count == len(model)
            assert index.first_index() == min(model, default=-1)
            assert index.last_index() == max(model, default=-1)
            for first, end in ((0, 1 << 62), (50, 200), (operation[1], operation[1] + 5)):
                ranges: list[int] = []
                assert index.collect_ranges(first, end, 1 << 62, ranges) == end
                assert spread(ranges) == [each for each in sorted(model) if first <= each < end]
        references: dict[int, int] = {}
        index.count_references(references)
        assert sum(references.values()) == len(model)
        for number, position in model.items():
            assert index.find(number) == position
        assert index.find(123_456_789) == 0


@given(st.sets(st.integers(1, 300)), st.sets(st.integers(1, 300)), st.sets(st.integers(1, 300)))
def test_merging_keeps_order_and_everything(a: set[int], b: set[int], c: set[int]) -> None:
    parts = [a, b - a, c - a - b]
    indexes = []
    for segment, numbers in enumerate(parts, start=1):
        index = PagedIndex()
        for number in sorted(numbers):
            index.append(number, position_of(segment, 64 + number))
        indexes.append(index)
    found = merged(indexes)
    assert [number for number, _ in found.positions()] == sorted(a | b | c)


def test_a_run_stays_in_one_segment_and_within_its_span() -> None:
    index = filled(10)
    index.append(50, position_of(2, 64))
    run = index.peek_run(350)
    assert (run.segment, run.offset, run.span, run.count) == (1, 64, 300, 4)
    run = index.peek_run(1 << 30)
    assert (run.count, run.span) == (10, 900)
    index.take(10)
    run = index.peek_run(10)
    assert (run.segment, run.offset, run.span, run.count) == (2, 64, 0, 1)


def test_a_run_says_which_messages_are_where() -> None:
    index = filled(4)
    index.remove(index.positions()[1][0])
    run = index.peek_run(1 << 30)
    entries = [
        (int(run.indexes[at]), position_of(run.segment, int(run.offsets[at])))
        for at in range(int(run.count))
    ]
    assert entries == index.positions()
    assert len(entries) == 3


def test_a_run_is_read_with_room_for_a_last_record_of_the_usual_size() -> None:
    index = filled(10)
    run = index.peek_run(1 << 30)
    usual_bytes = run.span // 9
    assert run.span + usual_bytes <= run.bytes_wanted(0) <= run.span + 4 * usual_bytes


def test_of_a_single_record_as_much_is_read_as_one_is_told() -> None:
    assert filled(1).peek_run(1 << 30).bytes_wanted(5000) == 5000


def test_a_run_ends_where_offsets_fall() -> None:
    index = PagedIndex()
    for number, offset in enumerate((500, 600, 90, 700)):
        index.append(number, position_of(1, offset))
    assert index.peek_run(1 << 20).count == 2


def test_an_empty_index_has_an_empty_run() -> None:
    assert PagedIndex().peek_run(100).count == 0


def test_a_run_spans_chunks_of_the_same_segment() -> None:
    index = filled(CHUNK_ENTRIES_MAX + 10, step=1)
    assert index.peek_run(1 << 30).count == CHUNK_ENTRIES_MAX + 10


def test_sizes_are_summed_and_unknown_ones_named_when_removed() -> None:
    known = PagedIndex(sized=True)
    for number in range(1, 11):
        known.append_sized(number, position_of(1, 100 * number), 10 * number)
    assert known.sized_bytes == 550
    known.remove(3)
    known.remove_range(5, 2)
    known.take(1)
    known.append_sized(4, position_of(2, 64), -1)
    assert known.sized_bytes == 550 - 30 - 50 - 60 - 10
    reloaded = PagedIndex.from_bytes(known.to_bytes(), sized=True)
    position = reloaded.find(8)
    reloaded.append_sized(4, position_of(3, 64), -1)
    assert list(reloaded.removed_unsized) == []
    reloaded.remove(8)
    assert list(reloaded.removed_unsized) == [position]


def test_entries_cost_less_than_ten_bytes_each() -> None:
    tracemalloc.start()
    try:
        index = PagedIndex()
        for number in range(100_000):
            index.append(number, position_of(1 + number // 60_000, 64 + number % 60_000 * 1100))
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(index) == 100_000
    assert used < 1_000_000


def test_ranges_come_in_portions() -> None:
    index = PagedIndex()
    numbers = list(range(1, 60_000, 2))
    for number in numbers:
        index.append(number, position_of(1, 64 + number))
    found: list[int] = []
    first, portions = 0, 0
    while first < 1 << 62:
        ranges: list[int] = []
        first = int(index.collect_ranges(first, 1 << 62, 10_000, ranges))
        assert len(ranges) <= 10_000 + 2 * CHUNK_ENTRIES_MAX
        found.extend(spread(ranges))
        portions += 1
    assert found == numbers
    assert portions >= 4


def test_sizes_that_are_not_known_are_counted() -> None:
    index = filled(10)
    index.estimate_sizes()
    assert (index.unsized, index.sized_bytes) == (10, 0)
    index.append_sized(11, position_of(2, 64), 500)
    index.append_sized(12, position_of(3, 64), 70)
    assert index.append_sized(3, position_of(3, 200), 999) == position_of(1, 264)
    assert (index.unsized, index.sized_bytes) == (10, 570), "a size is as unknown elsewhere"
    index.remove_range(1, 5)
    index.remove(12)
    assert (index.unsized, index.sized_bytes) == (5, 500)
    assert (index.sized_bytes_below(2), index.sized_bytes_below(3)) == (0, 500)
    assert len(index.removed_unsized) == 0
    index.forget_sizes()
    assert (index.unsized, index.sized) == (0, False)
