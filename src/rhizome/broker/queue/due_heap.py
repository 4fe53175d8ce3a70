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
