"""Replicated stream log: the log of a stream at its home, as its copies see it. Compiled.

This log counts chunks (journal/streams/stream_format.py), not messages: the number of a chunk is
its index, and the bytes of a chunk are what standbys get. Queues and edges know the stream by its
other log, in which the index of a message is its offset + 1 (`broker/streams/stream_group_log.py`).

All of a stream is persistent. So what is on the disks of the brokers that count is committed, shown
and confirmed; what is only in their memory is neither (L1).
"""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from rhizome.broker.streams.stream import Stream
from rhizome.cluster.replication.replicable_log import Batch, ReplicableLog
from rhizome.journal.errors import CorruptRecord
from rhizome.journal.streams.chunk_cursor import ChunkCursor
from rhizome.journal.streams.stream_log import StreamLog


@final
class ReplicatedStreamLog(ReplicableLog):
    """The log of one stream at its home, for replication.

    Invariant: ``next_index`` is the number of the next chunk as of the last ``take_batch``.

    Its epoch begins with a chunk that says so and nothing else, so a copy that has anything of the
    epoch knows of it (L2).
    """

    stream: Stream
    log: StreamLog

    def __init__(self, stream: Stream, group: i64, epoch: i64) -> None:
        log = stream.log
        super().__init__(group, epoch, log.epochs[-1][1])
        self.stream = stream
        self.log = log
        self.starts = log.epochs
        self.stored = True
        self.committed_memory = 0
        self.committed_disk = 0
        stream.begin_append()
        log.mark_epoch()

    def forget_committed(self) -> None:
        known = self.stream.group_log
        known.committed_memory = 0
        known.committed_disk = 0

    def ship(self, shipping: bool) -> None:
        self.shipping = shipping
        self.log.shipping = shipping
        if not shipping:
            self.log.take_shipped()

    def take_batch(self) -> Batch | None:
        parts = self.log.take_shipped()
        first = self.next_index
        self.next_index = self.log.number
        if first == self.next_index:
            return None
        size: i64 = 0
        for part in parts:
            size += len(part)
        return Batch(first, self.next_index - 1, parts, size)

    def disk(self) -> i64:
        return self.log.durable

    def set_committed(self, memory: i64, disk: i64) -> None:
        self.committed_memory = max(memory, self.committed_memory)
        self.committed_disk = max(disk, self.committed_disk)
        if self.log.commit(self.committed_disk):
            self.stream.committed()
        self.update_visible()

    def set_reliable(self, memory: i64, disk: i64) -> None:
        if disk >= self.committed_disk:
            known = self.stream.group_log
            known.reliable_disk = known.committed_disk
            known.reliable_memory = known.committed_memory

    def update_visible(self) -> None:
        self.visible = 0 if self.still else self.committed_disk
        log = self.log
        log.alone = self.alone and not self.silent
        known = self.stream.group_log
        was_still = known.still
        known.still = self.still
        known.silent = self.silent
        grown = log.alone and log.commit(log.durable)
        if grown or (was_still and not self.still):
            self.stream.committed()

    def invitation(self) -> dict[str, object]:
        """Where the log begins: copies need nothing older."""
        first = self.log.segments[0]
        return {
            "segment": int(first.number),
            "number": int(first.chunk),
            "offset": int(first.first),
        }

    def stored_from(self, index: i64, offset: i64) -> ChunkCursor | None:
        try:
            return ChunkCursor(self.log, index, offset)
        except CorruptRecord:
            return None

    def let_go(self) -> None:
        """This broker isn't home any more: the chunks that were made belong to a copy, and are all
        there is."""
        self.log.seal()
        self.ship(False)
        self.log.alone = True
