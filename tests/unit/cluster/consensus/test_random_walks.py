"""Random walks: whatever happens, in whatever order, nothing goes wrong, and then all is well."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.cluster.consensus.random_walk import Walk, Weather

QUIET = Weather(wipe=0, remove=0, add=0, hang=0)


@pytest.mark.parametrize("primaries", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("seed", range(6))
def test_a_walk_without_changes_of_the_membership(seed: int, primaries: int) -> None:
    walk = Walk(seed, primaries, secondaries=1)
    walk.go(40, QUIET)
    walk.peace()


@pytest.mark.parametrize("primaries", [3, 4, 5])
@pytest.mark.parametrize("seed", range(6))
def test_a_walk_with_everything(seed: int, primaries: int) -> None:
    walk = Walk(seed, primaries, secondaries=1)
    walk.go(40, Weather())
    walk.peace()


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 1000),
    st.integers(2, 5),
    st.lists(st.sampled_from(list(vars(Weather()))), max_size=30),
)
def test_any_sequence_of_events_is_survived(seed: int, primaries: int, kinds: list[str]) -> None:
    """Shrinks to the shortest story that goes wrong."""
    walk = Walk(seed, primaries, secondaries=1)
    walk.follow(kinds)
    walk.peace()


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("primaries", [2, 3, 4, 5])
def test_many_long_walks(primaries: int) -> None:
    for seed in range(1000, 1200):
        walk = Walk(seed, primaries, secondaries=2)
        walk.go(100, Weather() if primaries > 2 else QUIET)
        walk.peace()
