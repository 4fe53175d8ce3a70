"""Carrying over: what a home that is replaced brings to the next one (A1, A2).

What its own applications published, and what was settled, may not be committed (`unsure.py`).
The next home gets what its log lacks: messages as publishes, settlements as what is presented. What
was one transaction here is one there: it goes as a case for the docket (L4).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, final

from rhizome.broker.message import Message, copy_of
from rhizome.broker.targets import Target
from rhizome.broker.unacked import ACK, REJECT
from rhizome.cluster.cases import DECIDE, Case, Settle, message_of
from rhizome.cluster.docket import docket_id

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.port import GroupLog
    from rhizome.cluster.forwarding import GroupWay
    from rhizome.cluster.remote import RemoteGroup

NUMBERS_FROM: Final = 1 << 62
"""What is carried over has numbers of its own among the transactions of this broker."""


def carry_over(remote: RemoteGroup, log: GroupLog) -> None:
    """Bring what was recorded here, and may not be committed, to the next home: what is confirmed
    to applications here waits for that one from now on."""
    carrying = _Carrying(remote, log)
    carrying.collect()
    carrying.send()
    _wait_elsewhere(remote.broker, log, remote.way, carrying.indexes, carrying.numbers)


@final
class _Carrying:
    """Invariant: ``wholes`` are transactions by their last index; ``apart`` is what is in none."""

    def __init__(self, remote: RemoteGroup, log: GroupLog) -> None:
        self.remote = remote
        self.broker = remote.broker
        self.log = log
        self.wholes: dict[int, Case] = {}
        self.apart: list[tuple[Message, list[int]]] = []
        self.indexes: list[int] = []
        self.numbers: list[int] = []
        self._targets: dict[tuple[bytes, tuple[int, ...]], Target] = {}

    def collect(self) -> None:
        unsure, shared = self.log.unsure, self.broker.shared
        for message, ids, identity in zip(
            unsure.messages, unsure.ids, unsure.identities, strict=True
        ):
            # It may be there under another index: sent again over another broker (L5).
            message.identity = identity
            left = [each for each in ids if not unsure.is_gone(each, message.index)]
            left = [each for each in left if each in shared]
            if left:
                whole = self._whole(message.index)
                publishes = self.apart if whole is None else whole.publishes
                publishes.append((message, left))
        for record, queue_id, settled in zip(
            unsure.records, unsure.queues, unsure.settled, strict=True
        ):
            if settled:
                self._settle(record, ACK, queue_id, settled)
        for record, queue_id, index in unsure.rejects:
            self._settle(record, REJECT, queue_id, [index])
        for last in list(self.wholes):
            self._check(last)

    def _settle(self, record: int, kind: int, queue_id: int, indexes: list[int]) -> None:
        whole = self._whole(record)
        if whole is None:
            self.remote.keep(kind, {queue_id: indexes})
        else:
            whole.settles.append(Settle(queue_id, kind, list(indexes)))

    def _whole(self, record: int) -> Case | None:
        """The transaction that a record is in."""
        last = int(self.log.unsure.whole_of(record))
        if last > 0 and last not in self.wholes:
            group = int(self.remote.group)
            tx = (int(self.broker.incarnation, 16), NUMBERS_FROM | last)
            now_ms = int(self.broker.turn.now_ms)
            self.wholes[last] = Case(DECIDE, tx, group, [group], now_ms)
        return self.wholes.get(last)

    def _check(self, last: int) -> None:
        """What is no more than one thing, or too large for a message, goes apart."""
        case = self.wholes[last]
        size = sum(len(message.content) for message, _ in case.publishes)
        if len(case.publishes) + len(case.settles) > 1:
            if size <= self.broker.limits.message_bytes_max:
                return
        del self.wholes[last]
        self.apart.extend(case.publishes)
        for settle in case.settles:
            self.remote.keep(settle.kind, {settle.queue_id: settle.indexes})

    def send(self) -> None:
        """Send it in the order in which it was recorded."""
        found: list[tuple[int, Message, list[int]]] = []
        for message, ids in self.apart:
            found.append((int(message.index), copy_of(message), ids))
        for last, case in self.wholes.items():
            ids = [docket_id(int(self.remote.group))]
            found.append((last, message_of(case, self.broker.pager), ids))
        found.sort(key=lambda each: each[0])
        for index, message, ids in found:
            message.arrived_ms = message.arrived_ms or self.broker.turn.now_ms
            target = self._target(message, ids)
            self.numbers.append(self.remote.way.adopt(message, target, index, self.log.epoch))
            self.indexes.append(index)

    def _target(self, message: Message, ids: list[int]) -> Target:
        key = (message.route.tail, tuple(ids))
        target = self._targets.get(key)
        if target is None:
            target = Target(self.remote.way, self.broker.shared[ids[0]].vhost, [])
            target.queue_ids = ids
            self._targets[key] = target
        return target


def _wait_elsewhere(
    broker: Broker, log: GroupLog, way: GroupWay, indexes: list[int], numbers: list[int]
) -> None:
    """Let confirms and commits that wait for a log wait for what was carried over. A publisher
    that waits for a confirm is told if the next home refuses its message, or has lost it."""
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
