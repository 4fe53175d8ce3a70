"""The log of a group at its home: standbys get what is recorded here.

Every record is made once, as bytes of the journal's own format. Records that must survive a restart
go into this broker's journal. While there are standbys, all records are kept until the end of the
turn and then replicated to them unchanged.
"""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from rhizome.broker.group_log.local_group_log import Progress
from rhizome.broker.group_log.log_port import EVERYTHING
from rhizome.broker.message import Message
from rhizome.cluster.replication.replicable_log import Batch, ReplicableLog
from rhizome.journal.journal import Journal
from rhizome.journal.record_replay import note_refused
from rhizome.journal.records import (
    FLAG_DURABLE,
    FLAG_REFUSED,
    dequeue_record,
    drop_queue_record,
    enqueue_record,
    leases_record,
    number_record,
    purge_record,
    requeue_record,
    shown_record,
    tx_record,
)


@final
class ReplicatedGroupLog(ReplicableLog):
    """The log of a group's queues. Invariant: each record takes the next index.

    Records about messages of ``bare`` queues are made like any other; standbys get something else
    in their place.
    """

    journal: Journal
    recorded: i64
    progress: Progress
    _persistent: i64
    _origin: i64
    _number: i64
    _first: i64
    _parts: list[bytes]
    _size: i64
    _inner: list[bytes] | None
    _inner_durable: bool
    _inner_first: i64

    def __init__(
        self,
        journal: Journal,
        group: i64,
        epoch: i64,
        next_index: i64,
        starts: list[tuple[int, int]],
        origins: dict[int, int],
        disk: i64 = -1,
    ) -> None:
        """``disk``: the index up to which the log's initial content is on disk; -1 if all of it
        is."""
        super().__init__(group, epoch, next_index)
        self.replicated = True
        self.numbered = True
        self.journal = journal
        self.origins = origins
        self.starts = starts
        self.recorded = next_index - 1
        self.progress = Progress(next_index - 1 if disk < 0 else disk)
        self.committed_disk = self.progress.done
        # The last persistent message; of the log's initial content nobody knows which one it was.
        self._persistent = next_index - 1
        self._origin = 0
        self._number = 0
        self._first = next_index
        self._parts = []
        self._size = 0
        self._inner = None
        self._inner_durable = False
        self._inner_first = 0

    # ---- records --------------------------------------------------------------------------------

    def append(self, message: Message, ids: list[int], durable: bool) -> None:
        origin = self._origin
        self._origin = 0
        self.append_from(message, ids, durable, origin, self._number)

    def take_from(self, origin: i64, number: i64) -> None:
        """An edge sent what is appended next, if anything is before ``taken``, under this number:
        one record has both (A1)."""
        self._origin = origin
        self._number = number

    def taken(self) -> None:
        """The message of an edge has been dealt with."""
        if self._origin != 0:
            origin = self._origin
            self._origin = 0
            self.note_number(origin, self._number)

    def append_from(
        self, message: Message, ids: list[int], durable: bool, origin: i64, number: i64
    ) -> None:
        """Append what an edge sent under this number; the record remembers the number (A1)."""
        index = self.next_index
        message.index = index
        durable = durable and message.persistent
        if origin != 0:
            self.origins[origin] = number
        elif not self.alone and not self.derived:
            self._note_unsure(message, ids)
        if not durable and not self.shipping:
            self._advance()
            return
        record = self._record_of(message, ids, durable, origin, number)
        if durable:
            message.position = self._keep(record, len(ids))
            message.shared = len(ids) > 1
            self._persistent = index
            if self.visible == EVERYTHING:
                self.visible = index - 1
        if len(self.bare) > 0:
            record = self._stripped(record, message, ids, durable, origin, number)
        self._ship(record, durable)

    def _record_of(
        self, message: Message, ids: list[int], durable: bool, origin: i64, number: i64
    ) -> bytes:
        """The record of a message that takes the next index."""
        return enqueue_record(
            self.group,
            self.epoch,
            self.next_index,
            ids,
            message.route.tail,
            message.arrived_ms,
            message.expiration_ms,
            message.priority,
            FLAG_DURABLE if durable else 0,
            message.content,
            origin,
            number,
            message.kept_identity(),
        )

    def _replicated_ids(self, ids: list[int]) -> list[int]:
        return [each for each in ids if each not in self.bare]

    def _note_unsure(self, message: Message, ids: list[int]) -> None:
        if len(self.bare) > 0:
            # What is kept of the other queues is brought to the next home as well
            # (`unreplicated_message_migration.py`).
            ids = self._replicated_ids(ids)
            if len(ids) == 0:
                return
        self.uncommitted.published(message, ids)

    def _stripped(
        self,
        record: bytes,
        message: Message,
        ids: list[int],
        durable: bool,
        origin: i64,
        number: i64,
    ) -> bytes:
        """What standbys get in place of a message that not all of its queues replicate."""
        replicated = self._replicated_ids(ids)
        if len(replicated) == len(ids):
            return record
        if len(replicated) == 0:
            if origin != 0:
                return number_record(
                    self.group, self.epoch, self.next_index, origin, number, FLAG_DURABLE
                )
            return self._nothing(ids[0])
        return self._record_of(message, replicated, durable, origin, number)

    def _nothing(self, queue_id: i64) -> bytes:
        """A record that takes an index and changes nothing."""
        return dequeue_record(self.group, self.epoch, self.next_index, queue_id, [], 0)

    def pass_by(self, queue_id: i64) -> None:
        """Take an index that changes nothing: a copy that has reached it has got everything that
        was sent before."""
        self._put(self._nothing(queue_id), False)

    def note_number(self, origin: i64, number: i64) -> None:
        """A number of an edge was taken without a message; 0: the edge won't come back."""
        if number == 0:
            self.origins.pop(origin, 0)
            self.refused.pop(origin, None)
        else:
            self.origins[origin] = number
        self._put(
            number_record(self.group, self.epoch, self.next_index, origin, number, FLAG_DURABLE),
            True,
        )

    def note_refused(self, origin: i64, number: i64) -> None:
        """A queue refused what an edge sent under this number (A1)."""
        self._origin = 0
        self.origins[origin] = number
        note_refused(self.refused, origin, number)
        flags: i64 = FLAG_DURABLE | FLAG_REFUSED
        self._put(
            number_record(self.group, self.epoch, self.next_index, origin, number, flags), True
        )

    def dequeue(self, queue_id: i64, indexes: list[int], durable: bool) -> None:
        if not self.alone and not self.derived:
            self.uncommitted.dequeued(self.next_index, queue_id, indexes)
        if not durable and not self.shipping:
            self._advance()
            return
        indexes.sort()
        flags: i64 = FLAG_DURABLE if durable else 0
        self._put(
            dequeue_record(self.group, self.epoch, self.next_index, queue_id, indexes, flags),
            durable,
        )

    def buried(self, queue_id: i64, index: i64, rejected: bool) -> None:
        if not self.alone and not self.derived:
            self.uncommitted.buried(self.next_index - 1, queue_id, index, rejected)

    def requeue(self, queue_id: i64, index: i64, count: i64, durable: bool) -> None:
        if not durable and not self.shipping:
            self._advance()
            return
        flags: i64 = FLAG_DURABLE if durable else 0
        self._put_of(
            queue_id,
            requeue_record(self.group, self.epoch, self.next_index, queue_id, index, count, flags),
            durable,
        )

    def shown(self, queue_id: i64, priority: i64, message_index: i64) -> None:
        """Record that a message was shown, in this broker's journal and in the memory of the
        others: it is worth no sync anywhere."""
        record = shown_record(
            self.group, self.epoch, self.next_index, queue_id, priority, message_index
        )
        self.journal.append_raw(record, 0)
        self._ship(self._nothing(queue_id) if queue_id in self.bare else record, False)

    def leased(self, queue_id: i64, packed: bytes) -> None:
        self._put_of(
            queue_id,
            leases_record(self.group, self.epoch, self.next_index, queue_id, packed, FLAG_DURABLE),
            True,
        )

    def purge(self, queue_id: i64, up_to_index: i64) -> None:
        if not self.alone and not self.derived:
            self.uncommitted.purged(self.next_index, queue_id)
        self._put(
            purge_record(
                self.group, self.epoch, self.next_index, queue_id, up_to_index, FLAG_DURABLE
            ),
            True,
        )

    def drop(self, queue_id: i64) -> None:
        self._put(
            drop_queue_record(self.group, self.epoch, self.next_index, queue_id, FLAG_DURABLE), True
        )
        self.bare.pop(int(queue_id), None)

    def begin(self, bytes_expected: i64) -> None:
        """The journal's own record is opened by the local log, which begins first."""
        self._inner = []
        self._inner_durable = False
        self._inner_first = self.next_index

    def commit(self) -> i64:
        inner = self._inner
        self._inner = None
        if inner is None or len(inner) == 0:
            return 0
        index = self.next_index
        if not self.alone and not self.derived:
            self.uncommitted.whole(self._inner_first, index)
        flags: i64 = FLAG_DURABLE if self._inner_durable else 0
        if self._inner_durable:
            self.recorded = index
        self._ship(tx_record(self.group, self.epoch, index, flags, inner), self._inner_durable)
        return index

    def _put_of(self, queue_id: i64, record: bytes, durable: bool) -> None:
        """Record something about messages of a queue, which its standbys may not have."""
        if durable:
            self._keep(record, 0)
        self._ship(self._nothing(queue_id) if queue_id in self.bare else record, durable)

    def _put(self, record: bytes, durable: bool) -> None:
        if durable:
            self._keep(record, 0)
        self._ship(record, durable)

    def _keep(self, record: bytes, references: i64) -> i64:
        self.recorded = self.next_index
        return self.journal.append_raw(record, references)

    def _ship(self, record: bytes, durable: bool) -> None:
        if self._inner is not None:
            self._inner.append(record)
            self._inner_durable = self._inner_durable or durable
        elif self.shipping:
            self._parts.append(record)
            self._size += len(record)
        self._advance()

    def _advance(self) -> None:
        if self.alone and not self.silent:
            self.committed_memory = self.next_index
        self.next_index += 1

    def take_batch(self) -> Batch | None:
        """The records made since the last call; None if there are none."""
        first = self._first
        if first == self.next_index:
            return None
        batch = Batch(first, self.next_index - 1, self._parts, self._size)
        self._first = self.next_index
        self._parts = []
        self._size = 0
        return batch

    # ---- how far it is safe ---------------------------------------------------------------------

    def mark(self) -> i64:
        return self.recorded

    def handed_over(self, token: i64) -> None:
        self.progress.handed_over(token, self.recorded)

    def synced(self, position: i64) -> None:
        self.progress.synced(position)
        if self.alone and not self.silent:
            self.set_committed(self.next_index - 1, self.disk())

    def disk(self) -> i64:
        """How far the log is on this broker's disk, as far as it has to be."""
        if self.recorded <= self.progress.done:
            return self.next_index - 1
        return self.progress.done

    def set_committed(self, memory: i64, disk: i64) -> None:
        """The copies that count have this much (G6)."""
        if memory > self.committed_memory:
            self.committed_memory = memory
        if disk > self.committed_disk:
            self.committed_disk = disk
        self.uncommitted.committed(self.committed_memory, self.committed_disk)
        self.update_visible()

    def update_visible(self) -> None:
        """Show what is committed, or nothing while the log is still (L1, A2, G11).

        If no standby is sure to take over with its memory, a persistent message that was shown
        before it is on disk would be lost with this broker. Its edge would send it again, and a
        consumer at a surviving broker would get it twice. So this waits for the disks, this
        broker's own if there is no standby. Transient messages are lost with this broker anyhow:
        while only they are under way, nothing is waited for.
        """
        if self.still:
            self.visible = 0
        elif self.alone:
            on_disk = self.progress.done
            self.visible = EVERYTHING if self._persistent <= on_disk else on_disk
        elif self.by_disk and self.recorded > self.committed_disk:
            self.visible = min(self.committed_memory, self.committed_disk)
        else:
            self.visible = self.committed_memory
