"""What `rhizome adopt` prints: findings, queues side by side, what is left. No input or output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rhizome.adopt.adoption_state import AdoptionState
from rhizome.adopt.definitions_rehearsal import Finding, Outcome, Rehearsal
from rhizome.adopt.move_verification import Remainder
from rhizome.adopt.queue_listing import STREAM, Listing, QueueKey
from rhizome.cli.output.printer import format_table
from rhizome.cli.output.top_screen import rate_text

Row = Mapping[str, Any]

OUTCOMES: Final = {
    Outcome.REFUSED: "Refused: Rhizome can't take it; change it, or leave it out",
    Outcome.CHANGED: "Changed",
    Outcome.KEPT: "Kept as it is at Rhizome",
    Outcome.IGNORED: "Taken, and without effect",
}
HEADINGS: Final = (
    *("queue", "direction", "at RabbitMQ", "unacked", "consumers", "in/s"),
    *("at Rhizome", "unacked", "consumers", "in/s", "over", "back", "note"),
)
EXAMPLES_MAX: Final = 5


# ---- the plan -----------------------------------------------------------------------------------


def plan_lines(rehearsal: Rehearsal, listing: Listing) -> list[str]:
    """What comes over, and what not as it was."""
    counts = ", ".join(f"{count} {kind}" for kind, count in rehearsal.counts().items() if count)
    lines = [f"Rhizome takes {counts or 'nothing'}"]
    for outcome, heading in OUTCOMES.items():
        found = [each for each in rehearsal.findings if each.outcome is outcome]
        if found:
            rows = [(each.kind, each.vhost, each.name, each.why) for each in found]
            lines += ["", f"{heading}:", *format_table(("what", "vhost", "name", "why"), rows)]
    return [*lines, *queue_notes(listing)]


def queue_notes(listing: Listing) -> list[str]:
    """What the operator has to know of the queues of the source."""
    source = listing.source
    notes = (
        (
            "streams, whose entries are not moved",
            [key for key, each in source.items() if each.kind == STREAM],
        ),
        (
            "exclusive or auto-delete queues, which go with their connections",
            [key for key, each in source.items() if each.is_private],
        ),
        (
            "queues with messages and no consumers; --move moves them",
            [
                key
                for key, each in source.items()
                if each.is_shared and each.messages and not each.consumers
            ],
        ),
    )
    return [
        line for text, keys in notes if keys for line in ("", f"{len(keys)} {text}: {_some(keys)}")
    ]


def _some(keys: Sequence[QueueKey]) -> str:
    shown = ", ".join(key.label for key in sorted(keys)[:EXAMPLES_MAX])
    return shown if len(keys) <= EXAMPLES_MAX else f"{shown} and {len(keys) - EXAMPLES_MAX} more"


def plan_document(rehearsal: Rehearsal, listing: Listing) -> dict[str, Any]:
    """The same for programs."""
    return {
        "counts": rehearsal.counts(),
        "findings": [finding_row(each) for each in rehearsal.findings],
        "queues": [
            {
                **key._asdict(),
                "type": each.kind,
                "moved": each.is_shared,
                "messages": each.messages,
                "consumers": each.consumers,
            }
            for key, each in sorted(listing.source.items())
        ],
    }


def finding_row(finding: Finding) -> dict[str, Any]:
    return {
        "outcome": finding.outcome.value,
        "kind": finding.kind,
        "vhost": finding.vhost,
        "name": finding.name,
        "why": finding.why,
    }


# ---- while it runs ------------------------------------------------------------------------------


def summary(state: AdoptionState) -> str:
    """One line: how many queues go which way, what is left, what was brought."""
    directions = Counter(row["direction"] for row in state.rows)
    ways = ", ".join(f"{directions[each]} {each}" for each in ("forward", "back", "rest"))
    left = sum(_messages(row["source"]) for row in state.rows)
    there = sum(_messages(row["target"]) for row in state.rows)
    over = sum(each.forward for each in state.moved.values())
    back = sum(each.back for each in state.moved.values())
    return (
        f"{len(state.rows)} queues: {ways}; messages at RabbitMQ {left}, at Rhizome {there};"
        f" brought over {over}, brought back {back}"
    )


def _messages(side: Row | None) -> int:
    return int((side or {}).get("messages") or 0)


def queue_lines(rows: Iterable[Row], *, only_busy: bool = False) -> list[str]:
    """The queues with their counts at both sides."""
    shown = [row for row in rows if not only_busy or _is_busy(row)]
    return format_table(HEADINGS, [_cells(row) for row in shown]) if shown else []


def _is_busy(row: Row) -> bool:
    is_moving = row["direction"] != "rest" or row["under_way"] or row["trouble"]
    return bool(is_moving or _messages(row["source"]))


def _cells(row: Row) -> list[object]:
    return [
        QueueKey(row["vhost"], row["name"]).label,
        row["direction"],
        *_side(row["source"]),
        *_side(row["target"]),
        row["forward"],
        row["back"],
        row["trouble"] or row["why"],
    ]


def _side(side: Row | None) -> list[object]:
    if side is None:
        return [None] * 4
    rate = rate_text(float(side["publish_rate"]))
    return [side["messages"], side["unacked"], side["consumers"], rate]


# ---- at the end ---------------------------------------------------------------------------------


def remainder_lines(found: Sequence[Remainder]) -> list[str]:
    """What is left, what keeps the adoption open first."""
    ordered = sorted(found, key=lambda each: not each.is_open)
    rows = [
        ("open" if each.is_open else "note", each.what, each.name, each.text) for each in ordered
    ]
    return format_table(("", "what", "name", ""), rows) if rows else []
