"""Compaction: moving the last live messages out of old segments. Sans-IO; the broker drives it.

A round: `choose_victims` names sparse segments; for each queue that has paged messages in a victim,
`plan` lists some, the shell reads their bodies (`Store.fetch`, in any thread), and `apply` appends
them again as MOVED records and points the index to them. A message in memory is moved with its
content by `journal.moved` and a `release` of its old position. When nothing in the victim is live
the next checkpoint doesn't refer to it, and it is removed.

Why a crash at any point is harmless. A MOVED record keeps the message's index, and replay makes it
the place of that message's body; it neither makes nor ends a message's life. `apply` moves only
what is live at that instant, in the order of the journal, so a MOVED never follows the DEQUEUE of
its message. Cut the journal anywhere:
- before the MOVED record: replay has the old position, and the old segment is there, since only a
  checkpoint without that position lets it go, and such a checkpoint comes after the MOVED is
  synced;
- after it: replay has the new position, whose record is whole, being that record;
- a DEQUEUE that comes later names (queue, index), not a position: it ends the message wherever it
is. The same holds when the checkpoint lies between: it holds one position per message, old or new.

Pacing. Moving costs as many writes as the victims have live bytes. With at most a quarter of the
references alive, moving 1 byte frees 3, so the write volume grows by a third at worst.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rhizome.journal.journal import Journal, SegmentCount
from rhizome.journal.paged_index import PagedIndex
from rhizome.journal.records import FLAG_IDENTITY, FLAG_ORIGIN, StoredMessage

LIVE_PERCENT_MAX: Final = 25
VICTIMS_PER_ROUND_MAX: Final = 4
MOVES_PER_STEP_MAX: Final = 256


def choose_victims(
    segments: Sequence[SegmentCount],
    live_percent_max: int = LIVE_PERCENT_MAX,
    count_max: int = VICTIMS_PER_ROUND_MAX,
) -> list[int]:
    """The oldest closed segments with little that is live; `segments` as the journal lists them."""
    closed = segments[:-1]
    sparse = (s for s in closed if 0 < s.live * 100 <= s.total * live_percent_max)
    return [int(s.segment) for s in sparse][:count_max]


@dataclass(frozen=True)
class Relocation:
    """Paged messages of one queue to be moved out of `segment`: (index, position) each."""

    queue_id: int
    segment: int
    entries: list[tuple[int, int]]


def plan(
    queue_id: int, paged: PagedIndex, segment: int, count_max: int = MOVES_PER_STEP_MAX
) -> Relocation | None:
    """The next paged messages of a queue to move; None if it has none in this segment."""
    entries = paged.entries_in(segment, count_max)
    return Relocation(queue_id, segment, entries) if entries else None


def apply(
    relocation: Relocation, messages: Sequence[StoredMessage], paged: PagedIndex, journal: Journal
) -> int:
    """Append `messages`, read at the plan's positions, again; returns how many were moved.

    Messages that have left the index since the plan (delivered, dropped) stay where they are.
    Origins and identities are not copied: the checkpoint that lets the old segment go holds them.
    """
    moves: dict[int, int] = {}
    for (index, position), message in zip(relocation.entries, messages, strict=True):
        assert message.index == index
        if paged.find(index) != position:
            continue
        moves[index] = journal.moved(
            message.group,
            message.epoch,
            message.index,
            [relocation.queue_id],
            message.tail,
            message.arrived_ms,
            message.expiration_ms,
            message.priority,
            message.flags & ~(FLAG_ORIGIN | FLAG_IDENTITY),
            message.content,
        )
        journal.release(position)
    paged.relocate(relocation.segment, moves)
    return len(moves)
