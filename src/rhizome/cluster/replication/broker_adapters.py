"""Broker adapters: the broker's side of replication, for queues, links and the root."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from rhizome.broker.cluster_port import Waiter
from rhizome.broker.fault_log import FAULT_STANDBY
from rhizome.broker.home_change_effects import queues_of
from rhizome.broker.message import Message, is_journaled
from rhizome.broker.metadata.metadata_changes import Outcome
from rhizome.broker.queue.damaged_messages import is_placeholder
from rhizome.broker.queue.redelivered_flag import shown_of
from rhizome.cluster.home.replicated_group_log import ReplicatedGroupLog
from rhizome.cluster.link.frame_codec import begin_frame, end_frame, put_part
from rhizome.cluster.node_port import NodePort
from rhizome.cluster.replication.catch_up_sender import LiveQueue
from rhizome.cluster.replication.epoch_history import epoch_in
from rhizome.cluster.replication.group_copy import GroupCopy
from rhizome.cluster.replication.queue_standby import QueueStandbyPort
from rhizome.cluster.replication.replicator import Replicator
from rhizome.cluster.replication.replicator_port import ReplicatorPort
from rhizome.cluster.state.cluster_commands import Member, SetInSync
from rhizome.errors import SyntaxErrorFault
from rhizome.journal.errors import CorruptRecord
from rhizome.journal.paged_index import PagedIndex
from rhizome.journal.records import FLAG_DURABLE, decode_message, enqueue_record

if TYPE_CHECKING:
    from rhizome.broker.queue.queue import Queue
    from rhizome.cluster.link.link import Link
    from rhizome.cluster.takeover.forced_home_salvage import Salvager


def send_parts(port: NodePort, broker: str, method: i64, parts: list[bytes]) -> bool:
    """Send a frame of several parts; False if there is no link."""
    link: Link | None = port.links().link_to(broker)
    if link is None:
        return False
    outbox = link.outbox
    size: i64 = 0
    for part in parts:
        size += len(part)
    begin_frame(outbox, method, size)
    for part in parts:
        put_part(outbox, part)
    end_frame(outbox)
    link.touch()
    return True


class StandbyAdapter(QueueStandbyPort):
    """Connects the copies that this broker keeps to the broker."""

    def __init__(self, port: NodePort) -> None:
        super().__init__()
        self.port = port
        self.salvager: Salvager | None = None

    def send(self, broker: str, method: i64, parts: list[bytes]) -> bool:
        return send_parts(self.port, broker, method, parts)

    def applied(self) -> i64:
        return self.port.applied.index

    def forced(self, group: i64) -> i64:
        known = self.port.state.groups.groups.get(int(group))
        return 0 if known is None else known.forced

    def read(self, copy: GroupCopy, queue_id: i64, index: i64, epoch: i64) -> bytes:
        """The record of a copy's message that took this index in that epoch; empty if it isn't
        here, or can't be read here either."""
        queue = copy.queues.get(int(queue_id))
        if queue is None or index > copy.index or epoch_in(copy.starts, index) != epoch:
            return b""
        position: i64 = 0
        for level in queue.levels.values():
            position = position or level.find(index)
        if position == 0:
            return b""
        broker = self.port.broker
        try:
            message = broker.pager.read_one(position)
        except (CorruptRecord, OSError) as error:
            broker.damage.met_in_copy(queue_id, index, str(error))
            return b""
        return record_of(copy.group, epoch, queue_id, message)

    def loses(self, copy: GroupCopy, end: i64, home: str, epoch: i64) -> None:
        assert self.salvager is not None
        try:
            about = self.salvager.save(copy, int(end), home, int(epoch))
        except OSError as error:
            raise SyntaxErrorFault(f"what it must give up can't be saved: {error}") from error
        self.port.salvaged(about)


class HomeAdapter(ReplicatorPort):
    """Connects the replicator of one group that is at home here to the broker."""

    copies: Replicator

    def __init__(self, port: NodePort, group: int) -> None:
        super().__init__()
        self.port = port
        self.group = group

    def send(self, broker: str, method: i64, parts: list[bytes]) -> bool:
        return send_parts(self.port, broker, method, parts)

    def applied(self) -> i64:
        return self.port.applied.index

    def propose(self, members: list[Member], version: i64) -> None:
        copies = self.copies
        command = SetInSync(self.group, tuple(members), int(copies.log.epoch), int(version))
        self.port.propose(command, RefusedProposal(copies, int(version)))

    def failed(self, name: str, error: Exception) -> None:
        where = f"what standby {name} of group {self.group} is sent"
        self.port.broker.report_bug(error, where, FAULT_STANDBY)

    # ---- the queues -----------------------------------------------------------------------------

    def queue_ids(self) -> list[int]:
        return [queue.definition.id for queue in queues_of(self.port.broker, self.group)]

    def live(self, queue_id: i64) -> LiveQueue | None:
        queue = self.port.broker.shared.get(int(queue_id))
        if queue is None:
            return None
        if int(queue_id) in self.copies.log.bare:
            return LiveQueue([], {}, None, {}, b"")
        parts: list[PagedIndex] = []
        for lane in queue.lanes:
            parts.append(lane.paged)
            parts.append(_indexes(lane.resident()))
        unacked = queue.broker.unacked_messages(queue)
        unacked.sort(key=_index)
        parts.append(_indexes(unacked))
        # A standby that can read a message that is damaged here must not drop it.
        for _, damaged in self.port.broker.damage.indexes(queue):
            parts.append(damaged)
        leases = self.port.broker.leases.packed(queue)
        return LiveQueue(parts, queue.counts, queue.seen, shown_of(queue), leases)

    def read(self, queue_id: i64, first: i64, end: i64, bytes_max: i64, found: list[bytes]) -> i64:
        queue = self.port.broker.shared.get(int(queue_id))
        if queue is None:
            return end
        unacked = {int(each.index): each for each in queue.broker.unacked_messages(queue)}
        size = 0
        index = int(first)
        while index < end and size < bytes_max:
            message = unacked.get(index) or self._ready(queue, index)
            if message is not None and not is_placeholder(message):
                epoch = self.copies.log.epoch_of(message.index)
                record = record_of(self.group, epoch, queue.id, message)
                found.append(record)
                size += len(record)
            index += 1
        return index

    def _ready(self, queue: Queue, index: int) -> Message | None:
        for lane in queue.lanes:
            message = lane.find(index)
            if message is not None:
                return message
            position = lane.paged.find(index)
            if position != 0:
                try:
                    return queue.broker.pager.read_one(position)
                except (CorruptRecord, OSError):
                    # The standby does without the message for now; it is sent when a broker has it.
                    queue.broker.damage.met_behind(queue, index)
                    return None
        return None

    # ---- damage ---------------------------------------------------------------------------------

    def damaged(self) -> list[tuple[int, int]]:
        return [
            (int(queue.id), index)
            for queue, index in self.port.broker.damage.wanted()
            if queue.definition.group == self.group
        ]

    def fetched(self, queue_id: i64, index: i64, record: bytes) -> None:
        broker = self.port.broker
        queue = broker.shared.get(int(queue_id))
        if queue is None or queue.away is not None:
            return
        if len(record) == 0:
            broker.damage.nobody_has(queue, index)
            return
        stored = decode_message(record, 0)
        if stored is not None and stored.index == index and broker.damage.repair(queue, stored):
            self.copies.restore(record)
            log = self.copies.log
            if isinstance(log, ReplicatedGroupLog):
                log.pass_by(queue_id)


def record_of(group: i64, epoch: i64, queue_id: i64, message: Message) -> bytes:
    """A message as an ENQUEUE record that names one queue, and neither origin nor identity."""
    return enqueue_record(
        group,
        epoch,
        message.index,
        [int(queue_id)],
        message.route.tail,
        message.arrived_ms,
        message.expiration_ms,
        message.priority,
        FLAG_DURABLE if is_journaled(message) else 0,
        message.content,
    )


class RefusedProposal(Waiter):
    """Tells a home that a change of its set was not made."""

    def __init__(self, copies: Replicator, version: int) -> None:
        super().__init__()
        self.copies = copies
        self.version = version

    def resolved(self, outcome: Outcome) -> None:
        if outcome.error is not None:
            self.copies.proposal_refused(self.version)


def _index(message: Message) -> int:
    return int(message.index)


def _indexes(messages: list[Message]) -> PagedIndex:
    """The indexes of messages in memory; only these count."""
    found = PagedIndex()
    for message in messages:
        found.append(message.index, 1)
    return found
