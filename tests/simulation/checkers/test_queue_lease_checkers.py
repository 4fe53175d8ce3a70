"""The checkers of leases, on histories that never happened."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rhizome.testing.sim.checkers.fault_timeline import Timeline
from rhizome.testing.sim.checkers.loss_and_duplicate_checkers import TODAY
from rhizome.testing.sim.checkers.message_history import History
from rhizome.testing.sim.events import application_events as told
from rhizome.testing.sim.events import queue_lease_events as leased
from rhizome.testing.sim.scenarios.queue_lease_workload import lease_checkers
from tests.simulation.story import EDGE, HOME, OTHER, Story, seen_by

Tell = Callable[[], object]

NOTHING = ""
LEASER = 7
"""The session of l."""
KEEP_MS = 30_000


class LeaseStory(Story):
    """A story in which l, at b2, leases the queue orders."""

    def __init__(self) -> None:
        super().__init__(copies=2, resumes=True)
        history, timeline = self.watch.checkers[:2]
        assert isinstance(history, History)
        assert isinstance(timeline, Timeline)
        for checker in lease_checkers(history, timeline, TODAY):
            checker.watch = self.watch
            self.watch.checkers.append(checker)
            for kind, handler in checker.handlers().items():
                self.watch.listen(kind, handler)
        self.asked = 0
        self.see(told.SessionOpened("l", LEASER, EDGE, LEASER))

    def asks(self, settle: int = -1, ends: bool = False, lease: str = "l.1") -> LeaseStory:
        self.asked += 1
        self.then(
            leased.LeaseAsked(
                "l", LEASER, f"l{self.asked}", "orders", lease, settle, int(ends), KEEP_MS
            )
        )
        return self

    def answered(self, code: int = 0) -> LeaseStory:
        self.then(leased.LeaseAnswered(LEASER, f"l{self.asked}", code, 0, 1))
        return self

    def reads(self, message: str = "p/1", position: int = 0, intact: bool = True) -> LeaseStory:
        self.then(leased.LeaseRead("l", LEASER, f"l{self.asked}", position, message, int(intact)))
        return self

    def misses(self, position: int) -> LeaseStory:
        self.then(leased.LeaseHole(LEASER, f"l{self.asked}", position))
        return self


def sent(persistent: bool = True) -> LeaseStory:
    story = LeaseStory()
    story.sends("p/1", persistent=persistent).confirmed("p/1")
    return story


def holds(persistent: bool = True) -> LeaseStory:
    """A message that is leased, and read."""
    return sent(persistent).asks().answered().reads()


def settles(story: LeaseStory) -> LeaseStory:
    """All that was read is said to be done with."""
    story.asks(settle=1)
    story.see(told.SettledAway("l", LEASER, "orders", "p/1", told.ACK))
    return story


def waited(story: LeaseStory, seconds: float) -> LeaseStory:
    story.wait(seconds)
    return story


def given(verdict: str = "") -> LeaseStory:
    """A message that came to a worker."""
    story = sent()
    story.comes("p/1")
    if verdict:
        story.settles(verdict).wait(20)
    return story


STORIES: dict[str, tuple[str, Tell]] = {
    "read and settled": (NOTHING, lambda: settles(holds()).answered().ends()),
    "read again": (NOTHING, lambda: holds().asks().answered().reads()),
    "leased and never seen again": ("NoConfirmedMessageLost", lambda: holds().ends()),
    "leased, and given to a worker": (
        "LeasedGoesToNobodyElse",
        lambda: holds().comes("p/1", to=OTHER),
    ),
    "leased, and given to a worker by the next home": (
        "LeasedGoesToNobodyElse",
        lambda: holds().dies(HOME).taken_over("b3", 2).comes("p/1", to=OTHER),
    ),
    "leased by two": (
        "LeasedGoesToNobodyElse",
        lambda: holds().asks(lease="l.2").answered().reads(),
    ),
    "leased, and not heard of for long": (
        NOTHING,
        lambda: waited(holds(), 30).comes("p/1", to=OTHER),
    ),
    "leased, with a sign of life": (
        "LeasedGoesToNobodyElse",
        lambda: waited(waited(holds(), 20).asks().answered(), 20).comes("p/1", to=OTHER),
    ),
    "leased, with a sign of life that was never answered": (
        NOTHING,
        lambda: waited(waited(holds(), 20).asks(), 20).comes("p/1", to=OTHER),
    ),
    "its end was asked for": (NOTHING, lambda: holds().asks(ends=True).comes("p/1", to=OTHER)),
    "settled, and given to a worker": (
        "LeasedGoesToNobodyElse",
        lambda: waited(settles(holds()).answered(), 300).comes("p/1", to=OTHER),
    ),
    "perhaps settled, and given to a worker": (
        NOTHING,
        lambda: settles(holds()).comes("p/1", to=OTHER),
    ),
    "another message at a position": (
        "PositionMeansOneMessage",
        lambda: (
            holds()
            .asks()
            .answered()
            .sends("p/2")
            .then(leased.LeaseRead("l", LEASER, "l2", 0, "p/2", 1))
        ),
    ),
    "a message at two positions": ("PositionMeansOneMessage", lambda: holds().reads(position=1)),
    "not what was sent": (
        "PositionMeansOneMessage",
        lambda: sent().asks().answered().reads(intact=False),
    ),
    "what nobody sent": ("PositionMeansOneMessage", lambda: sent().asks().answered().reads("p/9")),
    "what a worker holds": ("LeasedWasFree", lambda: given().asks().answered().reads()),
    "what a worker has acked": (
        "LeasedWasFree",
        lambda: given(told.ACK).asks().answered().reads(),
    ),
    "what a worker has given back": (
        NOTHING,
        lambda: given(told.REQUEUE).asks().answered().reads(),
    ),
    "refused": ("LeasesLast", lambda: holds().asks().answered(code=404)),
    "refused after a long time": (NOTHING, lambda: waited(holds(), 30).asks().answered(code=404)),
    "a message is missing": ("LeasesLast", lambda: holds().asks().answered().misses(0)),
    "a transient message is missing": (
        NOTHING,
        lambda: holds(persistent=False).asks().answered().misses(0),
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_a_story_is_seen_for_what_it_is(name: str) -> None:
    expected, tell = STORIES[name]
    assert seen_by(tell) == expected
