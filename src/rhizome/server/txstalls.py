"""What transactions over several groups wait for that have not been settled for long (L4)."""

from __future__ import annotations

from rhizome.cluster.doubts import PREPARED, Doubt, long_doubts
from rhizome.cluster.node import Node

NAMED_MAX = 20
"""More rows would tell no more: whoever is waited for is mostly the same."""


def tx_stalls(node: Node) -> list[dict[str, object]]:
    """Rows for /api/rhizome/stalls."""
    return [_row(each) for each in long_doubts(node.roles.txs)[:NAMED_MAX]]


def _row(doubt: Doubt) -> dict[str, object]:
    what = f"transaction {doubt.transaction} in group {doubt.group}"
    if doubt.set_aside:
        what += f", with {doubt.set_aside} message{'s' * (doubt.set_aside > 1)} set aside"
    state = "in doubt" if doubt.state == PREPARED else doubt.state
    waits = " and ".join(doubt.waits_for) or "its copies"
    why = f"it is {state} for {doubt.age_ms // 1000} s and waits for {waits}"
    return {"broker": doubt.broker, "kind": "transaction", "what": what, "why": why}
