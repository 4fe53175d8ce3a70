"""Rules of messages broken on purpose in whole brokers: the checkers must see it.

An attack names the faults that bring out what the rule prevents; `first` is a seed that showed it
when this was written, where the search begins. The same attack on unbroken brokers shows nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from rhizome.testing.sim.scenario_runner import run_untraced
from rhizome.testing.sim.scenarios.messages_scenario import MessagesScenario
from rhizome.testing.sim.seed_run import Outcome, RunOptions, run_seed
from tests.simulation.attacks import expect_nothing, expect_to_be_seen
from tests.simulation.mutants import Mutant

SEEDS_MAX = 40
TWICE = ("NoAckedMessageRedelivered", "ExactlyOnceBetweenEdgeAndHome", "PrefetchIsKept")


@dataclass(frozen=True)
class Attack:
    rule: str
    faults: tuple[str, ...]
    pace: float
    seen_by: tuple[str, ...]
    first: int = 0

    def run(self, seed: int, broken: bool) -> Outcome:
        options = RunOptions(
            brokers=(3, 3),
            minutes=0.9,
            faults=self.faults,
            pace=self.pace,
            broken=(self.rule,) if broken else (),
        )
        return run_seed(MessagesScenario(), seed, options, traced=False)


ATTACKS = [
    Attack("numbers_counted", ("disconnect", "storm"), 4, TWICE, 4),
    Attack("held_presented", ("kill", "ambush-ack", "ambush-delivery"), 3, TWICE),
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("attack", ATTACKS, ids=[attack.rule for attack in ATTACKS])
def test_a_broken_rule_is_seen(attack: Attack) -> None:
    expect_to_be_seen(attack, SEEDS_MAX)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("attack", ATTACKS, ids=[attack.rule for attack in ATTACKS])
def test_the_same_attack_shows_nothing_while_the_rule_holds(attack: Attack) -> None:
    expect_nothing(attack)


SHOWN_WITHOUT_DISK = """
from rhizome.broker.group_log.log_port import EVERYTHING
from rhizome.cluster.home.replicated_group_log import ReplicatedGroupLog
update_visible, append_from = ReplicatedGroupLog.update_visible, ReplicatedGroupLog.append_from
def judge_all_visible(self):
    update_visible(self)
    if self.alone and not self.still:
        self.visible = EVERYTHING
def append_visibly(self, *arguments):
    visible = self.visible
    append_from(self, *arguments)
    self.visible = visible
ReplicatedGroupLog.update_visible = judge_all_visible
ReplicatedGroupLog.append_from = append_visibly
"""

LONE = Mutant(
    "a home without standbys shows what its disk lacks",
    SHOWN_WITHOUT_DISK,
    ("lone-home",),
    1,
    (*TWICE, "DuplicatesAreDropped"),
    minutes=1.4,
)


@pytest.mark.timeout(900)
def test_a_lone_home_that_does_not_wait_for_its_disk_is_seen() -> None:
    LONE.expect_to_be_seen("messages")


@pytest.mark.timeout(900)
def test_a_lone_home_that_waits_for_its_disk_shows_nothing_twice() -> None:
    options = RunOptions(brokers=(3, 3), minutes=LONE.minutes, faults=LONE.faults, pace=LONE.pace)
    outcome = run_untraced("messages", LONE.first, options)
    assert outcome.passed, f"{outcome.checker}: {outcome.text}"
