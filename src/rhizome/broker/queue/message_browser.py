"""Browsing: the ready messages of a queue, shown and left exactly as they are.

Nothing is removed, requeued, marked as redelivered or kept in memory: a message that lives on disk
is read into a copy that is dropped after the answer.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from rhizome.broker.message import Message
from rhizome.broker.queue.pager import Pager
from rhizome.broker.queue.priority_lane import Lane
from rhizome.broker.queue.queue import Queue
from rhizome.journal.errors import CorruptRecord

COUNT_MAX: Final = 1000
OFFSET_MAX: Final = 100_000
"""The largest offset: skipping has a cost per message, and nobody pages further by hand."""

BYTES_MAX: Final = 16 * 1024 * 1024
"""Messages are shown until they reach this size together."""


@final
class Browsed:
    """A message as it stands in its queue; ``delivery_count`` is how often it came back."""

    message: Message
    delivery_count: i64

    def __init__(self, message: Message, delivery_count: i64) -> None:
        self.message = message
        self.delivery_count = delivery_count


@final
class Browser:
    """Collects ``count`` messages after the first ``offset``, in the order of delivery.

    Invariant: ``late`` is set if it stopped before a message that is being written to disk and can
    be read only after this turn.
    """

    queue: Queue
    pager: Pager
    skip: i64
    count: i64
    size: i64
    late: bool
    found: list[Browsed]

    def __init__(self, queue: Queue, pager: Pager, offset: i64, count: i64) -> None:
        self.queue = queue
        self.pager = pager
        self.skip = offset
        self.count = count
        self.size = 0
        self.late = False
        self.found = []

    def walk(self) -> None:
        """Go through the lanes, the highest priority first."""
        at: i64 = len(self.queue.lanes) - 1
        while at >= 0 and not self.is_done():
            lane = self.queue.lanes[at]
            self._walk_resident(lane)
            self._walk_paged(lane)
            at -= 1

    def is_done(self) -> bool:
        return self.late or len(self.found) >= self.count or self.size >= BYTES_MAX

    def _walk_resident(self, lane: Lane) -> None:
        for message in lane.resident():
            if self.is_done():
                return
            self._take(message)

    def _walk_paged(self, lane: Lane) -> None:
        if self.is_done() or lane.paged_count == 0:
            return
        for _, position in lane.paged.peek(self.skip + self.count - len(self.found)):
            if self.is_done():
                return
            if self.skip > 0:
                self.skip -= 1
                continue
            if position >= self.pager.readable_end(i64(position) >> 32):
                self.late = True
                return
            try:
                message = self.pager.read_one(position)
            except (CorruptRecord, OSError):
                # It is set aside when it becomes the first.
                continue
            self._take(message)

    def _take(self, message: Message) -> None:
        if self.skip > 0:
            self.skip -= 1
            return
        self.found.append(Browsed(message, self.queue.counts.get(message.index, 0)))
        self.size += len(message.content)


def browse(queue: Queue, pager: Pager, offset: i64, count: i64) -> Browser:
    """Show up to ``count`` ready messages of a queue after the first ``offset``.

    Fewer are returned when they reach ``BYTES_MAX`` together, or if the next one cannot be read
    before the end of this turn (``late``).
    """
    assert 0 <= offset <= OFFSET_MAX
    assert 0 <= count <= COUNT_MAX
    browser = Browser(queue, pager, offset, count)
    browser.walk()
    return browser
