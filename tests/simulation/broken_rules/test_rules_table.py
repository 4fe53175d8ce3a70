"""The table of broken rules in docs/internals/simulator.md, against the tests that it names."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "internals" / "simulator.md"
RULES = [*(f"G{n}" for n in range(1, 12)), *(f"L{n}" for n in range(1, 6)), "A1", "A2", "A3"]
ROW = re.compile(r"^\| ([GLA]\d+) \| (.+?) \| (.*?)\|? ?\| (.+) \|$", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def rows() -> list[tuple[str, ...]]:
    return [match.groups() for match in ROW.finditer(PAGE.read_text())]


def test_every_rule_has_a_row() -> None:
    assert [rule for rule in RULES if rule not in [row[0] for row in rows()]] == []


def test_every_rule_is_broken_and_somebody_sees_it() -> None:
    assert [row[:2] for row in rows() if not row[1].strip() or not row[2].strip()] == []


def test_the_tests_that_are_named_are_there() -> None:
    for rule, broken, _, tests in rows():
        named = TEST.findall(tests)
        assert named, f"{rule}, {broken}: no test is named"
        for path, name in named:
            text = (ROOT / path).read_text()
            assert name in text, f"{rule}, {broken}: {path} has no {name}"
