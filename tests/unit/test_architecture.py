"""ARCHITECTURE.md names code that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"`([a-z_/]+\.py)(?:::([A-Za-z_.]+))?`")


def named() -> list[tuple[str, str]]:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    return [(path, name) for path, name in NAMED.findall(text) if "/" in path]


def exists(path: str, name: str) -> bool:
    """Whether a module below src/rhizome or the root has this function, class or method."""
    files = [each / path for each in (ROOT / "src" / "rhizome", ROOT) if (each / path).is_file()]
    if not files:
        return False
    within: list[ast.stmt] = ast.parse(files[0].read_text()).body
    for part in filter(None, name.split(".")):
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        found = [each for each in within if isinstance(each, kinds) and each.name == part]
        if not found:
            return False
        within = found[0].body
    return True


@pytest.mark.parametrize(("path", "name"), named())
def test_code_that_the_page_names_exists(path: str, name: str) -> None:
    assert exists(path, name)


def test_flows_are_on_the_page_and_what_is_gone_is_seen() -> None:
    assert len([name for _, name in named() if name]) >= 20
    assert not exists("broker/queue/queue.py", "Queue.no_such_method")
    assert not exists("broker/no_such_module.py", "")
