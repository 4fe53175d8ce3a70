"""docs/requirements.md: every demand once, and every claim backed by a test that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs" / "requirements.md"
LAST_NUMBERS = {"O": 34, "Q": 8, "H": 23, "J": 15, "P1.": 12}
ROW = re.compile(r"^\| ([A-Z]\d+(?:\.\d+)?) \| (.*?) \| (.*?) ?\| (.*?) \|$", re.MULTILINE)
OPEN = "open"
SOAK = "pytest.mark.soak"
PARAMETRIZE = "pytest.mark.parametrize"

Row = tuple[str, str, list[str], list[str]]


def entries(cell: str) -> list[str]:
    return [part.strip(" `") for part in cell.split("<br>") if part.strip(" `")]


def rows() -> list[Row]:
    return [
        (number, demand, entries(code), entries(tests))
        for number, demand, code, tests in ROW.findall(TABLE.read_text())
    ]


def way_to(name: str) -> list[ast.AST]:
    """The module of `path::function` or `path::Class::function`, and what is named in it; ends
    where there is no such thing."""
    path_text, *names = name.split("::")
    way: list[ast.AST] = [ast.parse((ROOT / path_text).read_text())]
    for wanted in names:
        body: list[ast.stmt] = getattr(way[-1], "body", [])
        found = [each for each in body if getattr(each, "name", None) == wanted]
        if not found:
            break
        way.append(found[0])
    return way


def missing_test(name: str) -> str | None:
    """Why `path::function` or `path::Class::function` can't be run, or None."""
    path_text, *names = name.split("::")
    if not names:
        return f"{name} names no function"
    if not (ROOT / path_text).is_file():
        return f"{path_text} does not exist"
    known = len(way_to(name)) - 1
    return None if known == len(names) else f"{path_text} has no {names[known]}"


def marks_all(node: ast.AST) -> list[str]:
    """The marks of all tests in a module, a class or a function; not those of a parameter."""
    decorators = [ast.unparse(each) for each in getattr(node, "decorator_list", [])]
    assigned = [
        ast.unparse(each.value)
        for each in getattr(node, "body", [])
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "pytestmark"
    ]
    return [each for each in decorators if not each.startswith(PARAMETRIZE)] + assigned


def is_soak(name: str) -> bool:
    """Whether a test runs in `make soak` only."""
    return any(SOAK in mark for node in way_to(name) for mark in marks_all(node))


def test_every_demand_stands_in_the_table_once() -> None:
    numbers = sorted(number for number, *_ in rows())
    wanted = sorted(f"{k}{n}" for k, last in LAST_NUMBERS.items() for n in range(1, last + 1))
    assert numbers == wanted


def test_every_row_of_the_table_is_understood() -> None:
    begun = re.findall(r"^\| [A-Z]\d+(?:\.\d+)? .*$", TABLE.read_text(), re.MULTILINE)
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


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_every_demand_is_shown_in_each_run(row: Row) -> None:
    number, _, _, tests = row
    assert tests == [OPEN] or not all(map(is_soak, tests)), f"{number} is shown by soaks alone"


@pytest.mark.parametrize(
    ("name", "soak"),
    [
        ("tests/process/cluster/test_hooks.py::test_who_takes_over_is_told", True),
        ("tests/process/cluster/test_cluster_soak.py::known_to", True),
        ("tests/process/cluster/test_takeover.py::test_all_misfortunes_in_namespaces", False),
        (
            "tests/process/cluster/test_cluster.py::test_each_step_may_go_through_another_broker",
            False,
        ),
    ],
)
def test_soaks_are_known_by_their_marks(name: str, soak: bool) -> None:
    """Those of a function and of its module; a parameter's own leaves the others."""
    assert is_soak(name) == soak
