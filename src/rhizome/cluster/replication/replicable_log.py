"""Replicable log: what a group's home sends to its standbys. Compiled."""

from __future__ import annotations

from typing import final

from mypy_extensions import i64, mypyc_attr

from rhizome.broker.group_log.log_port import GroupLog
from rhizome.journal.streams.chunk_cursor import ChunkCursor


@final
class Batch:
    """The records of one turn, with the indexes from ``first`` to ``last``."""

    first: i64
    last: i64
    parts: list[bytes]
    size: i64

    def __init__(self, first: i64, last: i64, parts: list[bytes], size: i64) -> None:
        self.first = first
        self.last = last
        self.parts = parts
        self.size = size


@mypyc_attr(allow_interpreted_subclasses=True)
class ReplicableLog(GroupLog):
    """A log that has copies, as they see it.

    ``alone``: no standby has to answer, so what is here is committed. ``by_disk``: some have to,
    but none of them is sure to take over with what it has in memory (G2, G3). ``shipping``: a
    standby listens, so records are kept for it. ``stored``: all of the log can be read from its
    store, so a standby that is far behind gets what it lacks from there, and nothing is compared.
    ``bare`` are the ids of queues whose messages standbys don't get (G9, `configuration`).

    The phase of its home decides when it is ``still`` and ``silent`` (`home/home_group.py`).
    """

    alone: bool
    by_disk: bool
    shipping: bool
    stored: bool
    bare: dict[int, None]

    def __init__(self, group: i64, epoch: i64, next_index: i64) -> None:
        super().__init__(group, epoch, next_index)
        self.alone = True
        self.by_disk = False
        self.shipping = False
        self.stored = False
        self.bare = {}

    def ship(self, shipping: bool) -> None:
        """Keep what is recorded from now on for standbys, or stop keeping it."""
        self.shipping = shipping

    def take_batch(self) -> Batch | None:
        """The records made since the last call; None if there are none."""
        raise NotImplementedError

    def disk(self) -> i64:
        """How far the log is on this broker's disk, as far as it has to be."""
        raise NotImplementedError

    def set_committed(self, memory: i64, disk: i64) -> None:
        """The copies that count have this much (G6)."""
        raise NotImplementedError

    def set_reliable(self, memory: i64, disk: i64) -> None:
        """In-sync standbys have this much, too; 0 where there is no standby."""
        if memory > self.reliable_memory:
            self.reliable_memory = memory
        if disk > self.reliable_disk:
            self.reliable_disk = disk

    def restrict(self, still: bool, silent: bool) -> None:
        """Show nothing, or count nothing more as committed, as the phase of the home asks for."""
        self.still = still
        self.silent = silent
        self.update_visible()

    def update_visible(self) -> None:
        """Show what is committed, or nothing while the log is still (L1, A2, G11)."""
        raise NotImplementedError

    def forget_committed(self) -> None:
        """Count nothing as committed before the copies have answered in this epoch (G7).

        A new home doesn't know what the others have of its log, so it must not confirm a duplicate
        of a message in it either (L5).
        """
        self.committed_memory = 0
        self.committed_disk = 0

    def epoch_of(self, index: i64) -> i64:
        """The epoch that a record belongs to."""
        at: i64 = len(self.starts) - 1
        while at > 0 and i64(self.starts[at][1]) > index:
            at -= 1
        return self.starts[at][0]

    def invitation(self) -> dict[str, object]:
        """What a standby has to know besides the history, before it follows."""
        return {}

    def stored_from(self, index: i64, offset: i64) -> ChunkCursor | None:
        """Reads a ``stored`` log from an index on; None if it isn't there any more."""
        return None
