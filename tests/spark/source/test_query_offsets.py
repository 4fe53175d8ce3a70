"""Offsets of streaming queries and the plan that they freeze."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhizome.spark.data_source_options import OptionError, Options
from rhizome.spark.source.query_offsets import (
    EXCLUDED,
    Offsets,
    Plan,
    Range,
    excluded_ranges,
    from_json,
    limited,
    not_excluded,
    ranges,
)

starts = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 10_000), min_size=3)
lengths = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 100_000), min_size=3)


def test_offsets_survive_the_checkpoint() -> None:
    offsets = Offsets({"a": 5, "b": 0}, Plan(4, 100))
    assert from_json(offsets.to_json()) == offsets


def test_offsets_of_another_version_are_refused() -> None:
    with pytest.raises(OptionError, match="version 2 and this release knows 1"):
        from_json({**Offsets({}).to_json(), "version": 2})


@given(starts, lengths, st.integers(1, 20), st.integers(1, 5000))
def test_ranges_cover_every_offset_once(
    start: dict[str, int], length: dict[str, int], parts: int, least: int
) -> None:
    end = {name: start[name] + length[name] for name in start}
    found = ranges(["a", "b", "c"], Offsets(start), Offsets(end, Plan(parts, least)))
    for name, first in start.items():
        mine = [each for each in found if each.stream == name]
        bounds = [first, *(each.end for each in mine)]
        assert [each.start for each in mine] == bounds[:-1]
        assert bounds[-1] == end[name]
        assert all(each.end > each.start for each in mine)
    assert len(found) <= parts + 3
    # Whatever the reader's own plan, a replay splits as the end says.
    again = ranges(["a", "b", "c"], Offsets(start, Plan(1)), Offsets(end, Plan(parts, least)))
    assert again == found


@given(starts, lengths, st.integers(1, 50_000))
def test_limit_is_kept_and_starves_nobody(
    start: dict[str, int], length: dict[str, int], rows_max: int
) -> None:
    available = {name: start[name] + length[name] for name in start}
    found = limited(start, available, rows_max)
    taken = {name: found[name] - start[name] for name in start}
    assert all(0 <= taken[name] <= length[name] for name in start)
    assert sum(taken.values()) <= rows_max + len(start) - 1
    assert all(taken[name] > 0 for name in start if length[name])
    if sum(length.values()) <= rows_max:
        assert found == available


def test_stream_that_was_declared_anew_is_read_from_its_beginning() -> None:
    (found,) = ranges(["a"], Offsets({"a": 100}), Offsets({"a": 30}))
    assert (found.start, found.end) == (0, 30)


def test_batch_that_is_excluded_has_no_ranges_left() -> None:
    found = ranges(["a", "b"], Offsets({"a": 100, "b": 0}), Offsets({"a": 10_100, "b": 5}, Plan(4)))
    assert len(found) > 2
    given = Options({EXCLUDED: '{"a": [100, 10100]}'}, [EXCLUDED], "rhizome")
    excluded = excluded_ranges(given)
    assert not_excluded(found, excluded) == [Range("b", 1, 0, 5)]
    # What is only touched by it is read.
    assert not_excluded(found, {"a": (100, 10_099)}) == found[1:]
    assert not_excluded(found, {}) == found


@pytest.mark.parametrize("text", ["x", "[]", '{"a": 1}', '{"a": [1]}', '{"a": ["x", 2]}'])
def test_excluded_offsets_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match=EXCLUDED):
        excluded_ranges(Options({EXCLUDED: text}, [EXCLUDED], "rhizome"))
