"""docs/requirements.md: every demand once, and every claim backed by a test that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs" / "requirements.md"
LAST_NUMBERS = {"O": 34, "Q": 8, "H": 23, "J": 15, "P": 1}
ROW = re.compile(r"^\| ([A-Z]\d+) \| (.*?) \| (.*?) ?\| (.*?) \|$", re.MULTILINE)
OPEN = "open"

Row = tuple[str, str, list[str], list[str]]


def entries(cell: str) -> list[str]:
    return [part.strip(" `") for part in cell.split("<br>") if part.strip(" `")]


def rows() -> list[Row]:
    return [
        (number, demand, entries(code), entries(tests))
        for number, demand, code, tests in ROW.findall(TABLE.read_text())
    ]


def missing_test(name: str) -> str | None:
    """Why `path::function` or `path::Class::function` can't be run, or None."""
    path_text, *names = name.split("::")
    path = ROOT / path_text
    if not names:
        return f"{name} names no function"
    if not path.is_file():
        return f"{path_text} does not exist"
    body: list[ast.stmt] = ast.parse(path.read_text()).body
    for wanted in names:
        found = [n for n in body if getattr(n, "name", None) == wanted]
        if not found:
            return f"{path_text} has no {wanted}"
        body = getattr(found[0], "body", [])
    return None


def test_every_demand_stands_in_the_table_once() -> None:
    numbers = sorted(number for number, *_ in rows())
    wanted = sorted(f"{k}{n}" for k, last in LAST_NUMBERS.items() for n in range(1, last + 1))
    assert numbers == wanted


def test_every_row_of_the_table_is_understood() -> None:
    begun = re.findall(r"^\| [A-Z]\d+ .*$", TABLE.read_text(), re.MULTILINE)
    assert len(begun) == len(rows())


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_what_is_named_exists(row: Row) -> None:
    number, demand, code, tests = row
    assert demand, f"{number} demands nothing"
    for path in code:
        assert (ROOT / path).exists(), f"{number}: {path} does not exist"
    for name in tests:
        assert name == OPEN or missing_test(name) is None, f"{number}: {missing_test(name)}"


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_nothing_is_met_without_a_test(row: Row) -> None:
    number, _, code, tests = row
    assert tests, f"{number}: name a test, or say `{OPEN}`"
    assert OPEN not in tests or tests == [OPEN], f"{number} is both open and tested"
    assert tests == [OPEN] or code, f"{number} has a test but names no code"
