"""Whether an adoption is done: what is left at the side that is to be empty. No input or output.

A bridge acknowledges a message when the other side has confirmed it. So whatever is not at the old
side any more, and was not consumed there, is at the new one; what could be lost is what is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rhizome.adopt.adoption_state import AdoptionState
from rhizome.adopt.queue_direction import Direction
from rhizome.adopt.queue_listing import STREAM, Listing, QueueCounts, QueueKey

OWN_CONNECTIONS: Final = ("rhizome bridge adopt.", "rhizome adopt")
"""How the names of the connections of an adoption's bridges begin."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Remainder:
    """Something that is left. `is_open` says that the adoption isn't done because of it."""

    what: str
    name: str
    text: str
    is_open: bool = True


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was seen. `ready` are counts of the side that is to be empty, asked over AMQP: those of
    the HTTP API may be seconds old. `connections` are its rows of that side."""

    listing: Listing
    ready: Mapping[QueueKey, int]
    connections: Iterable[Row]
    state: AdoptionState | None


def remainders(seen: Evidence, goal: Direction) -> list[Remainder]:
    """Everything that is left, the adoption going to `goal`."""
    is_forward = goal is Direction.FORWARD
    old = seen.listing.source if is_forward else seen.listing.target
    new = seen.listing.target if is_forward else seen.listing.source
    found: list[Remainder] = []
    for key in sorted(old):
        found += _of_queue(key, old[key], key in new, seen.ready.get(key))
    found += _of_connections(seen.connections)
    if seen.state is not None:
        found += _of_state(seen.state)
    return found


def _of_queue(
    key: QueueKey, counts: QueueCounts, is_at_both: bool, ready: int | None
) -> Iterable[Remainder]:
    if counts.kind == STREAM:
        yield Remainder("stream", key.label, "its entries are not moved", is_open=False)
        return
    messages, unacked = ready or 0, counts.unacked or 0
    if messages or unacked:
        text = f"{messages} messages are ready" if messages else ""
        text += " and " if messages and unacked else ""
        text += f"{unacked} messages are not acknowledged" if unacked else ""
        is_stuck = messages and not counts.consumers
        hint = f"; --move '{key.name}' moves them without a consumer" if is_stuck else ""
        yield Remainder("messages", key.label, text + hint)
    if counts.consumers:
        yield Remainder("consumers", key.label, f"{counts.consumers} consumers are left")
    if not is_at_both and counts.is_shared:
        yield Remainder("queue", key.label, "it isn't at the other side; declare it there")


def _of_connections(connections: Iterable[Row]) -> Iterable[Remainder]:
    """Applications that are connected may publish whenever they like."""
    counted = Counter(_application(row) for row in connections if not _is_own(row))
    for (user, host, client), count in sorted(counted.items()):
        text = f"{count} from {host} ({client})"
        yield Remainder("connections", user, text)


def _application(row: Row) -> tuple[str, str, str]:
    if not row.get("peer_host"):
        return str(row.get("user")), "within the broker", "a shovel or a federation link"
    told = row.get("client_properties")
    properties = told if isinstance(told, Mapping) else {}
    client = f"{properties.get('product') or 'unknown client'} {properties.get('version') or ''}"
    return str(row.get("user")), str(row.get("peer_host")), client.strip()


def _is_own(row: Row) -> bool:
    told = row.get("client_properties")
    properties = told if isinstance(told, Mapping) else {}
    return str(properties.get("connection_name") or "").startswith(OWN_CONNECTIONS)


def _of_state(state: AdoptionState) -> Iterable[Remainder]:
    for row in state.rows if state.is_running else []:
        label = QueueKey(row["vhost"], row["name"]).label
        if row["under_way"]:
            yield Remainder("under way", label, f"{row['under_way']} messages are under way")
        if row["trouble"]:
            yield Remainder("trouble", label, row["trouble"])
    for key, moved in sorted(state.moved.items()):
        if moved.lost:
            text = f"{moved.taken} messages were taken and {moved.lost} of them not brought"
            yield Remainder("lost", key.label, text)
        if doubtful := moved.in_doubt + moved.sent_again:
            text = f"{doubtful} were sent without an answer, and may have come twice"
            yield Remainder("in doubt", key.label, text, is_open=False)
    if state.ends_unclean:
        text = f"{state.ends_unclean} runs were killed; what was under way then may have come twice"
        yield Remainder("in doubt", "runs", text, is_open=False)
