"""What tests of broken rules share: an attack is tried until a checker sees the broken rule."""

from __future__ import annotations

from typing import Protocol

import pytest

from rhizome.testing.sim.seed_run import Outcome


class Attack(Protocol):
    """How to bring out that a rule is broken, and which checkers may see it."""

    @property
    def rule(self) -> str: ...

    @property
    def seen_by(self) -> tuple[str, ...]: ...

    @property
    def first(self) -> int: ...

    def run(self, seed: int, broken: bool) -> Outcome: ...


def expect_to_be_seen(attack: Attack, seeds_max: int) -> None:
    """One of so many seeds shows the broken rule, to somebody who may see it."""
    for seed in range(attack.first, attack.first + seeds_max):
        outcome = attack.run(seed, broken=True)
        if not outcome.passed:
            assert outcome.checker in attack.seen_by, outcome.text
            return
    pytest.fail(f"{seeds_max} seeds without {attack.rule}, and no checker sees anything")


def expect_nothing(attack: Attack) -> None:
    """The same attack shows nothing while the rule holds."""
    outcome = attack.run(attack.first, broken=False)
    assert outcome.passed, f"{outcome.checker}: {outcome.text}"
