"""Uncommitted handover: what a replaced home brings to the next one (A1, A2).

Publishes of its own applications, and settlements, may not be committed
(`uncommitted_local_work.py`). The next home gets what its log lacks: messages as publishes,
settlements as presented ones. What was one transaction here is one there: it goes as a transaction
part (L4).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, final

from rhizome.broker.channel.unacked import ACK, REJECT
from rhizome.broker.message import Message, copy_of
from rhizome.broker.publishing.forward_port import Target
from rhizome.cluster.transactions.prepared_transactions import prepared_queue_id
from rhizome.cluster.transactions.transaction_part import (
    DECIDE,
    Settle,
    TransactionPart,
    message_of,
)

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.group_log.log_port import GroupLog
    from rhizome.cluster.edge.edge_group import EdgeGroup
    from rhizome.cluster.edge.forward_queue import GroupForwardQueue

NUMBERS_FROM: Final = 1 << 62
"""Transactions that are handed over have numbers of their own among those of this broker."""


def carry_over(edge_group: EdgeGroup, log: GroupLog) -> None:
    """Bring what was recorded here, and may not be committed, to the next home. Confirms to
    applications here wait for that home from now on."""
    carrying = _Carrying(edge_group, log)
    carrying.collect()
    carrying.send()
    _wait_elsewhere(edge_group.broker, log, edge_group.way, carrying.indexes, carrying.numbers)


@final
class _Carrying:
    """The handover of one group. Invariant: ``wholes`` are transactions by their last index;
    ``apart`` is what is in none."""

    def __init__(self, edge_group: EdgeGroup, log: GroupLog) -> None:
        self.edge_group = edge_group
        self.broker = edge_group.broker
        self.log = log
        self.wholes: dict[int, TransactionPart] = {}
        self.apart: list[tuple[Message, list[int]]] = []
        self.indexes: list[int] = []
        self.numbers: list[int] = []
        self._targets: dict[tuple[bytes, tuple[int, ...]], Target] = {}

    def collect(self) -> None:
        uncommitted, shared = self.log.uncommitted, self.broker.shared
        for message, ids, identity in zip(
            uncommitted.messages, uncommitted.ids, uncommitted.identities, strict=True
        ):
            # The next home may have it under another index: sent again over another broker (L5).
            message.identity = identity
            left = [each for each in ids if not uncommitted.is_gone(each, message.index)]
            left = [each for each in left if each in shared]
            if left:
                whole = self._whole(message.index)
                publishes = self.apart if whole is None else whole.publishes
                publishes.append((message, left))
        for record, queue_id, settled in zip(
            uncommitted.records, uncommitted.queues, uncommitted.settled, strict=True
        ):
            if settled:
                self._settle(record, ACK, queue_id, settled)
        for record, queue_id, index in uncommitted.rejects:
            self._settle(record, REJECT, queue_id, [index])
        for last in list(self.wholes):
            self._check(last)

    def _settle(self, record: int, kind: int, queue_id: int, indexes: list[int]) -> None:
        whole = self._whole(record)
        if whole is None:
            self.edge_group.keep(kind, {queue_id: indexes})
        else:
            whole.settles.append(Settle(queue_id, kind, list(indexes)))

    def _whole(self, record: int) -> TransactionPart | None:
        """The transaction that a record is in."""
        last = int(self.log.uncommitted.whole_of(record))
        if last > 0 and last not in self.wholes:
            group = int(self.edge_group.group)
            tx = (int(self.broker.incarnation, 16), NUMBERS_FROM | last)
            now_ms = int(self.broker.turn.now_ms)
            self.wholes[last] = TransactionPart(DECIDE, tx, group, [group], now_ms)
        return self.wholes.get(last)

    def _check(self, last: int) -> None:
        """Split a transaction that has only one operation, or is too large for a message."""
        tx_part = self.wholes[last]
        size = sum(len(message.content) for message, _ in tx_part.publishes)
        if len(tx_part.publishes) + len(tx_part.settles) > 1:
            if size <= self.broker.limits.message_bytes_max:
                return
        del self.wholes[last]
        self.apart.extend(tx_part.publishes)
        for settle in tx_part.settles:
            self.edge_group.keep(settle.kind, {settle.queue_id: settle.indexes})

    def send(self) -> None:
        """Send everything in the order in which it was recorded."""
        found: list[tuple[int, Message, list[int]]] = []
        for message, ids in self.apart:
            found.append((int(message.index), copy_of(message), ids))
        for last, tx_part in self.wholes.items():
            ids = [prepared_queue_id(int(self.edge_group.group))]
            found.append((last, message_of(tx_part, self.broker.pager), ids))
        found.sort(key=lambda each: each[0])
        for index, message, ids in found:
            message.arrived_ms = message.arrived_ms or self.broker.turn.now_ms
            target = self._target(message, ids)
            self.numbers.append(self.edge_group.way.adopt(message, target, index, self.log.epoch))
            self.indexes.append(index)

    def _target(self, message: Message, ids: list[int]) -> Target:
        key = (message.route.tail, tuple(ids))
        target = self._targets.get(key)
        if target is None:
            target = Target(self.edge_group.way, self.broker.shared[ids[0]].vhost, [])
            target.queue_ids = ids
            self._targets[key] = target
        return target


def _wait_elsewhere(
    broker: Broker, log: GroupLog, way: GroupForwardQueue, indexes: list[int], numbers: list[int]
) -> None:
    """Make confirms and commits that wait for a log wait for what was handed over. A publisher that
    waits for a confirm is told if the next home refuses its message, or has lost it."""
    for connection in broker.connections.values():
        for channel in connection.channels.values():
            if channel.confirms is not None:
                for number, tag in channel.confirms.wait_elsewhere(log, way, indexes, numbers):
                    way.belongs_to(number, channel, tag)
    for queue in broker.internal.values():
        if queue.worker is not None:
            queue.worker.wait_elsewhere(log, way, indexes, numbers)
    for commit in broker.commits:
        index = commit.here.pop(log, 0)
        if index > 0:
            at = bisect_right(indexes, index)
            if at > 0:
                commit.elsewhere[way] = max(commit.elsewhere.get(way, 0), numbers[at - 1])
