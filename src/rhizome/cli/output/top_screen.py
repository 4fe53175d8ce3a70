"""One frame of `rhizome top`: lines of text from a broker's documents. No input or output."""

from __future__ import annotations

from typing import Any, Final

from rhizome.cli.output.cluster_tables import quorum_text
from rhizome.cli.output.printer import bytes_text, cell_text, format_table
from rhizome.printable_text import escaped

Row = dict[str, Any]

SORTS: Final = {
    "messages": "messages",
    "ready": "messages_ready",
    "unacked": "messages_unacknowledged",
    "in": "message_stats.publish_details.rate",
    "out": "message_stats.deliver_get_details.rate",
    "name": "name",
}
QUEUE_COLUMNS: Final = (
    "name,vhost,state,node,consumers,messages_ready,messages_unacknowledged,messages,"
    "message_stats.publish_details.rate,message_stats.deliver_get_details.rate,"
    "messages_details.rate"
)
GROUPS_MAX: Final = 12
STALLS_MAX: Final = 5
NAME_WIDTH_MIN: Final = 16
"""Names are shortened to this and no further: one long name must not push all numbers out."""


def frame(document: Row, sort: str, width: int, height: int) -> list[str]:
    """The lines, none wider than ``width`` and no more than ``height``."""
    lines = [
        *_head(document),
        "",
        *_brokers(document),
        "",
        *_groups(document["groups"]),
        *_stalls(document["stalls"]),
        "",
        *_queues(document["queues"], sort, width),
    ]
    return [escaped(line)[:width] for line in lines[:height]]


def _head(document: Row) -> list[str]:
    cluster = document["cluster"]
    rates = [load["rates"] for load in document["loads"].values()]
    sums = {name: sum(each[name] for each in rates) for name in ("published", "delivered", "acked")}
    root = f"root {cluster['root']}, term {cluster['term']}" if cluster["root"] else "NO ROOT"
    quorum = quorum_text(cluster["quorum"])
    lines = [
        f"{cell_text(cluster['name'])}  {root}  {quorum}  (as seen by {document['seen_by']})",
        f"published {rate_text(sums['published'])}/s  delivered {rate_text(sums['delivered'])}/s"
        f"  acked {rate_text(sums['acked'])}/s",
    ]
    lines += [f"note: {note}" for note in cluster["notes"]]
    if document["silent"]:
        lines.append(f"NO ANSWER FROM {', '.join(document['silent'])}")
    return lines


def _brokers(document: Row) -> list[str]:
    root = document["cluster"]["root"]
    rows = [
        _broker(each, document["loads"].get(each["name"]), root) for each in document["brokers"]
    ]
    headings = ("broker", "role", "status", "conns", "chans", "queues", "ready", "unacked")
    return format_table((*headings, "in/s", "out/s", "memory", "disk free", "alarm"), rows)


def _broker(row: Row, load: Row | None, root: str | None) -> list[object]:
    role = f"{row['role']}*" if row["name"] == root else row["role"]
    first: list[object] = [row["name"], role, row["status"]]
    if load is None:
        return [*first, row["connections"], *[None] * 9]
    return [
        *first,
        *(load[name] for name in ("connections", "channels", "queues", "ready", "unacked")),
        rate_text(load["rates"]["published"]),
        rate_text(load["rates"]["delivered"]),
        bytes_text(load["memory_bytes"]),
        bytes_text(load["disk_free_bytes"]),
        load["alarm"] or None,
    ]


def _groups(groups: list[Row]) -> list[str]:
    """The groups, those with a problem first, and no more than fit."""
    ordered = sorted(groups, key=lambda each: (not _is_ailing(each), each["id"]))
    rows = [
        [
            each["id"],
            each["home"] or "UNAVAILABLE",
            each["epoch"],
            _copies(each),
            each["queues"],
            each["messages"],
            _state(each),
        ]
        for each in ordered[:GROUPS_MAX]
    ]
    lines = format_table(("group", "home", "epoch", "copies", "queues", "messages", ""), rows)
    if len(ordered) > GROUPS_MAX:
        lines.append(f"... and {len(ordered) - GROUPS_MAX} more groups")
    return lines


def _is_ailing(group: Row) -> bool:
    lacking = not group["local"] and len(group["in_sync"]) + 1 < group["copies"]
    return group["home"] is None or lacking or bool(group["moving_to"])


def _copies(group: Row) -> str:
    if group["local"]:
        return "not replicated"
    members = ", ".join(
        f"{each['broker']}{'' if not each['lag'] else ' -' + str(each['lag'])}"
        for each in group["in_sync"]
    )
    return f"{len(group['in_sync']) + 1}/{group['copies']} {members}".rstrip()


def _state(group: Row) -> str:
    if group["unavailable"]:
        return str(group["unavailable"])
    return f"moves to {group['moving_to']}" if group["moving_to"] else ""


def _stalls(stalls: list[Row]) -> list[str]:
    lines = [
        f"STALL {each['broker'] or ''} {each['what']}: {each['why']}"
        for each in stalls[:STALLS_MAX]
    ]
    if len(stalls) > STALLS_MAX:
        lines.append(f"... and {len(stalls) - STALLS_MAX} more; see /api/rhizome/stalls")
    return ["", *lines] if lines else []


def _queues(page: Row, sort: str, width: int) -> list[str]:
    rows = [_queue(each) for each in page["items"]]
    if not rows:
        return ["no queues"]
    headings = ("queue", "vhost", "home", "state", "ready", "unacked", "consumers", "in/s", "out/s")
    lines = format_table((*headings, "growth/s"), rows)
    excess = max(map(len, lines)) - width
    if excess > 0:
        longest = max(len(cell_text(row[0])) for row in rows)
        name_width = max(longest - excess, NAME_WIDTH_MIN)
        rows = [[_shortened(cell_text(row[0]), name_width), *row[1:]] for row in rows]
        lines = format_table((*headings, "growth/s"), rows)
    lines[0] = f"{lines[0]}   ({page['total_count']} queues by {sort})"
    return lines


def _shortened(name: str, width: int) -> str:
    """Both ends of a name that is too long: names often differ in the last part."""
    if len(name) <= width:
        return name
    end = (width - 1) // 2
    return f"{name[: width - 1 - end]}…{name[-end:]}"


def _queue(row: Row) -> list[object]:
    stats = row.get("message_stats") or {}
    return [
        row.get("name"),
        row.get("vhost"),
        row.get("node"),
        row.get("state"),
        row.get("messages_ready"),
        row.get("messages_unacknowledged"),
        row.get("consumers"),
        rate_text(_rate(stats, "publish_details")),
        rate_text(_rate(stats, "deliver_get_details")),
        rate_text(_rate(row, "messages_details")),
    ]


def _rate(row: Row, name: str) -> float:
    found = row.get(name) or {}
    return float(found.get("rate") or 0.0)


def rate_text(rate: float) -> str:
    """12345.6 as 12.3k: the width stays put while numbers change."""
    for unit in ("", "k", "M"):
        if abs(rate) < 1000:
            return f"{rate:.0f}{unit}" if unit == "" else f"{rate:.1f}{unit}"
        rate /= 1000
    return f"{rate:.1f}G"
