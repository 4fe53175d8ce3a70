"""An operation costs no more because other queues, bindings or connections are there.

Costs are lines of the program, not time (`growth_costs.py`). A walk over all objects of a kind runs
at least a line for each of them, so one such walk is seen however much the operation costs besides.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

FLAT: Final = 0.5
"""So many more lines for each object that is there count as none."""

GROWS: Final = {
    "queues": {"a second"},
    "connections": {"connect", "a second"},
}
"""What still grows, by what is there. A second is gossip, which counts the messages of each queue,
and the timers of connections. What no longer grows is to be taken out."""


@pytest.mark.parametrize(("kind", "few"), [("queues", 40), ("connections", 20)])
def test_an_operation_costs_the_same_whatever_else_is_there(kind: str, few: int) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "tests.unit.cluster.node.growth_costs", kind, str(few)],
        env={**os.environ, "RHIZOME_PURE": "1"},
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    costs: dict[str, tuple[int, int]] = json.loads(found.stdout)
    more = 9 * few
    per_object = {name: (many - one) / more for name, (one, many) in costs.items()}
    growing = {name: cost for name, cost in per_object.items() if cost > FLAT}
    assert growing.keys() == GROWS[kind], growing
