"""The log of a group that has no standbys: its records are safe when this broker's journal has
them.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from rhizome.broker.message import Message
from rhizome.broker.port import GroupLog
from rhizome.journal.journal import Journal

LOCAL_GROUP: Final = 1
TX_RECORD_BYTES: Final = 256


@final
class JournalLog(GroupLog):
    """Invariant: ``tokens[i]`` is the journal position behind the records up to ``indexes[i]``."""

    journal: Journal
    epoch: i64
    recorded: i64
    noted: i64
    tokens: list[int]
    indexes: list[int]

    def __init__(self, journal: Journal, epoch: i64, next_index: i64) -> None:
        super().__init__(next_index)
        self.journal = journal
        self.epoch = epoch
        self.recorded = next_index - 1
        self.noted = next_index - 1
        self.tokens = []
        self.indexes = []

    def append(self, message: Message, durable_ids: list[int]) -> None:
        index = self.next_index
        self.next_index = index + 1
        message.index = index
        self.committed_memory = index
        if message.persistent and len(durable_ids) > 0:
            message.position = self.journal.enqueue(
                LOCAL_GROUP,
                self.epoch,
                index,
                durable_ids,
                message.route.tail,
                message.arrived_ms,
                message.expiration_ms,
                message.priority,
                0,
                message.content,
            )
            message.shared = len(durable_ids) > 1
            self.recorded = index

    def dequeue(self, queue_id: i64, indexes: list[int]) -> None:
        self.journal.dequeue(LOCAL_GROUP, self.epoch, queue_id, indexes)

    def requeue(self, queue_id: i64, index: i64, count: i64) -> None:
        self.journal.requeue(LOCAL_GROUP, self.epoch, queue_id, index, count)

    def purge(self, queue_id: i64, up_to_index: i64) -> None:
        self.journal.purge(LOCAL_GROUP, self.epoch, queue_id, up_to_index)

    def drop(self, queue_id: i64) -> None:
        self.journal.drop_queue(LOCAL_GROUP, self.epoch, queue_id)

    def begin(self, bytes_expected: i64) -> None:
        self.journal.begin_tx(LOCAL_GROUP, self.epoch, self.next_index, bytes_expected)

    def commit(self) -> i64:
        """A transaction needs a place in the log of its own, even if it only settles."""
        index = self.next_index
        self.next_index = index + 1
        self.committed_memory = index
        self.recorded = index
        self.journal.end_tx()
        return index

    def handed_over(self, token: i64) -> None:
        """The journal's batch, which ends at position ``token``, was handed to the writer."""
        if self.recorded > self.noted:
            self.tokens.append(token)
            self.indexes.append(self.recorded)
            self.noted = self.recorded

    def synced(self, position: i64) -> None:
        """Everything below ``position`` is on disk."""
        done: i64 = 0
        while done < len(self.tokens) and self.tokens[done] <= position:
            done += 1
        if done > 0:
            self.committed_disk = self.indexes[done - 1]
            del self.tokens[:done]
            del self.indexes[:done]
