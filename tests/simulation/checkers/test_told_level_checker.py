"""ToldLevelIsKept, on what brokers say about levels: what it sees, and what it lets pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rhizome.client.confirm_level import Level
from rhizome.testing.sim.events import application_events as told
from tests.simulation.story import EDGE, HOME, Story, seen_by

PAIRED = told.GroupAt(1, HOME, "1", 1, 2, f"{EDGE}:whole")
ALONE = told.GroupAt(1, HOME, "1", 1, 3, "")

STORIES: dict[str, tuple[str, Callable[[], Story]]] = {
    "persistent": ("", lambda: Story().sends("p/1").levelled("p/1", Level.PERSISTENT)),
    "with copies": (
        "",
        lambda: Story().then(PAIRED).sends("p/1").levelled("p/1", Level.RELIABLE_PERSISTENT),
    ),
    "a transient one on disk": (
        "ToldLevelIsKept",
        lambda: Story().sends("p/1", persistent=False).levelled("p/1", Level.PERSISTENT),
    ),
    "on disk in a queue that is not durable": (
        "ToldLevelIsKept",
        lambda: Story().sends("p/1", "notes").levelled("p/1", Level.PERSISTENT),
    ),
    "copied to nobody": (
        "ToldLevelIsKept",
        lambda: (
            Story().wait(9).sends("p/1", persistent=False).levelled("p/1", Level.RELIABLE_TRANSIENT)
        ),
    ),
    "copied to a standby that left meanwhile": (
        "",
        lambda: (
            Story()
            .then(PAIRED)
            .sends("p/1", persistent=False)
            .then(ALONE)
            .wait(9)
            .levelled("p/1", Level.RELIABLE_TRANSIENT)
        ),
    ),
    "copied to a standby that came meanwhile": (
        "",
        lambda: (
            Story()
            .wait(9)
            .sends("p/1", persistent=False)
            .then(PAIRED)
            .levelled("p/1", Level.RELIABLE_TRANSIENT)
        ),
    ),
    "copied to a standby that left long before": (
        "ToldLevelIsKept",
        lambda: (
            Story()
            .then(PAIRED)
            .then(ALONE)
            .wait(9)
            .sends("p/1", persistent=False)
            .levelled("p/1", Level.RELIABLE_TRANSIENT)
        ),
    ),
    "kept, and in no queue": (
        "ToldLevelIsKept",
        lambda: Story().sends("p/1", "nowhere").levelled("p/1", Level.RELIABLE_TRANSIENT),
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_what_is_said_about_levels(name: str) -> None:
    checker, story = STORIES[name]
    assert seen_by(story) == checker
