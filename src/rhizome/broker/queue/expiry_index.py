"""ExpiryIndex: which messages of a queue expire before others that are ahead of them. Compiled.

A message that expires no earlier than all before it is seen when it is the first, and costs nothing
here. So a queue has an index only once a message with a time of its own has come, and queues with
one time for all messages, or none, have no use for it.

Messages that a restart or a takeover found in a queue are not in its index: nobody knows their
times without reading all of them. They expire as the first of their queue.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from rhizome.broker.queue.due_heap import NEVER_DUE_MS, DueHeap

SWEPT_MIN: Final = 10_000
"""So many entries are never looked through for those of messages that are gone."""
SWEPT_AT_ONCE: Final = 1_000


@final
class ExpiryIndex:
    """Invariant: a ready message that came since the index was made and expires before one ahead of
    it is in ``due`` or ``old``. Entries of messages that are gone stay until their time, or until
    they are more than the others: then ``old`` is what is left to look through."""

    due: DueHeap
    old: DueHeap
    latest_ms: i64
    """When the last of the messages that came so far expires."""
    number: i64
    """The number of the last message that was noted: others between never expire."""
    sweep_at: i64

    def __init__(self) -> None:
        self.due = DueHeap()
        self.old = DueHeap()
        self.latest_ms = NEVER_DUE_MS
        self.number = -1
        self.sweep_at = SWEPT_MIN

    def note(self, index: i64, expires_ms: i64, number: i64, alone: bool) -> None:
        """A message comes to the end of the queue as the ``number``-th; ``alone``: no other one is
        in the queue, or may come back."""
        if alone:
            self.latest_ms = 0
        elif number != self.number + 1:
            self.latest_ms = NEVER_DUE_MS
        self.number = number
        if expires_ms < self.latest_ms:
            self.due.push(expires_ms, index)
        else:
            self.latest_ms = expires_ms

    def put_back(self, index: i64, expires_ms: i64) -> None:
        """A message comes back to its place."""
        self.latest_ms = NEVER_DUE_MS
        if expires_ms < NEVER_DUE_MS:
            self.due.push(expires_ms, index)

    def first_ms(self) -> i64:
        first = self.due.first_ms()
        other = self.old.first_ms()
        return first if first <= other else other

    def pop(self) -> i64:
        if self.due.first_ms() <= self.old.first_ms():
            return self.due.pop()
        return self.old.pop()

    def is_sweeping(self) -> bool:
        return len(self.old) > 0

    def sweep(self, first_index: i64) -> None:
        """Drop some entries of messages that are gone: those below the first of the queue."""
        if not self.is_sweeping():
            if len(self.due) < self.sweep_at:
                return
            self.old = self.due
            self.due = DueHeap()
        left: i64 = SWEPT_AT_ONCE
        while left > 0 and len(self.old) > 0:
            left -= 1
            if self.old.last_index() >= first_index:
                self.old.move_last(self.due)
            else:
                self.old.drop_last()
        if not self.is_sweeping():
            self.sweep_at = SWEPT_MIN + 2 * len(self.due)
