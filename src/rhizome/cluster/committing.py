"""Committing: what an edge does whose client commits what concerns other brokers (L4).

It splits the transaction into a part for each group, a *case* for that group's docket, which goes
on the way of the edge's publishes: numbered, repeated, and known to be committed there.

If there is one part only, it is one record at its home: all of it or nothing, on every copy. When
that is committed the client is answered.

Else all groups but the first get theirs to prepare. When all have it the first group gets its own
part with the wish to commit. What is decided the edge is told; then it answers its client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rhizome.amqp.methods import TxCommitOk
from rhizome.broker.delayed import DELAYED_QUEUE
from rhizome.broker.message import Message
from rhizome.broker.port import Forward, GroupLog
from rhizome.broker.publishing import Publication
from rhizome.broker.streams.rules import is_stream
from rhizome.broker.transactions import PendingCommit, Transaction, carry_out
from rhizome.cluster.cases import DECIDE, PREPARED, Case, Settle
from rhizome.cluster.docket import EDGE, docket_of
from rhizome.errors import PreconditionFailed

if TYPE_CHECKING:
    from rhizome.broker.channel import Channel
    from rhizome.cluster.txs import Txs


class Split:
    """A transaction by who has to do it.

    Invariant: ``parts`` has what each group does; ``rest`` what private queues and streams get once
    it is decided.
    """

    def __init__(self, txs: Txs, number: int, channel: Channel, transaction: Transaction) -> None:
        self.txs = txs
        self.number = number
        self.channel = channel
        self.tx = (int(txs.node.me.incarnation, 16), number)
        self.transaction = transaction
        self.parts: dict[int, Case] = {}
        self.rest = Transaction()
        self._split()
        self.decider = self._choose()
        for case in self.parts.values():
            case.decider = self.decider
            case.groups = list(self.parts)
            self._check_size(case)

    def _check_size(self, case: Case) -> None:
        """A case goes as one message: what is beyond that can't be sent to any broker."""
        most = self.txs.node.broker.limits.message_bytes_max
        size = sum(len(message.content) for message, _ in case.publishes)
        if size > most:
            raise PreconditionFailed(
                f"a transaction with {size} bytes for queues of one group is too large, at most "
                f"{most} are possible (limits.message_bytes_max): commit more often",
                90,
                20,
            )

    def _part(self, group: int) -> Case:
        part = self.parts.get(group)
        if part is None:
            now_ms = int(self.txs.node.broker.turn.now_ms)
            part = Case(PREPARED, self.tx, 0, [], now_ms)
            self.parts[group] = part
        return part

    def _split(self) -> None:
        for publication in self.transaction.publications:
            self._split_publication(publication)
        by_queue: dict[tuple[int, int, int], list[int]] = {}
        for tag, kind in self.transaction.settled.items():
            consumer = self.channel.unacked.consumer(tag)
            message = self.channel.unacked.message(tag)
            if consumer is None or message is None:
                continue
            group = int(consumer.queue.definition.group)
            if group == 0 or is_stream(consumer.queue.options):
                self.rest.settled[tag] = kind
            else:
                key = (group, int(consumer.queue.id), kind)
                by_queue.setdefault(key, []).append(int(message.index))
        for (group, queue_id, kind), indexes in by_queue.items():
            self._part(group).settles.append(Settle(queue_id, kind, indexes))

    def _split_publication(self, publication: Publication) -> None:
        message = publication.message
        shared = self.txs.node.broker.shared
        queues = list(publication.queues)
        if message.route.delayed and publication.steering.delay_ms > 0:
            vhost = self.channel.connection.router.vhost
            held = self.txs.node.broker.state.vhosts[vhost].destinations.get(DELAYED_QUEUE)
            found = [each for each in shared.values() if each is held]
            by_group = {int(each.definition.group): [int(each.id)] for each in found}
            self._publish(by_group, message)
            return
        by_group = {}
        rest = Publication(message, [], [], publication.mandatory, publication.steering)
        rest.unrouted = publication.unrouted
        for queue in queues:
            if queue.log.group == 0 or is_stream(queue.options):
                rest.queues.append(queue)
            else:
                by_group.setdefault(int(queue.log.group), []).append(int(queue.id))
        for target in publication.targets:
            away = [shared[each] for each in target.queue_ids if each in shared]
            if target.forward.group == 0 or any(is_stream(each.options) for each in away):
                rest.targets.append(target)
            elif away:
                ids = by_group.setdefault(int(target.forward.group), [])
                ids.extend(int(each.id) for each in away)
        self._publish(by_group, message)
        if rest.queues or rest.targets or not by_group:
            self.rest.publications.append(rest)

    def _publish(self, by_group: dict[int, list[int]], message: Message) -> None:
        for group, ids in by_group.items():
            self._part(group).publishes.append((message, ids))

    def _choose(self) -> int:
        """Who decides: a group that is at home here, if there is one."""
        for group in self.parts:
            docket = docket_of(self.txs.node.broker, group)
            if docket is not None and docket.queue.away is None:
                return group
        return min(self.parts, default=0)


class Parted(PendingCommit):
    """A transaction of a client here that homes elsewhere have a part in."""

    def __init__(self, txs: Txs, channel: Channel, split: Split) -> None:
        here: dict[GroupLog, int] = {}
        elsewhere: dict[Forward, int] = {}
        super().__init__(here, elsewhere, channel, TxCommitOk())
        self.txs = txs
        self.number = split.number
        self.tx = split.tx
        self.transaction = split.transaction
        self.parts = split.parts
        self.rest = split.rest
        self.decider = split.decider

    def answer_client(self) -> None:
        """Everything is done: settle here what homes have settled, and answer."""
        channel = self.channel
        for tag, kind in self.transaction.settled.items():
            if tag not in self.rest.settled:
                self._forget(tag, kind)
        channel.wake_if_global()
        if len(self.rest.publications) == 0 and len(self.rest.settled) == 0:
            PendingCommit.finish(self)
            return
        broker = self.txs.node.broker
        broker.commits.append(carry_out(broker, channel, self.rest))

    def _forget(self, tag: int, kind: int) -> None:
        """A home elsewhere has settled it: it needs no telling, which might even be too late."""
        consumer = self.channel.unacked.consumer(tag)
        if consumer is None or consumer.proxy is None:
            self.channel.settle_one(tag, kind)
            return
        self.channel.unacked.forget(tag)
        consumer.unacked -= 1


class Sole(Parted):
    """A transaction in one group whose home is another broker: that does it as one record."""

    def send(self) -> None:
        case = self.parts[self.decider]
        case.kind = DECIDE
        self.txs.send(self.decider, case, self)
        self.txs.node.broker.commits.append(self)

    def finish(self) -> None:
        self.answer_client()


class Committing(Parted):
    """A transaction over several groups, first while it is prepared, then while it is decided."""

    def __init__(self, txs: Txs, channel: Channel, split: Split) -> None:
        super().__init__(txs, channel, split)
        self.deciding = False
        self.outcome: bool | None = None

    def prepare(self) -> None:
        self.txs.open[self.number] = self
        for group, case in self.parts.items():
            if group != self.decider:
                self.txs.send(group, case, self)
        self.txs.node.broker.commits.append(self)
        if not self.txs.rules.prepared_first:
            self._decide()

    def is_safe(self) -> bool:
        """Whether there is something to do: all have prepared, or the outcome is known. What was
        decided against is over only when nothing of it can come to the first group any more."""
        if self.deciding:
            return self.outcome is not None and (self.outcome or super().is_safe())
        return self.outcome is not None or super().is_safe()

    def finish(self) -> None:
        if self.outcome is None and self.channel.closing:
            self._give_up()
            return
        if self.outcome is None:
            self._decide()
            self.txs.node.broker.commits.append(self)
            return
        del self.txs.open[self.number]
        if self.outcome:
            self.answer_client()
        else:
            self._failed()
        self.txs.report(self.tx, EDGE, self.decider)

    def _give_up(self) -> None:
        """Its client is gone, and what it held of the first group is in its queues again, for
        others: have it decided against."""
        del self.txs.open[self.number]
        self.txs.ask(self.parts[self.decider])

    def _decide(self) -> None:
        self.deciding = True
        case = self.parts[self.decider]
        case.kind = DECIDE
        self.txs.send(self.decider, case, self)

    def _failed(self) -> None:
        channel = self.channel
        channel.connection.resume()
        if not channel.closing:
            channel.fail(
                PreconditionFailed(
                    "the transaction was rolled back: not all of its queues could be reached in "
                    "time; it may be tried again",
                    90,
                    20,
                )
            )
