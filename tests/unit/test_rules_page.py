"""docs/internals/rules.md: every code of a rule that is cited anywhere has its text there, and the
page names only code and tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.unit.test_house import ROOT, text_files
from tests.unit.test_requirements import rows as demands

PAGE = ROOT / "docs" / "internals" / "rules.md"
PARTS = ["Rule", "Without it", "Code", "Tests"]
HEADING = re.compile(r"^### (\w+)\. \S.*$", re.MULTILINE)
PART = re.compile(r"^\*\*([\w ]+)\.\*\*", re.MULTILINE)
SECTION = re.compile(r"^##? ", re.MULTILINE)
# Rules (R, G, L, A) and demands (O, Q, H, J, P); a letter behind the number would be a sub-number.
CITED = re.compile(r"(?<![\w.])([RGLAOQHJ]\d{1,2}[a-z]?|P\d\.\d+)(?!\w)")
NAMED = re.compile(r"((?:src|tests)/[\w/]+\.py)(?:::([\w.]+))?(?:\[([\w-]+)\])?")


def texts_of_rules(page: str) -> dict[str, str]:
    """Code -> all that the page says under its heading."""
    found = list(HEADING.finditer(page))
    ends = [each.start() for each in found[1:]] + [len(page)]
    return {
        each.group(1): SECTION.split(page[each.end() : end])[0]
        for each, end in zip(found, ends, strict=True)
    }


def parts_of(text: str) -> dict[str, str]:
    """Name -> text of the parts of a rule, in their order."""
    found = list(PART.finditer(text))
    ends = [each.start() for each in found[1:]] + [len(text)]
    return {
        each.group(1): text[each.end() : end].strip() for each, end in zip(found, ends, strict=True)
    }


def unresolved(text: str, known: set[str]) -> list[str]:
    """The codes that a text cites and nothing has a text for."""
    return sorted({code for code in CITED.findall(text) if code not in known})


@cache
def names_in(path: Path) -> frozenset[str]:
    """What a module defines: functions, classes, `Class.method`, and what it assigns at its top."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            names.update(f"{node.name}.{each.name}" for each in inner)
        if isinstance(node, ast.Assign):
            names.update(each.id for each in node.targets if isinstance(each, ast.Name))
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return frozenset(names)


def missing(path: str, name: str, parameter: str) -> str:
    """Why there is no `path::name[parameter]`; empty if there is."""
    file = ROOT / path
    if not file.is_file():
        return f"{path} does not exist"
    if name and name not in names_in(file):
        return f"{path} has no {name}"
    if parameter and not re.search(rf"\b{re.escape(parameter)}\b", file.read_text()):
        return f"{path} has no {name}[{parameter}]"
    return ""


def faults_of(rule: str) -> list[str]:
    """What is wrong with what the page says of a rule."""
    parts = parts_of(rule)
    if list(parts) != PARTS:
        return [f"it has the parts {list(parts)}, not {PARTS}"]
    faults = [f"'{name}' says nothing" for name, text in parts.items() if not text]
    for part, top in (("Code", "src/"), ("Tests", "tests/")):
        if not any(path.startswith(top) for path, *_ in NAMED.findall(parts[part])):
            faults.append(f"'{part}' names nothing in {top}")
    return faults


RULES = texts_of_rules(PAGE.read_text())
KNOWN = {*RULES, *(number for number, *_ in demands())}


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_all_its_parts(rule: str) -> None:
    assert faults_of(RULES[rule]) == []


def test_every_rule_stands_on_the_page_once() -> None:
    codes = HEADING.findall(PAGE.read_text())
    assert len(codes) == len(RULES)
    assert codes == sorted(codes, key=lambda code: ("RGLA".index(code[0]), int(code[1:])))


def test_what_the_page_names_exists() -> None:
    found = [missing(*each) for each in NAMED.findall(PAGE.read_text())]
    assert [each for each in found if each] == []


def test_every_code_that_is_cited_has_a_text() -> None:
    cited = {path: unresolved(path.read_text(errors="replace"), KNOWN) for path in text_files()}
    assert {str(path.relative_to(ROOT)): codes for path, codes in cited.items() if codes} == {}


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md"])
def test_a_newcomer_is_led_to_the_page(name: str) -> None:
    assert f"({PAGE.relative_to(ROOT)})" in (ROOT / name).read_text()


# --- what these tests would see

GOOD = """## Letters

### G1. A title

**Rule.** It is so.

**Without it.** A message is lost.

**Code.**
- `src/rhizome/cluster/state/groups_and_placement.py::Groups.restarted`

**Tests.**
- `tests/unit/test_rules_page.py::GOOD`

## What follows

**Note.** Not of the rule.
"""


def test_a_page_is_read_by_its_headings() -> None:
    rules = texts_of_rules(GOOD)
    assert list(rules) == ["G1"]
    assert list(parts_of(rules["G1"])) == PARTS
    assert faults_of(rules["G1"]) == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("**Without it.**", "Without it", "it has the parts"),
        (" A message is lost.", "", "'Without it' says nothing"),
        (
            "src/rhizome/cluster/state/groups_and_placement.py::Groups.restarted",
            "a place",
            "'Code' names nothing",
        ),
        ("tests/unit/test_rules_page.py::GOOD", "a story", "'Tests' names nothing"),
    ],
)
def test_a_part_that_is_missing_is_seen(old: str, new: str, fault: str) -> None:
    (text,) = texts_of_rules(GOOD.replace(old, new)).values()
    assert [each for each in faults_of(text) if each.startswith(fault)] != []


@pytest.mark.parametrize(
    ("named", "fault"),
    [
        ("src/rhizome/cluster/gone.py::Groups", "does not exist"),
        ("src/rhizome/cluster/state/groups_and_placement.py::Groups.gone", "has no Groups.gone"),
        ("tests/unit/test_house.py::test_gone", "has no test_gone"),
        ("tests/unit/test_house.py::files[gone_too]", "has no files[gone_too]"),
    ],
)
def test_what_does_not_exist_is_seen(named: str, fault: str) -> None:
    (each,) = NAMED.findall(named)
    assert missing(*each).endswith(fault)


# In pieces, so that this file cites no rule that there isn't.
@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("(R1, " + "R" + "99)", ["R" + "99"]),
        ("R" + "4b and R4", ["R" + "4b"]),
        ("G1-" + "G" + "77, J12", ["G" + "77"]),
        ("-O2, x.A" + "9, 0xA" + "9, A" + "_4, S3", []),
    ],
)
def test_a_code_without_a_text_is_seen(text: str, codes: list[str]) -> None:
    assert unresolved(text, KNOWN) == codes
