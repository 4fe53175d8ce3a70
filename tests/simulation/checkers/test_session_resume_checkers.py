"""The checkers of clients that come back, on histories that never happened, and on brokers that
forget them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from rhizome.testing.sim.checkers.fault_timeline import lease
from rhizome.testing.sim.events import application_events as told
from tests.simulation.story import EDGE, HOME, OTHER, WORKER, Story, seen_by

Tell = Callable[[], object]

NOTHING = ""
KEEPS = "SessionsKeepWhatTheyHold"
AGAIN = 9
"""The session of w that follows its first."""
ELSEWHERE = "b3"
SEEDS_MAX = 12


def holds(verdict: str = "") -> Story:
    """A message that a client holds that can resume, or has settled."""
    story = Story(resumes=True).then(told.CanResume("w", WORKER))
    story.sends("p/1").confirmed("p/1").comes("p/1")
    return story.settles(verdict) if verdict else story


def lost(story: Story) -> Story:
    return story.then(told.SessionOver("w", WORKER))


def back(story: Story, held: bool = True) -> Story:
    """The client comes back at another broker, and presents the message."""
    story.then(told.SessionOpened("w", AGAIN, ELSEWHERE, AGAIN))
    story.see(told.CanResume("w", AGAIN))
    return story.then(told.Presented("w", AGAIN, 1, 100 if held else 0, "orders", "p/1", held))


def settled_again(story: Story, verdict: str = told.ACK) -> Story:
    return story.settles(verdict, by=AGAIN, tag=100)


def cut(story: Story, broker: str, seconds: int) -> Story:
    link = f"{HOME}~{broker}"
    return story.then(told.Disturbed("x", link)).wait(seconds).then(told.Undisturbed("x"))


STORIES: dict[str, tuple[str, Tell]] = {
    "held over a lost connection, and acked": (
        NOTHING,
        lambda: settled_again(back(lost(holds()))).ends(),
    ),
    "held over a lost connection, and gone": (
        "NoConfirmedMessageLost",
        lambda: back(lost(holds())).ends(),
    ),
    "settled while the client was away": (
        NOTHING,
        lambda: (
            back(lost(holds())).then(told.SettledAway("w", AGAIN, "orders", "p/1", told.ACK)).ends()
        ),
    ),
    "held by a client that is back": (KEEPS, lambda: back(lost(holds())).comes("p/1", to=OTHER)),
    "acked by a client that is back": (
        KEEPS,
        lambda: settled_again(back(lost(holds()))).comes("p/1", to=OTHER),
    ),
    "given back by a client that is back": (
        NOTHING,
        lambda: settled_again(back(lost(holds())), told.REQUEUE).comes("p/1", to=OTHER),
    ),
    "acked before the connection was lost, and presented": (
        KEEPS,
        lambda: back(lost(holds(told.ACK).wait(-0.5)), held=False).comes("p/1", to=OTHER),
    ),
    "to another while the client is away": (
        KEEPS,
        lambda: back(lost(holds()).comes("p/1", to=OTHER)),
    ),
    "to another while the client is away, with its broker": (
        KEEPS,
        lambda: back(lost(holds().dies(EDGE)).comes("p/1", to=OTHER)),
    ),
    "to another while the client is away, and the home": (
        KEEPS,
        lambda: back(lost(holds().dies(HOME)).taken_over(ELSEWHERE, 2).comes("p/1", to=OTHER)),
    ),
    "to another while the client is away, and the home, and then its broker": (
        KEEPS,
        lambda: back(
            lost(holds().dies(HOME)).taken_over(ELSEWHERE, 2).comes("p/1", to=OTHER).dies(EDGE)
        ),
    ),
    "to another while the client is away, and its broker, and then the home": (
        NOTHING,
        lambda: back(
            lost(holds().dies(EDGE)).dies(HOME).taken_over(ELSEWHERE, 2).comes("p/1", to=OTHER)
        ),
    ),
    "to another while the client is away, which never returns": (
        NOTHING,
        lambda: lost(holds()).comes("p/1", to=OTHER).wait(60),
    ),
    "to another while the client is away for long": (
        NOTHING,
        lambda: back(lost(holds()).comes("p/1", to=OTHER).wait(10)),
    ),
    "held by a client that was away for long": (
        NOTHING,
        lambda: back(lost(holds()).wait(10)).comes("p/1", to=OTHER),
    ),
    "held by a client whose broker noticed that it was gone long before": (
        NOTHING,
        lambda: back(lost(holds().then(told.ConnectionLetGo(EDGE, WORKER)).wait(8))).comes(
            "p/1", to=OTHER
        ),
    ),
    "held by a client that has given it up": (
        NOTHING,
        lambda: back(lost(holds()).then(told.GaveUp("w", "orders"))).comes("p/1", to=OTHER),
    ),
    "held by a client that has given up another queue": (
        KEEPS,
        lambda: back(lost(holds()).then(told.GaveUp("w", "bills"))).comes("p/1", to=OTHER),
    ),
    "while the new broker of the client is out of reach for a while": (
        KEEPS,
        lambda: cut(back(lost(holds())), ELSEWHERE, 3).comes("p/1", to=OTHER),
    ),
    "while the new broker of the client is out of reach for long": (
        NOTHING,
        lambda: cut(back(lost(holds())), ELSEWHERE, 12).comes("p/1", to=OTHER),
    ),
    "while the new broker of the client is out of reach, and the home changes": (
        NOTHING,
        lambda: cut(back(lost(holds())).taken_over(EDGE, 2), ELSEWHERE, 3).comes("p/1", to=OTHER),
    ),
    "while the new broker of the client has no lease": (
        KEEPS,
        lambda: (
            back(lost(holds()))
            .then(told.Disturbed("isolated", lease(ELSEWHERE)))
            .comes("p/1", to=OTHER)
        ),
    ),
    "while the new broker of the client has no lease, and the home changes": (
        NOTHING,
        lambda: (
            back(lost(holds()))
            .then(told.Disturbed("isolated", lease(ELSEWHERE)))
            .taken_over(EDGE, 2)
            .comes("p/1", to=OTHER)
        ),
    ),
    "known to be settled, and the client gone for ever": (
        KEEPS,
        lambda: (
            lost(holds(told.ACK).wait(-0.5).then(told.Synced("w", "orders", "p/1")).wait(-0.9))
            .then(told.GaveUp("w", ""))
            .dies(EDGE)
            .comes("p/1", to=OTHER)
        ),
    ),
    "of a client that can't resume": (
        NOTHING,
        lambda: (
            Story(resumes=True)
            .sends("p/1")
            .confirmed("p/1")
            .comes("p/1")
            .then(told.SessionOver("w", WORKER))
            .comes("p/1", to=OTHER)
        ),
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_a_story_is_seen_for_what_it_is(name: str) -> None:
    expected, tell = STORIES[name]
    assert seen_by(tell) == expected


MUTATED = """
from rhizome.broker.connection.session_resume import SuspendedSessions
from rhizome.testing.sim.seed_run import RunOptions
from rhizome.testing.sim.scenario_runner import run_named

{mutation}
options = RunOptions(brokers=(3, 3), minutes=1.0, faults={faults}, pace=3, sessions=True)
for seed in range({seeds}):
    outcome = run_named("messages", seed, options)
    if not outcome.passed:
        print(outcome.checker)
        break
"""
"""Compiled modules call each other's methods directly, so a mutation needs a process without."""


def seen_in_some_seed(mutation: str, *faults: str) -> str:
    """Who sees it that a broker does something else."""
    script = MUTATED.format(mutation=mutation, faults=faults, seeds=SEEDS_MAX)
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "RHIZOME_PURE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.timeout(900)
def test_a_broker_that_keeps_nothing_for_its_clients_is_seen() -> None:
    mutation = "SuspendedSessions.keep = lambda self, connection: None"
    assert seen_in_some_seed(mutation, "drop-app") == KEEPS


@pytest.mark.timeout(900)
def test_a_broker_that_keeps_things_for_ever_is_seen() -> None:
    mutation = (
        "SuspendedSessions.tick = lambda self, now: None\n"
        "SuspendedSessions.finish = lambda self, client: None"
    )
    assert seen_in_some_seed(mutation, "kill-app", "drop-app") == "NothingKeptForNobody"
