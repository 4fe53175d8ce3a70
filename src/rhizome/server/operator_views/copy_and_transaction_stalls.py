"""Stalls: what the groups at home on a broker wait for: copies, edges after a takeover,
transactions."""

from __future__ import annotations

from typing import Final

from rhizome.cluster.home.home_group import HomeGroup
from rhizome.cluster.node import Node
from rhizome.cluster.transactions.transaction_status import (
    PREPARED,
    TransactionStatus,
    long_transactions,
)

NAMED_MAX = 20
"""More rows would say no more: the broker that is waited for is mostly the same."""


def tx_stalls(node: Node) -> list[dict[str, object]]:
    """Rows for /api/rhizome/stalls."""
    return [_row(each) for each in long_transactions(node.roles.tx_transport)[:NAMED_MAX]]


def _row(doubt: TransactionStatus) -> dict[str, object]:
    what = f"transaction {doubt.transaction} in group {doubt.group}"
    if doubt.set_aside:
        what += f", with {doubt.set_aside} message{'s' * (doubt.set_aside > 1)} set aside"
    state = "in doubt" if doubt.state == PREPARED else doubt.state
    waits = " and ".join(doubt.waits_for) or "its copies"
    why = f"it is {state} for {doubt.age_ms // 1000} s and waits for {waits}"
    return {"broker": doubt.broker, "kind": "transaction", "what": what, "why": why}


STALL_MS: Final = 500
"""Under load something is always in flight to a copy; only what stays so is a stall."""


def copy_stalls(node: Node) -> list[dict[str, object]]:
    """Rows for /api/rhizome/stalls."""
    rows: list[dict[str, object]] = []
    for home in node.roles.homes.values():
        for why in _reasons(home):
            what = f"confirms and deliveries of group {home.group.id}"
            rows.append({"broker": node.me.name, "kind": "copy", "what": what, "why": why})
        for why in _missing(home):
            what = f"a further copy of group {home.group.id}"
            rows.append({"broker": node.me.name, "kind": "copy", "what": what, "why": why})
    return rows


def _missing(home: HomeGroup) -> list[str]:
    """Why standbys that the group should have are not in sync."""
    reasons = []
    for standby in home.copies.status().standbys:
        if standby.in_sync == "":
            how = standby.stage if standby.linked else "not linked"
            reasons.append(f"the copy at {standby.name} is {how}, {_behind(standby.lag)}")
    return reasons


def _reasons(home: HomeGroup) -> list[str]:
    status = home.copies.status()
    if home.log.silent:
        waits = [*status.waits_for, *home.missing_edges()]
        if home.missing_clients():
            waits.append("clients whose broker is gone")
        return [f"its home is new and waits to hear from {', '.join(waits) or 'its copies'}"]
    if home.is_handing_over:
        return [f"its home hands over to {home.group.moving_to}"]
    if status.too_few:
        return ["it has fewer copies than its policy demands (min-copies)"]
    reasons = []
    for standby in status.standbys:
        if standby.name not in status.waits_for or standby.lag <= 0:
            continue
        if not standby.linked:
            reasons.append(f"its copy at {standby.name} has no link")
        elif standby.waited_ms >= STALL_MS:
            reasons.append(f"its copy at {standby.name} is {_behind(standby.lag)}")
    return reasons


def _behind(records: int) -> str:
    return f"{records} record{'' if records == 1 else 's'} behind"
