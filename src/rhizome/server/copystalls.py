"""What the groups at home on a broker wait for: their copies, and after a takeover the edges."""

from __future__ import annotations

from typing import Final

from rhizome.cluster.home import Home
from rhizome.cluster.node import Node

STALL_MS: Final = 500
"""Under load something is always on its way to a copy; only what stays so is a stall."""


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


def _missing(home: Home) -> list[str]:
    """Why standbys that the group should have are not in sync."""
    reasons = []
    for standby in home.copies.status().standbys:
        if standby.in_sync == "":
            how = standby.stage if standby.linked else "not linked"
            reasons.append(f"the copy at {standby.name} is {how}, {_behind(standby.lag)}")
    return reasons


def _reasons(home: Home) -> list[str]:
    status = home.copies.status()
    if home.log.recovering:
        waits = [*status.waits_for, *home.missing_edges()]
        return [f"its home is new and waits to hear from {', '.join(waits) or 'its copies'}"]
    if home.log.aside:
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
