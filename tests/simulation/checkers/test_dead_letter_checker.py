"""LettersComeOnce, on histories that never happened: what it sees, what it excuses."""

from __future__ import annotations

from rhizome.testing.sim.events import application_events as told
from tests.simulation.story import APPLICATIONS, EDGE, HOME, OTHER, WORKER, Story, seen_by

SEEN = "LettersComeOnce"
TODAY = {"copies": 2, "resumes": True, "remembers": True, "letters": True}


def confirmed(persistent: bool = True) -> Story:
    return Story(**TODAY).sends("p/1", "brief", persistent).confirmed("p/1")


def letter(story: Story, to: int = WORKER, died_in: str = "brief") -> Story:
    """The message comes as a dead letter."""
    story.tag += 1
    return story.then(
        told.Delivered(APPLICATIONS[to], to, 1, "c", story.tag, "graves", "p/1", 0, 0, 1, died_in)
    )


def test_a_letter_that_is_held_comes_to_nobody_else() -> None:
    assert seen_by(lambda: letter(letter(confirmed()), OTHER)) == SEEN


def test_a_letter_that_was_settled_does_not_come_again() -> None:
    assert seen_by(lambda: letter(letter(confirmed()).settles(), OTHER)) == SEEN


def test_a_letter_that_was_given_back_comes_again() -> None:
    assert seen_by(lambda: letter(letter(confirmed()).settles(told.REQUEUE), OTHER)) == ""


def test_a_message_may_die_in_two_queues() -> None:
    assert seen_by(lambda: letter(letter(confirmed()), OTHER, "short")) == ""


def test_the_end_of_its_home_doubles_no_letter() -> None:
    assert seen_by(lambda: letter(letter(confirmed()).dies(HOME), OTHER)) == SEEN


def test_what_was_in_memory_only_may_die_again() -> None:
    assert seen_by(lambda: letter(letter(confirmed(False)).dies(HOME), OTHER)) == ""


def test_the_end_of_the_edge_excuses_it() -> None:
    assert seen_by(lambda: letter(letter(confirmed()).dies(EDGE), OTHER)) == ""
