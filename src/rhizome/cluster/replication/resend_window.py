"""Resend window: the batches of records that standbys may still need. Compiled."""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from rhizome.cluster.replication.replicable_log import Batch

WINDOW_BYTES_MAX: Final = 64 * 1024 * 1024
"""Beyond this size the oldest batches are forgotten; a standby that needs them catches up by live
sets."""


@final
class WindowBatch:
    """A batch in the window. `end_bytes` counts the bytes of all batches up to it, ever."""

    first: i64
    last: i64
    parts: list[bytes]
    end_bytes: i64

    def __init__(self, batch: Batch, end_bytes: i64) -> None:
        self.first = batch.first
        self.last = batch.last
        self.parts = batch.parts
        self.end_bytes = end_bytes


@final
class ResendWindow:
    """The batches that standbys may still need.

    Invariant: the batches follow each other, from `first` to `next_index` - 1 without a gap.
    """

    first: i64
    next_index: i64
    bytes_max: i64
    _shipments: list[WindowBatch]
    _head: i64
    _end_bytes: i64
    _start_bytes: i64

    def __init__(self, bytes_max: i64 = WINDOW_BYTES_MAX) -> None:
        self.first = 0
        self.next_index = 0
        self.bytes_max = bytes_max
        self._shipments = []
        self._head = 0
        self._end_bytes = 0
        self._start_bytes = 0

    def begin(self, index: i64) -> None:
        """Forget everything; the next batch begins at `index`."""
        self.first = index
        self.next_index = index
        self._shipments = []
        self._head = 0
        self._start_bytes = self._end_bytes

    def add(self, batch: Batch) -> None:
        assert batch.first == self.next_index
        self._end_bytes += batch.size
        self._shipments.append(WindowBatch(batch, self._end_bytes))
        self.next_index = batch.last + 1
        while self.size() > self.bytes_max and self._head < len(self._shipments) - 1:
            self._drop_first()

    def size(self) -> i64:
        """Bytes of the batches that are here."""
        return self._end_bytes - self._start_bytes

    def size_above(self, index: i64) -> i64:
        """Bytes of the batches that end above `index`."""
        at = self._at(index + 1)
        if at == self._head:
            return self.size()
        return self._end_bytes - self._shipments[at - 1].end_bytes

    def covers(self, index: i64) -> bool:
        """Whether records can be had from `index` on, and a batch begins there."""
        if index == self.next_index:
            return True
        at = self._at(index)
        return at < len(self._shipments) and self._shipments[at].first == index

    def collect(self, index: i64, bytes_max: i64, parts: list[bytes]) -> i64:
        """Add the batches from `index` on, at least one and as many as fit, to `parts`; returns
        the index of the last record."""
        at = self._at(index)
        last: i64 = index - 1
        size: i64 = 0
        while at < len(self._shipments):
            shipment = self._shipments[at]
            for part in shipment.parts:
                size += len(part)
            if last >= index and size > bytes_max:
                break
            parts.extend(shipment.parts)
            last = shipment.last
            at += 1
        return last

    def trim(self, index: i64) -> None:
        """Nobody needs the records up to `index` any more."""
        while self._head < len(self._shipments) and self._shipments[self._head].last <= index:
            self._drop_first()

    def _drop_first(self) -> None:
        shipment = self._shipments[self._head]
        self._start_bytes = shipment.end_bytes
        self.first = shipment.last + 1
        shipment.parts = []
        self._head += 1
        if self._head > 64 and self._head * 2 > len(self._shipments):
            del self._shipments[: self._head]
            self._head = 0

    def _at(self, index: i64) -> i64:
        """Where the first batch is that ends at or above `index`."""
        low = self._head
        high: i64 = len(self._shipments)
        while low < high:
            middle: i64 = (low + high) >> 1
            if self._shipments[middle].last < index:
                low = middle + 1
            else:
                high = middle
        return low
