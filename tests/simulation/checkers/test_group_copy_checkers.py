"""Copies that differ are seen, and those that cannot be compared are left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rhizome.testing.sim.checkers.checker import Violation, Watch
from rhizome.testing.sim.checkers.group_copy_checkers import (
    CopiesAgreeAtCommittedIndex,
    CopiesComeBack,
    GroupContents,
)
from rhizome.testing.sim.world.event_scheduler import World

HOME = GroupContents("b1", 1, True, True, False, 3, 10, lambda: {7: [4, 9]}, lambda: {5: 2})
COPY = replace(HOME, broker="b2", is_home=False)


class FakeHolder:
    def __init__(self, *holdings: GroupContents, missing: str = "") -> None:
        self._holdings = list(holdings)
        self._missing = missing

    def holdings(self) -> list[GroupContents]:
        return self._holdings

    def copies_missing(self) -> list[str]:
        return [self._missing] if self._missing else []


def compare(copy: GroupContents) -> int:
    """How many copies were compared with the home."""
    checker = CopiesAgreeAtCommittedIndex()
    watch = Watch(World(0), [checker])
    watch.brokers["b1"] = FakeHolder(HOME)  # type: ignore[assignment]
    watch.brokers["b2"] = FakeHolder(copy)  # type: ignore[assignment]
    checker.glance()
    return checker.compared


def test_equal_copies_agree() -> None:
    assert compare(COPY) == 1


@pytest.mark.parametrize(
    "copy",
    [
        replace(COPY, live=lambda: {7: [4]}),
        replace(COPY, live=lambda: {7: [4, 9, 10]}),
        replace(COPY, live=lambda: {7: [4, 9], 8: [3]}),
        replace(COPY, origins=lambda: {5: 1}),
        replace(COPY, is_whole=False, live=lambda: {7: [2]}),
    ],
    ids=["lacks one", "has one more", "has another queue", "other numbers", "back from the dead"],
)
def test_a_copy_that_differs_is_seen(copy: GroupContents) -> None:
    with pytest.raises(Violation):
        compare(copy)


@pytest.mark.parametrize(
    "copy",
    [
        replace(COPY, index=9, live=dict),
        replace(COPY, epoch=2, live=dict),
        replace(COPY, installing=True, live=dict),
    ],
    ids=["elsewhere in the log", "of another epoch", "being installed"],
)
def test_what_cannot_be_compared_is_left_alone(copy: GroupContents) -> None:
    assert compare(copy) == 0


def test_a_copy_that_is_not_whole_may_lack_messages() -> None:
    assert compare(replace(COPY, is_whole=False, live=lambda: {7: [4]}, origins=dict)) == 1


def test_copies_that_do_not_come_back_are_seen() -> None:
    checker = CopiesComeBack()
    watch = Watch(World(0), [checker])
    watch.brokers["b1"] = FakeHolder(HOME)  # type: ignore[assignment]
    checker.final()
    watch.brokers["b1"] = FakeHolder(HOME, missing="no copy")  # type: ignore[assignment]
    with pytest.raises(Violation):
        checker.final()
