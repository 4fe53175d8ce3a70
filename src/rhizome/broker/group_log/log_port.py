"""LogPort: the log of a group as its queues and publishers see it.

The broker records its decisions about messages there (enqueued, dequeued, requeued, purged), in
batches per turn. The log says how far its records are safe. `local_group_log.py` is that of a
broker alone; a cluster has one whose records go to standbys.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64, mypyc_attr

from rhizome.broker.group_log.uncommitted_local_work import UncommittedRecords
from rhizome.broker.message import Message
from rhizome.broker.turn import MarkedQueue

EVERYTHING: Final = 1 << 62
"""The ``visible`` of a log whose messages may be delivered at once."""


@mypyc_attr(allow_interpreted_subclasses=True)
class GroupLog:
    """The log of one group as its home's queues see it.

    A ``replicated`` log records every decision, including those about transient messages and queues
    that are not durable. Other logs record what must survive a restart.

    Invariant: indexes are handed out in the order of ``append``; ``committed_disk`` and
    ``committed_memory`` never fall and never pass ``next_index - 1`` (G6). A message above
    ``visible`` must not be delivered yet (L1); queues that wait for that are in ``waiting``. While
    the log is ``still`` nothing leaves its queues, not even dropped or expired: an application
    elsewhere may hold what is ready here (A2). While it is ``silent`` nothing more of it counts
    as committed: its home is new (G7), or had a fault.

    ``uncommitted`` is what was recorded for this broker's own applications and may not yet be
    committed on the copies of the log. An in-sync standby has had everything up to
    ``reliable_memory`` and ``reliable_disk``, too. ``starts`` has the first index of each epoch of
    a replicated log, this one included (L2). ``origins`` has the last number that was taken from
    each edge (A1), which is part of the records if the log is ``numbered``; ``refused`` are the
    numbers whose refusal the edge may not know. What is recorded while the log is ``derived``
    follows from what the log has: the next home would do the same.
    """

    group: i64
    epoch: i64
    next_index: i64
    committed_memory: i64
    committed_disk: i64
    reliable_memory: i64
    reliable_disk: i64
    visible: i64
    still: bool
    silent: bool
    replicated: bool
    numbered: bool
    derived: bool
    starts: list[tuple[int, int]]
    origins: dict[int, int]
    refused: dict[int, list[int]]
    waiting: list[MarkedQueue]
    uncommitted: UncommittedRecords

    def __init__(self, group: i64, epoch: i64, next_index: i64) -> None:
        self.group = group
        self.epoch = epoch
        self.next_index = next_index
        self.committed_memory = next_index - 1
        self.committed_disk = next_index - 1
        self.reliable_memory = 0
        self.reliable_disk = 0
        self.visible = EVERYTHING
        self.still = False
        self.silent = False
        self.replicated = False
        self.numbered = False
        self.derived = False
        self.starts = []
        self.origins = {}
        self.refused = {}
        self.waiting = []
        self.uncommitted = UncommittedRecords()

    def append(self, message: Message, ids: list[int], durable: bool) -> None:
        """Give the message its index and record it, if it is persistent and ``durable`` or if the
        log is replicated. ``ids``: the queues that the record names."""
        raise NotImplementedError

    def append_from(
        self, message: Message, ids: list[int], durable: bool, origin: i64, number: i64
    ) -> None:
        """Append what an edge sent under this number, which becomes part of the record (A1)."""
        raise NotImplementedError

    def take_from(self, origin: i64, number: i64) -> None:
        """Give the next append, if one comes before ``taken``, this number of an edge: one record
        has both (A1)."""
        raise NotImplementedError

    def taken(self) -> None:
        """What an edge sent under the number has been dealt with."""
        raise NotImplementedError

    def note_number(self, origin: i64, number: i64) -> None:
        """Record a number of an edge that came without a message; 0: the edge won't come back."""
        raise NotImplementedError

    def note_refused(self, origin: i64, number: i64) -> None:
        """Record that a queue refused what an edge sent under this number, even if others took it
        (A1)."""
        raise NotImplementedError

    def dequeue(self, queue_id: i64, indexes: list[int], durable: bool) -> None:
        """Messages left a queue; ``durable`` if one of them may be in the journal."""
        raise NotImplementedError

    def requeue(self, queue_id: i64, index: i64, count: i64, durable: bool) -> None:
        raise NotImplementedError

    def shown(self, queue_id: i64, priority: i64, message_index: i64) -> None:
        """Record up to which index messages of a priority were delivered; nobody waits for this."""
        raise NotImplementedError

    def leased(self, queue_id: i64, packed: bytes) -> None:
        """Record the leases of a queue, which replace those before; empty if there are none."""
        raise NotImplementedError

    def purge(self, queue_id: i64, up_to_index: i64) -> None:
        raise NotImplementedError

    def drop(self, queue_id: i64) -> None:
        """Forget a queue with all its messages."""
        raise NotImplementedError

    def begin(self, bytes_expected: i64) -> None:
        """Open a transaction: what is recorded until ``commit`` is kept whole or not at all."""
        raise NotImplementedError

    def commit(self) -> i64:
        """Close the transaction; return the index that must be on disk before it may be answered, 0
        if nothing was recorded."""
        raise NotImplementedError

    def buried(self, queue_id: i64, index: i64, rejected: bool) -> None:
        """A message left a queue as a dead letter or because its delay is over; ``rejected``: a
        consumer rejected it."""

    def epoch_of(self, index: i64) -> i64:
        """The epoch that a record belongs to."""
        return self.epoch

    def mark(self) -> i64:
        """An index that is on disk once everything recorded so far is."""
        raise NotImplementedError

    def handed_over(self, token: i64) -> None:
        """The journal's batch, which ends at position ``token``, was handed to the writer."""
        raise NotImplementedError

    def synced(self, position: i64) -> None:
        """Everything below ``position`` of the journal is on disk."""
        raise NotImplementedError
