"""`rhizome status`: the cluster in one sentence and two tables, and the broker that was asked."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from rhizome.cli.http_api.api_client import Row, path
from rhizome.cli.http_api.command_decorator import Remote
from rhizome.cli.output.cluster_tables import print_cluster, quorum_text
from rhizome.cli.output.cluster_verdict import copies_in_sync, verdict_of
from rhizome.cli.output.printer import (
    OK,
    bytes_text,
    duration_text,
    print_fields,
    print_json,
    print_rows,
    say,
)
from rhizome.cli.shared_options import with_options

app = typer.Typer()


@app.command()
@with_options
def status(
    remote: Remote,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Every field, as the broker gives it.")
    ] = False,
) -> None:
    """Show how the cluster is, and the broker that was asked.

    The first line is the verdict. `rhizome doctor` asks every broker, and says what to do.
    """
    document = remote.api.row(path("rhizome", "status"))
    if remote.as_json:
        print_json(document)
        return
    print_verdict(document)
    say()
    broker = document.pop("broker", None)
    if verbose:
        print_cluster(document)
    else:
        _print_short(document)
    if isinstance(broker, dict):
        say()
        shown = {"broker": broker.pop("name", None), **broker}
        print_fields(flatten(shown) if verbose else _broker_fields(shown))


def print_verdict(document: Row) -> None:
    verdict = verdict_of(document)
    say(verdict.text, level=verdict.level)
    if verdict.level != OK:
        say("what to do: rhizome doctor")


def _print_short(document: Row) -> None:
    cluster = document.get("cluster") or {}
    root = cluster.get("root")
    print_fields(
        [
            ("cluster", cluster.get("name") or "-"),
            ("root", f"{root}, term {cluster.get('term')}" if root else "none"),
            ("quorum", quorum_text(cluster.get("quorum") or {})),
            *(("note", note) for note in cluster.get("notes") or ()),
        ]
    )
    say()
    brokers = [
        {**each, "is_root": each.get("name") == root} for each in document.get("brokers") or ()
    ]
    print_rows(brokers, BROKER_COLUMNS, "no brokers")
    say()
    print_rows(_folded(document.get("groups") or []), GROUP_COLUMNS, "no groups")


def _folded(groups: list[Row]) -> list[Row]:
    """The groups of queues, a row each; streams, of which there may be thousands, in one row unless
    something is wrong with one."""
    shown = [each for each in groups if not each.get("stream") or _state(each)]
    whole = [each for each in groups if each.get("stream") and not _state(each)]
    if not whole:
        return shown
    counts = {key: sum(int(each.get(key) or 0) for each in whole) for key in ("queues", "messages")}
    row: Row = {"id": "streams", "home": _spread(whole), "all_copies": len(whole), **counts}
    return [*shown, row]


def _spread(groups: list[Row]) -> str:
    homes = [str(each.get("home")) for each in groups]
    return " ".join(f"{home}:{homes.count(home)}" for home in sorted(set(homes)))


def _copies(group: Row) -> str:
    if group.get("all_copies"):
        count = group["all_copies"]
        return f"all of {count} stream{'' if count == 1 else 's'}"
    if group.get("local"):
        return "not replicated"
    standbys = " ".join(str(each.get("broker")) for each in group.get("in_sync") or ())
    return f"{copies_in_sync(group)}/{group.get('copies')} {standbys}".rstrip()


def _state(group: Row) -> str:
    if group.get("all_copies"):
        return ""
    if group.get("unavailable"):
        return "UNAVAILABLE"
    if group.get("moving_to"):
        return f"moves to {group['moving_to']}"
    lacks = not group.get("local") and copies_in_sync(group) < int(group.get("copies") or 1)
    return "lacks copies" if lacks else ""


BROKER_COLUMNS: Final = (
    ("broker", "name"),
    ("role", lambda row: "root" if row["is_root"] else row.get("role")),
    "status",
    *("linked", "connections", "homes", "copies"),
    ("address", lambda row: next(iter(row.get("addresses") or ()), None)),
)
GROUP_COLUMNS: Final = (
    *(("group", "id"), "home", ("copies", _copies)),
    *("queues", "messages"),
    ("", _state),
)


def _broker_fields(broker: Row) -> list[tuple[str, object]]:
    """The broker that was asked, for people; what a broker doesn't tell is left out."""
    store = broker.get("store") or {}
    told = [
        ("asked", _sentence(broker)),
        ("load", _counts(broker, ("connections", "channels", "consumers", "queues"))),
        ("messages", _messages(broker)),
        ("memory", bytes_text(broker["memory_bytes"]) if "memory_bytes" in broker else ""),
        ("store", _store(store) if isinstance(store, dict) else ""),
        ("alarms", " ".join(map(str, broker.get("alarms") or ()))),
    ]
    return [(name, value) for name, value in told if value]


def _sentence(broker: Row) -> str:
    up = broker.get("uptime_ms")
    parts = [str(broker.get("broker")), str(broker.get("status"))]
    parts += [f"up for {duration_text(int(up))}"] if isinstance(up, int) else []
    parts += [f"version {broker['version']}"] if broker.get("version") else []
    return ", ".join(parts)


def _counts(row: Row, names: tuple[str, ...]) -> str:
    return ", ".join(f"{row[name]:,} {name}" for name in names if isinstance(row.get(name), int))


def _messages(broker: Row) -> str:
    ready, unacked = broker.get("messages_ready"), broker.get("messages_unacknowledged")
    if not isinstance(ready, int) or not isinstance(unacked, int):
        return ""
    return f"{ready:,} ready, {unacked:,} unacknowledged"


def _store(store: Row) -> str:
    parts = [str(store["kind"])] if store.get("kind") else []
    if "journal_bytes" in store:
        parts.append(f"{bytes_text(store['journal_bytes'])} in {store.get('segments')} segments")
    if "free_bytes" in store:
        parts.append(f"{bytes_text(store['free_bytes'])} free on disk")
    return ", ".join(parts)


def flatten(document: Row, prefix: str = "") -> list[tuple[str, object]]:
    """Nested objects as dotted names; numbers of bytes in readable units."""
    fields: list[tuple[str, object]] = []
    for key, value in document.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            fields += flatten(value, f"{name}.")
        elif key.endswith("_bytes") and isinstance(value, int):
            fields.append((name, f"{value} ({bytes_text(value)})"))
        else:
            fields.append((name, value))
    return fields
