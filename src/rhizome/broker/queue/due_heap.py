"""DueHeap: which message is due next, at 16 bytes for each. Compiled.

A binary heap of (due time, message index) in packed chunks, so that it grows without being copied.
A message that has left its queue before its time stays here until then: whoever pops it looks
whether it is still there. ``sweep`` drops such entries when they are many.
"""

from __future__ import annotations

from typing import Final, final

from librt.vecs import append, pop, vec
from mypy_extensions import i64

CHUNK_BITS: Final = 12
CHUNK_ENTRIES: Final = 1 << CHUNK_BITS
_MASK: Final = CHUNK_ENTRIES - 1
NEVER_DUE_MS: Final = 1 << 62

SWEPT_MIN: Final = 10_000
"""So many entries are never looked through for those of messages that are gone."""
SWEPT_AT_ONCE: Final = 1_000


@final
class DueHeap:
    """Invariant: each entry is at most its two children, by time and then by index."""

    count: i64
    _times: list[vec[i64]]
    _indexes: list[vec[i64]]

    def __init__(self) -> None:
        self.count = 0
        self._times = []
        self._indexes = []

    def __len__(self) -> int:
        return int(self.count)

    def first_ms(self) -> i64:
        """When the first message is due; `NEVER_DUE_MS` if there is none."""
        return NEVER_DUE_MS if self.count == 0 else self._times[0][0]

    def first_index(self) -> i64:
        """The index of the first message; -1 if there is none."""
        return -1 if self.count == 0 else self._indexes[0][0]

    def push(self, due_ms: i64, index: i64) -> None:
        place = self.count
        self._append(due_ms, index)
        while place > 0:
            above: i64 = (place - 1) >> 1
            if not self._is_before(due_ms, index, above):
                break
            self._copy(above, place)
            place = above
        self._put(place, due_ms, index)

    def pop(self) -> i64:
        """Remove the first entry; returns its index."""
        first = self._indexes[0][0]
        last: i64 = self.count - 1
        due_ms = self._times[last >> CHUNK_BITS][last & _MASK]
        index = self._indexes[last >> CHUNK_BITS][last & _MASK]
        self._drop_last()
        if self.count > 0:
            self._sink(due_ms, index)
        return first

    def last_index(self) -> i64:
        """The index of the entry in the last place, which is no special one."""
        last: i64 = self.count - 1
        return self._indexes[last >> CHUNK_BITS][last & _MASK]

    def move_last(self, target: DueHeap) -> None:
        """Move the entry in the last place to another heap; both stay heaps."""
        last: i64 = self.count - 1
        chunk: i64 = last >> CHUNK_BITS
        target.push(self._times[chunk][last & _MASK], self._indexes[chunk][last & _MASK])
        self._drop_last()

    def drop_last(self) -> None:
        """Drop the entry in the last place."""
        self._drop_last()

    def _sink(self, due_ms: i64, index: i64) -> None:
        place: i64 = 0
        count = self.count
        while True:
            child: i64 = place * 2 + 1
            if child >= count:
                break
            other: i64 = child + 1
            if other < count and self._is_less(other, child):
                child = other
            if self._is_before(due_ms, index, child):
                break
            self._copy(child, place)
            place = child
        self._put(place, due_ms, index)

    def _is_before(self, due_ms: i64, index: i64, place: i64) -> bool:
        other = self._times[place >> CHUNK_BITS][place & _MASK]
        if due_ms != other:
            return due_ms < other
        return index < self._indexes[place >> CHUNK_BITS][place & _MASK]

    def _is_less(self, one: i64, other: i64) -> bool:
        chunk: i64 = one >> CHUNK_BITS
        return self._is_before(
            self._times[chunk][one & _MASK], self._indexes[chunk][one & _MASK], other
        )

    def _copy(self, source: i64, target: i64) -> None:
        chunk: i64 = source >> CHUNK_BITS
        self._put(target, self._times[chunk][source & _MASK], self._indexes[chunk][source & _MASK])

    def _put(self, place: i64, due_ms: i64, index: i64) -> None:
        chunk: i64 = place >> CHUNK_BITS
        self._times[chunk][place & _MASK] = due_ms
        self._indexes[chunk][place & _MASK] = index

    def _append(self, due_ms: i64, index: i64) -> None:
        chunk: i64 = self.count >> CHUNK_BITS
        if chunk == len(self._times):
            self._times.append(vec[i64]())
            self._indexes.append(vec[i64]())
        self._times[chunk] = append(self._times[chunk], due_ms)
        self._indexes[chunk] = append(self._indexes[chunk], index)
        self.count += 1

    def _drop_last(self) -> None:
        chunk: i64 = len(self._times) - 1
        self._times[chunk], _ = pop(self._times[chunk])
        self._indexes[chunk], _ = pop(self._indexes[chunk])
        self.count -= 1
        if len(self._times[chunk]) == 0:
            del self._times[chunk]
            del self._indexes[chunk]


@final
class ExpiryIndex:
    """Which messages of a queue expire before others that are ahead of them.

    A message that expires no earlier than all before it is seen when it is the first, and costs
    nothing here. So a queue has an index only once a message with a time of its own has come, and
    queues with one time for all messages, or none, have no use for it.

    Messages that a restart or a takeover found in a queue are not in its index: nobody knows their
    times without reading all of them. They expire as the first of their queue.

    Invariant: a ready message that came since the index was made and expires before one ahead of
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
