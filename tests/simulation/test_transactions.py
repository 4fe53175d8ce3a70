"""Transactions over several groups in the simulated world, and broken rules of theirs (L4)."""

from __future__ import annotations

import pytest

from rhizome.testing.sim.run import RunOptions, UnknownRule
from rhizome.testing.sim.scenarios import run_named

SHORT = RunOptions(brokers=(3, 4), secondaries=(0, 1), minutes=0.9)
HARD = RunOptions(brokers=(3, 4), secondaries=(0, 1), minutes=0.9, pace=2)
APART = ("ambush-transaction", "pair", "one-way")


def _check(seed: int, options: RunOptions) -> None:
    outcome = run_named("transactions", seed, options)
    assert outcome.passed, f"seed {seed}: {outcome.checker}: {outcome.text}"
    assert outcome.counts.get("TransactionEnds", 0) > 30


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 4])
def test_transactions_are_done_as_a_whole_or_not_at_all(seed: int) -> None:
    _check(seed, SHORT)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(0, 1_000, 20))
def test_transactions_are_done_as_a_whole_or_not_at_all_in_many_seeds(first: int) -> None:
    for seed in range(first, first + 20):
        _check(seed, HARD)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("rule", "options", "seed", "checker"),
    [
        ("prepared_first", HARD, 2, "NoConfirmedMessageLost"),
        ("kept_until_settled", RunOptions((3, 3), (1, 1), 1.0, APART, 3), 1, "NoMessageStuck"),
    ],
)
def test_a_broken_rule_is_seen(rule: str, options: RunOptions, seed: int, checker: str) -> None:
    broken = RunOptions(
        options.brokers, options.secondaries, options.minutes, options.faults, options.pace, (rule,)
    )
    assert run_named("transactions", seed, broken).checker == checker


def test_a_rule_that_there_isnt_is_refused() -> None:
    with pytest.raises(UnknownRule, match="prepared_first"):
        run_named("transactions", 1, RunOptions(broken=("no such rule",)))
