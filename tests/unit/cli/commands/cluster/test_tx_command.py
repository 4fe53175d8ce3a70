"""`rhizome tx`: what it shows of transactions that aren't settled."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from typer.testing import Result

Rhizome = Callable[..., Result]

ROW: dict[str, Any] = {
    "id": "547752f200cd.1",
    "age_ms": 61_500,
    "state": "in doubt",
    "edge": "s1",
    "edge_is_gone": True,
    "decider": 1,
    "parties": [
        {"group": 1, "home": "", "state": "undecided", "set_aside": 0},
        {"group": 3, "home": "b2", "state": "prepared", "set_aside": 2},
    ],
    "waits_for": ["the decision of group 1, which has no home"],
}


def test_transactions_are_listed(rhizome: Rhizome, api: Any) -> None:
    api.answer("GET /api/rhizome/transactions", [ROW])
    shown = rhizome("tx", "list", "--http", api.address)
    assert shown.exit_code == 0, shown.stderr
    line = shown.stdout.splitlines()[1]
    for text in (
        "547752f200cd.1",
        "61.5 s",
        "in doubt",
        "s1 (gone)",
        "1 at ?: undecided; 3 at b2: prepared, 2 set aside",
        "the decision of group 1, which has no home",
    ):
        assert text in line
    assert json.loads(rhizome("tx", "list", "--http", api.address, "--json").stdout) == [ROW]


def test_none_is_no_news(rhizome: Rhizome, api: Any) -> None:
    api.answer("GET /api/rhizome/transactions", [])
    assert "no transaction" in rhizome("tx", "list", "--http", api.address).stdout
