"""A cluster in words and tables, from the document that a broker gives of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from rhizome.cli.http_api.api_client import Row
from rhizome.cli.output.printer import print_fields, print_rows, print_table, say


def print_cluster(document: Row) -> None:
    """Everything about a cluster that a person wants to see at once."""
    print_fields(cluster_fields(document))
    say()
    print_brokers(document)
    say()
    print_groups(_rows(document, "groups"))
    failover = document.get("failover_map")
    if isinstance(failover, dict) and failover:
        say()
        rows = [(name, _names(each.get("broker") for each in failover[name])) for name in failover]
        print_table(("if it fails", "these take over, in order"), rows, "")


def print_groups(groups: list[Row]) -> None:
    """A line for each group, and a sentence for each that is unavailable, moves or is pinned."""
    print_rows(groups, GROUP_COLUMNS, "no groups")
    for group in groups:
        if group.get("unavailable"):
            say(f"group {group.get('id')} is UNAVAILABLE: {group['unavailable']}")
        if group.get("moving_to"):
            say(f"group {group.get('id')} moves to {group['moving_to']}")
        if group.get("pinned"):
            say(f"group {group.get('id')} is pinned to {group['pinned']}")


def print_brokers(document: Row) -> None:
    root = _table(document, "cluster").get("root")
    rows = [{**each, "is_root": each.get("name") == root} for each in _rows(document, "brokers")]
    print_rows(rows, BROKER_COLUMNS, "no brokers")


def cluster_fields(document: Row) -> list[tuple[str, object]]:
    cluster = _table(document, "cluster")
    root = cluster.get("root")
    fields: list[tuple[str, object]] = [
        ("cluster", f"{cluster.get('name') or '-'} ({cluster.get('uuid') or 'no identity yet'})"),
        ("root", f"{root}, term {cluster.get('term')}" if root else "none"),
        ("quorum", quorum_text(_table(cluster, "quorum"))),
    ]
    if document.get("seen_by"):
        fields.append(("as seen by", document["seen_by"]))
    notes = cluster.get("notes")
    fields += [("note", note) for note in notes or ()]
    return fields


def quorum_text(quorum: Row) -> str:
    defined, active, needed = (quorum.get(key, 0) for key in ("defined", "active", "needed"))
    text = f"{active} of {defined} primaries active, {needed} needed"
    return text if active >= needed else f"{text}: NO QUORUM, changes are refused"


def _member(row: Row) -> str:
    """A member; one that may lack transient messages is marked."""
    return f"{row.get('broker')}{'' if row.get('copy') == 'whole' else ' (disk)'}"


def _names(names: Iterable[Any]) -> str:
    return " ".join(map(str, names)) or "-"


def _rows(document: Row, key: str) -> list[Row]:
    found = document.get(key)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _table(document: Row, key: str) -> Row:
    found = document.get(key)
    return found if isinstance(found, dict) else {}


BROKER_COLUMNS: Final = (
    ("broker", "name"),
    ("role", lambda row: f"{row.get('role')} (root)" if row["is_root"] else row.get("role")),
    "status",
    ("seniority", lambda row: row.get("seniority") or None),
    *("machine", "connections", "linked"),
    ("addresses", lambda row: _names(row.get("addresses") or ())),
)
GROUP_COLUMNS: Final = (
    *(("group", "id"), "home", "epoch"),
    ("failover", lambda row: _names(row.get("failover") or ())),
    ("in sync", lambda row: _names(_member(each) for each in row.get("in_sync") or ())),
    ("copies", lambda row: "not replicated" if row.get("local") else row.get("copies")),
    *("queues", "messages"),
)
