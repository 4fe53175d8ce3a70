"""Catch-up sender: a home tells a standby what is alive, a frame at a time (L2). Compiled.

Each frame is true at the end of the log at which it is made, and leaves on the link right behind
the records up to there. So no queue is held still, and nothing is copied to be told later.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from rhizome.broker.group_log.log_port import GroupLog
from rhizome.cluster.protocol.replication_codec import LiveWriter
from rhizome.cluster.replication.index_ranges import below, united
from rhizome.journal.dedup_state import DedupState
from rhizome.journal.paged_index import PagedIndex

FRAME_BYTES: Final = 256 * 1024
"""A frame is full when it has this many bytes; one window or queue may exceed it."""
NUMBERS_MAX: Final = 16 * 1024
"""How many numbers the ranges of one window have at most; two of them take 12 bytes."""


@final
class LiveQueue:
    """What is alive in a queue.

    `parts` hold every message that the log has enqueued and not ended, ready, unacked or delayed,
    each in one of them; only the indexes count.
    """

    parts: list[PagedIndex]
    counts: dict[int, int]
    seen: DedupState | None
    shown: dict[int, int]
    leases: bytes

    def __init__(
        self,
        parts: list[PagedIndex],
        counts: dict[int, int],
        seen: DedupState | None,
        shown: dict[int, int],
        leases: bytes,
    ) -> None:
        self.parts = parts
        self.counts = counts
        self.seen = seen
        self.shown = shown
        self.leases = leases


@mypyc_attr(allow_interpreted_subclasses=True)
class LiveSource:
    """What a catch-up sender asks the home for."""

    def queue_ids(self) -> list[int]:
        """The queues of the group, empty ones included."""
        raise NotImplementedError

    def live(self, queue_id: i64) -> LiveQueue | None:
        """What is alive in a queue at this instant; None if it is gone."""
        raise NotImplementedError


@final
class CatchUpSender:
    """The state of one catch-up at the home.

    Invariant: everything below index `_first` of the queue `_queue_ids[_at]`, and everything of the
    queues before it, has been told. With `_refusals` it tells what was refused, too, which a
    standby of an earlier release doesn't understand.
    """

    number: i64
    begun: bool
    done: bool
    _queue_ids: list[int]
    _at: i64
    _first: i64
    _refusals: bool

    def __init__(self, number: i64, refusals: bool) -> None:
        self.number = number
        self._refusals = refusals
        self.begun = False
        self.done = False
        self._queue_ids = []
        self._at = 0
        self._first = 0

    def next_frame(self, source: LiveSource, log: GroupLog, index: i64) -> LiveWriter:
        """Tell the next part, at the end `index` of the log."""
        writer = LiveWriter()
        if not self.begun:
            self.begun = True
            self._queue_ids = source.queue_ids()
            if self._refusals:
                writer.refusals(log.refused)
            writer.origins(log.origins)
        while self._at < len(self._queue_ids) and writer.size() < FRAME_BYTES:
            queue_id: i64 = self._queue_ids[self._at]
            live = source.live(queue_id)
            if live is None:
                # The queue's DROP is among the records.
                self._next_queue()
                continue
            if self._first == 0:
                writer.seen(queue_id, _packed(live.seen))
                writer.shown(queue_id, live.shown)
                writer.leases(queue_id, live.leases)
            self._window(writer, queue_id, live, index)
        if self._at == len(self._queue_ids):
            writer.queues(source.queue_ids())
            self.done = True
        return writer

    def _window(self, writer: LiveWriter, queue_id: i64, live: LiveQueue, index: i64) -> None:
        first = self._first
        end: i64 = index + 1
        found: list[list[int]] = []
        for part in live.parts:
            ranges: list[int] = []
            stop = part.collect_ranges(first, end, NUMBERS_MAX, ranges)
            end = min(end, stop)
            found.append(ranges)
        counts = [
            (each, live.counts[each]) for each in sorted(live.counts) if first <= i64(each) < end
        ]
        if len(counts) > NUMBERS_MAX:
            end = counts[NUMBERS_MAX][0]
            counts = counts[:NUMBERS_MAX]
        alive = below(united(found), end)
        writer.window(queue_id, first, end, counts, alive)
        if end > index:
            self._next_queue()
        else:
            self._first = end

    def _next_queue(self) -> None:
        self._at += 1
        self._first = 0


def _packed(seen: DedupState | None) -> bytes:
    return b"" if seen is None or seen.is_empty() else seen.packed()
