"""LocalGroupLog: the log of a group without standbys, whose records are safe in this broker's
journal."""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from rhizome.broker.group_log.log_port import GroupLog
from rhizome.broker.message import Message
from rhizome.journal.journal import Journal
from rhizome.journal.records import leases_record, shown_record

LOCAL_GROUP: Final = 0
"""The group of queues without copies: private queues, and all queues of a single broker."""
TX_RECORD_BYTES: Final = 256


@final
class Progress:
    """How far the records of one log are on disk.

    Invariant: ``tokens[i]`` is the journal position behind the records up to ``indexes[i]``.
    """

    noted: i64
    done: i64
    tokens: list[int]
    indexes: list[int]

    def __init__(self, index: i64) -> None:
        self.noted = index
        self.done = index
        self.tokens = []
        self.indexes = []

    def handed_over(self, token: i64, recorded: i64) -> None:
        """The journal's batch, which ends at position ``token``, has the records up to
        ``recorded``."""
        if recorded > self.noted:
            self.tokens.append(token)
            self.indexes.append(recorded)
            self.noted = recorded

    def synced(self, position: i64) -> i64:
        """Everything below ``position`` is on disk; return the index up to which the log is."""
        done: i64 = 0
        while done < len(self.tokens) and self.tokens[done] <= position:
            done += 1
        if done > 0:
            self.done = self.indexes[done - 1]
            del self.tokens[:done]
            del self.indexes[:done]
        return self.done


@final
class LocalGroupLog(GroupLog):
    """The log of what this broker keeps alone."""

    journal: Journal
    recorded: i64
    unmarked: bool
    progress: Progress

    def __init__(self, journal: Journal, epoch: i64, next_index: i64) -> None:
        """``unmarked``: there are records in this turn's batch that took no index."""
        super().__init__(LOCAL_GROUP, epoch, next_index)
        self.journal = journal
        self.recorded = next_index - 1
        self.unmarked = False
        self.progress = Progress(next_index - 1)

    def append(self, message: Message, ids: list[int], durable: bool) -> None:
        index = self.next_index
        self.next_index = index + 1
        message.index = index
        self.committed_memory = index
        if message.persistent and durable:
            identity = message.identity
            if identity is not None and not identity.is_kept():
                identity = None
            message.position = self.journal.enqueue(
                LOCAL_GROUP,
                self.epoch,
                index,
                ids,
                message.route.tail,
                message.arrived_ms,
                message.expiration_ms,
                message.priority,
                0,
                message.content,
                identity,
            )
            message.shared = len(ids) > 1
            self.recorded = index

    def dequeue(self, queue_id: i64, indexes: list[int], durable: bool) -> None:
        self.journal.dequeue(LOCAL_GROUP, self.epoch, queue_id, indexes)
        self.unmarked = True

    def requeue(self, queue_id: i64, index: i64, count: i64, durable: bool) -> None:
        self.journal.requeue(LOCAL_GROUP, self.epoch, queue_id, index, count)
        self.unmarked = True

    def shown(self, queue_id: i64, priority: i64, message_index: i64) -> None:
        record = shown_record(LOCAL_GROUP, self.epoch, 0, queue_id, priority, message_index)
        self.journal.append_unhurried(record)

    def leased(self, queue_id: i64, packed: bytes) -> None:
        record = leases_record(LOCAL_GROUP, self.epoch, 0, queue_id, packed)
        self.journal.append_raw(record, 0)
        self.unmarked = True

    def purge(self, queue_id: i64, up_to_index: i64) -> None:
        self.journal.purge(LOCAL_GROUP, self.epoch, queue_id, up_to_index)
        self.unmarked = True

    def drop(self, queue_id: i64) -> None:
        self.journal.drop_queue(LOCAL_GROUP, self.epoch, queue_id)

    def begin(self, bytes_expected: i64) -> None:
        self.journal.begin_tx(LOCAL_GROUP, self.epoch, self.next_index, bytes_expected)

    def commit(self) -> i64:
        """A transaction needs a place in the log of its own, even if it only settles."""
        self.journal.end_tx()
        return self._take_place()

    def mark(self) -> i64:
        self.journal.hurry()
        return self._take_place() if self.unmarked else self.recorded

    def _take_place(self) -> i64:
        """Give an index to what was recorded without one."""
        index = self.next_index
        self.next_index = index + 1
        self.committed_memory = index
        self.recorded = index
        self.unmarked = False
        return index

    def handed_over(self, token: i64) -> None:
        self.unmarked = False
        self.progress.handed_over(token, self.recorded)

    def synced(self, position: i64) -> None:
        self.committed_disk = self.progress.synced(position)
