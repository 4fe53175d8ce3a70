"""Offsets of streaming queries and the plan that they freeze."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhizome.spark.offsets import Offsets, Plan, from_json, limited, ranges
from rhizome.spark.options import OptionError

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
