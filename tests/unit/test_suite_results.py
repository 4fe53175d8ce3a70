"""What the suites of client libraries did, as it is judged."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))

from suite_results import UNSTEADY, Expectation, Outcome, judge

UNLUCKY = min(UNSTEADY["aiormq"])


@pytest.mark.parametrize(
    ("outcome", "is_good", "said"),
    [
        (Outcome({"a", "b"}, {"c"}), True, "2 passed, 1 failed, 0 of them new"),
        (Outcome({"a", "b", "c"}), True, "passes here and not on RabbitMQ: c"),
        (Outcome({"a"}, {"b", "c"}), False, "fails here and not on RabbitMQ: b"),
        (Outcome({"a"}, {"c"}), False, "only 1 tests passed, 2 did on RabbitMQ"),
        (Outcome({"a"}, {UNLUCKY, "c"}), True, "fails now and then on RabbitMQ too"),
    ],
)
def test_a_suite_is_good_if_it_does_no_worse_than_on_rabbitmq(
    outcome: Outcome, is_good: bool, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert judge("aiormq", outcome, Expectation(2, ("c",))) == is_good
    assert said in capsys.readouterr().out
