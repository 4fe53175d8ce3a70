"""Transactions over several groups in the simulated world, and broken rules of theirs (L4)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from rhizome.testing.sim.scenario_runner import run_named
from rhizome.testing.sim.scenarios.transactions_scenario import TransactionsScenario
from rhizome.testing.sim.seed_run import Outcome, RunOptions, UnknownRule, run_seed
from tests.simulation.attacks import expect_nothing, expect_to_be_seen

SHORT = RunOptions(brokers=(3, 4), secondaries=(0, 1), minutes=0.9)
HARD = RunOptions(brokers=(3, 4), secondaries=(0, 1), minutes=0.9, pace=2)
AT_EDGES = RunOptions((3, 3), (0, 1), 0.9, ("ambush-edge",), 5)
APART = RunOptions((3, 3), (1, 1), 1.0, ("ambush-transaction", "pair", "one-way"), 3)
WITHOUT_HOME = RunOptions((3, 4), (0, 0), 0.9, ("ambush-transaction", "pause", "pair"), 3)
SEEDS_MAX = 20


def _check(seed: int, options: RunOptions, ends_min: int = 31) -> None:
    outcome = run_named("transactions", seed, options)
    assert outcome.passed, f"seed {seed}: {outcome.checker}: {outcome.text}"
    assert outcome.counts.get("TransactionEnds", 0) >= ends_min


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 4])
def test_transactions_are_done_as_a_whole_or_not_at_all(seed: int) -> None:
    _check(seed, SHORT)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(0, 1_000, 20))
def test_transactions_are_done_as_a_whole_or_not_at_all_in_many_seeds(first: int) -> None:
    for seed in range(first, first + 20):
        # In some of them hardly anybody has a lease for most of the time.
        _check(seed, HARD, ends_min=5)


@dataclass(frozen=True)
class Attack:
    rule: str
    options: RunOptions
    seen_by: tuple[str, ...]
    first: int = 0

    def run(self, seed: int, broken: bool) -> Outcome:
        options = replace(self.options, broken=(self.rule,) if broken else ())
        return run_seed(TransactionsScenario(), seed, options, traced=False)


# The checker of commits is the first to see it, where the client is answered before all is lost.
NOT_DONE = "CommitIsDoneWhenAnswered"
LOST = ("NoConfirmedMessageLost", "NoAckedMessageRedelivered", NOT_DONE)
ATTACKS = [
    Attack("prepared_first", HARD, LOST, 2),
    Attack("prepared_first", AT_EDGES, ("TransactionsAllOrNothing", NOT_DONE)),
    Attack("kept_until_settled", APART, ("NoMessageStuck",), 1),
    Attack("edge_last", WITHOUT_HOME, (NOT_DONE,), 23),
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("attack", ATTACKS, ids=[each.rule for each in ATTACKS])
def test_a_broken_rule_is_seen(attack: Attack) -> None:
    expect_to_be_seen(attack, SEEDS_MAX)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("attack", ATTACKS, ids=[each.rule for each in ATTACKS])
def test_the_same_attack_shows_nothing_while_the_rule_holds(attack: Attack) -> None:
    expect_nothing(attack)


def test_a_rule_that_there_isnt_is_refused() -> None:
    with pytest.raises(UnknownRule, match="prepared_first"):
        run_named("transactions", 1, RunOptions(broken=("no such rule",)))
