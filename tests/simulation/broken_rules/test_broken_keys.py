"""A home that gives a held key to others: the checker must see it."""

from __future__ import annotations

import pytest

from rhizome.testing.sim.scenario_runner import run_untraced
from rhizome.testing.sim.seed_run import RunOptions
from tests.simulation.mutants import Mutant

HELD_IS_FREE = """
from rhizome.broker.queue_keys.keyed_dispatch import KeyedDispatch
line_of = KeyedDispatch._line_of
def free_unless_uncommitted(self, key):
    line = line_of(self, key)
    waits = line is self.uncommitted or key.ready == 0 or key.delayed > 0
    return line if waits else self.free
KeyedDispatch._line_of = free_unless_uncommitted
"""

FREE = Mutant(
    "keys that consumers hold are given to others",
    HELD_IS_FREE,
    ("kill",),
    1,
    ("OrderPerKey",),
    minutes=0.8,
    keys=True,
)


@pytest.mark.timeout(900)
def test_a_key_with_two_consumers_is_seen() -> None:
    FREE.expect_to_be_seen("messages")


@pytest.mark.timeout(900)
def test_keys_have_one_consumer_while_homes_are_killed() -> None:
    options = RunOptions(
        brokers=(3, 3), minutes=FREE.minutes, faults=FREE.faults, pace=FREE.pace, keys=True
    )
    outcome = run_untraced("messages", FREE.first, options)
    assert outcome.passed, f"{outcome.checker}: {outcome.text}"
