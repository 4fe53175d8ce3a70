"""Uncommitted records: what a home recorded for its own applications and does not know to be
committed.

These are the publishes and settlements of the home's own applications. If the home is replaced, no
other edge brings them to the next home. So the broker does, as an edge (A1, A2): it publishes what
the next home's log lacks, and presents what was settled.
"""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from rhizome.broker.message import Message
from rhizome.journal.dedup_state import DedupIdentity


@final
class UncommittedRecords:
    """Invariant: indexes of ``messages`` rise, and so do ``records``, the indexes of the records by
    which ``settled[i]`` left the queue ``queues[i]``. ``ids[i]`` are the queues of ``messages[i]``,
    and ``identities[i]`` is what they know it by; the message itself forgets its identity once it
    is recorded. ``rejects`` has (record, queue, index) of rejected messages. ``wholes`` are the
    first and last indexes of transactions, which are forwarded whole (L4)."""

    messages: list[Message]
    ids: list[list[int]]
    identities: list[DedupIdentity | None]
    records: list[int]
    queues: list[int]
    settled: list[list[int]]
    rejects: list[tuple[int, int, int]]
    wholes: list[tuple[int, int]]

    def __init__(self) -> None:
        self.messages = []
        self.ids = []
        self.identities = []
        self.records = []
        self.queues = []
        self.settled = []
        self.rejects = []
        self.wholes = []

    def published(self, message: Message, ids: list[int]) -> None:
        self.messages.append(message)
        self.ids.append(ids)
        self.identities.append(message.identity)

    def dequeued(self, record: i64, queue_id: i64, indexes: list[int]) -> None:
        self.records.append(record)
        self.queues.append(queue_id)
        self.settled.append(indexes)

    def purged(self, record: i64, queue_id: i64) -> None:
        """A queue was purged, and with it what was published here. The next home may have the rest
        and is asked to purge it."""
        gone = [
            int(message.index)
            for message, ids in zip(self.messages, self.ids, strict=True)
            if queue_id in ids
        ]
        if len(gone) > 0:
            self.dequeued(record, queue_id, gone)

    def buried(self, record: i64, queue_id: i64, index: i64, rejected: bool) -> None:
        """A message that had left a queue by then died there. The next home finds that out by
        itself, unless the message was rejected."""
        at: i64 = len(self.queues) - 1
        while at >= 0:
            if self.queues[at] == queue_id and index in self.settled[at]:
                self.settled[at].remove(index)
                break
            at -= 1
        if rejected:
            self.rejects.append((record, queue_id, index))

    def whole(self, first: i64, last: i64) -> None:
        """The records from one index to another are a transaction: kept whole or not at all."""
        self.wholes.append((first, last))

    def whole_of(self, record: i64) -> i64:
        """The last index of the transaction that a record is in; 0 if it is in none."""
        for first, last in self.wholes:
            if first <= record <= last:
                return last
        return 0

    def committed(self, memory: i64, disk: i64) -> None:
        """Everything up to these indexes is committed."""
        done: i64 = 0
        while done < len(self.messages):
            message = self.messages[done]
            if message.index > (disk if message.position != 0 else memory):
                break
            done += 1
        if done > 0:
            del self.messages[:done]
            del self.ids[:done]
            del self.identities[:done]
        done = 0
        while done < len(self.records) and self.records[done] <= disk:
            done += 1
        if done > 0:
            del self.records[:done]
            del self.queues[:done]
            del self.settled[:done]
        if len(self.rejects) > 0:
            self.rejects = [each for each in self.rejects if each[0] > disk]
        if len(self.wholes) > 0:
            self.wholes = [each for each in self.wholes if each[1] > disk]

    def is_gone(self, queue_id: i64, index: i64) -> bool:
        """Whether a message has left a queue again."""
        at: i64 = 0
        while at < len(self.queues):
            if self.queues[at] == queue_id and index in self.settled[at]:
                return True
            at += 1
        return False
