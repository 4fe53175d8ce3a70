"""Which way a queue goes, for everything that its consumers can be."""

from __future__ import annotations

import pytest

from rhizome.adopt.queue_direction import (
    Course,
    Decision,
    Direction,
    admitted,
    decide,
    decide_all,
)
from rhizome.adopt.queue_listing import Listing, QueueCounts, QueueKey

KEY = QueueKey("/", "orders")
FORWARD, BACK, REST = Direction.FORWARD, Direction.BACK, Direction.REST


def direction(
    source: QueueCounts | None, target: QueueCounts | None, course: Course | None = None
) -> Direction:
    return decide(KEY, source, target, course or Course()).direction


@pytest.mark.parametrize(
    ("source", "target", "wanted"),
    [(1, 0, BACK), (0, 1, FORWARD), (2, 1, REST), (0, 0, REST)],
)
def test_messages_go_to_the_side_that_alone_has_consumers(
    source: int, target: int, wanted: Direction
) -> None:
    assert direction(QueueCounts(source), QueueCounts(target)) is wanted


@pytest.mark.parametrize("goal", [FORWARD, BACK])
def test_a_queue_without_consumers_goes_to_the_goal_if_it_is_named(goal: Direction) -> None:
    nobody = QueueCounts(), QueueCounts()
    assert direction(*nobody, Course(goal, ("ord*",))) is goal
    assert direction(*nobody, Course(goal, ("//orders",))) is goal
    assert direction(*nobody, Course(goal, ("dead*",))) is REST


def test_consumers_count_for_more_than_a_name() -> None:
    assert direction(QueueCounts(1), QueueCounts(), Course(FORWARD, ("*",))) is BACK


def test_a_queue_that_one_side_lacks_stays_where_it_is() -> None:
    assert decide(KEY, QueueCounts(), None, Course()) == Decision(REST, "only at the source")
    assert decide(KEY, None, QueueCounts(1), Course()) == Decision(REST, "only at the target")


@pytest.mark.parametrize("odd", [QueueCounts(is_private=True), QueueCounts(kind="stream")])
def test_private_queues_and_streams_are_left_alone(odd: QueueCounts) -> None:
    """A bridge that leaves an auto-delete queue would delete it, with what is in it."""
    assert direction(odd, QueueCounts(1)) is REST
    assert direction(QueueCounts(), odd) is REST
    assert decide_all(Listing({KEY: odd}, {KEY: QueueCounts(1)}), Course()) == {}


def test_a_queue_that_remembers_ids_goes_one_way_only() -> None:
    """What was taken out of it and comes again would be dropped there as a repeat."""
    target = QueueCounts(remembers_ids=True)
    assert direction(QueueCounts(1), target) is REST
    assert direction(QueueCounts(1), target, Course(BACK)) is BACK
    consumed = QueueCounts(1, remembers_ids=True)
    assert direction(QueueCounts(), consumed) is FORWARD
    assert direction(QueueCounts(), consumed, Course(BACK)) is REST


def test_queues_of_both_sides_are_decided_upon() -> None:
    there, here = QueueKey("/", "there"), QueueKey("v", "here")
    decisions = decide_all(Listing({there: QueueCounts()}, {here: QueueCounts()}), Course())
    assert list(decisions) == [there, here]


def test_bridges_go_to_queues_with_messages_first_then_to_those_that_have_one() -> None:
    keys = [QueueKey("/", name) for name in "abcd"]
    decisions = {key: Decision(FORWARD, "") for key in keys}
    messages = dict(zip(keys, (0, 0, 5, 0), strict=True))
    listing = Listing({key: QueueCounts(messages=messages[key]) for key in keys}, {})
    assert admitted(decisions, listing, {keys[1]}, 2) == {keys[2], keys[1]}
    assert admitted(decisions, listing, set(), 4) == set(keys)


def test_what_goes_back_is_ranked_by_what_the_target_has() -> None:
    keys = [QueueKey("/", name) for name in "ab"]
    decisions = {key: Decision(BACK, "") for key in keys}
    listing = Listing({keys[0]: QueueCounts(messages=9)}, {keys[1]: QueueCounts(messages=1)})
    assert admitted(decisions, listing, set(), 1) == {keys[1]}
