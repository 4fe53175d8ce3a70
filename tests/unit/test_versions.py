"""docs/operating/upgrade.md names the version of every format, as the code has it."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| [^|]+ \| ([\d to]+) \| `(\w+)` in `([\w.]+)` \|$", re.MULTILINE)
ROWS = ROW.findall((ROOT / "docs" / "operating" / "upgrade.md").read_text())


def test_the_table_is_there() -> None:
    assert len(ROWS) >= 10


@pytest.mark.parametrize(("told", "name", "module"), ROWS, ids=[f"{m}.{n}" for _, n, m in ROWS])
def test_versions_are_as_told(told: str, name: str, module: str) -> None:
    value = getattr(import_module(module), name)
    shown = f"{value[0]} to {value[1]}" if isinstance(value, tuple) else str(value)
    assert shown == told
