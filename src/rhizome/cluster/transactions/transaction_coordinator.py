"""The coordinator of transactions: an edge whose client's commit concerns other brokers (L4).

The edge splits the transaction into a transaction part for each group. A part travels to the home
like the edge's publishes, through the group's forward queue: it is numbered, repeated, and known to
be committed there.

If there is only one part, it is one record at its home: all or nothing, on every copy. The edge
answers its client when that record is committed.

Otherwise all groups but the first get their parts to prepare. When all have prepared, the first
group gets its own part with the request to commit. It tells the edge the decision, and the edge
answers its client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rhizome.amqp.methods import TxCommitOk
from rhizome.broker.channel.channel_transaction import carry_out
from rhizome.broker.channel.open_transaction import PendingCommit, Transaction
from rhizome.broker.group_log.log_port import GroupLog
from rhizome.broker.message import Message
from rhizome.broker.publishing.delayed_messages import DELAYED_QUEUE
from rhizome.broker.publishing.forward_port import Forward
from rhizome.broker.publishing.publication import Publication
from rhizome.broker.streams.stream_restrictions import is_stream
from rhizome.cluster.transactions.prepared_transactions import EDGE, prepared_transactions_of
from rhizome.cluster.transactions.transaction_part import DECIDE, PREPARED, Settle, TransactionPart
from rhizome.errors import PreconditionFailed

if TYPE_CHECKING:
    from rhizome.broker.channel.channel import Channel
    from rhizome.cluster.transactions.transaction_transport import TransactionTransport


class TransactionSplit:
    """A transaction, split by who has to do which part.

    Invariant: ``parts`` has what each group does; ``rest`` what private queues and streams get once
    the transaction is decided.
    """

    def __init__(
        self,
        tx_transport: TransactionTransport,
        number: int,
        channel: Channel,
        transaction: Transaction,
    ) -> None:
        self.tx_transport = tx_transport
        self.number = number
        self.channel = channel
        self.tx = (int(tx_transport.port.incarnation, 16), number)
        self.transaction = transaction
        self.parts: dict[int, TransactionPart] = {}
        self.rest = Transaction(transaction.parts_max)
        self._split()
        self.decider = self._choose()
        for tx_part in self.parts.values():
            tx_part.decider = self.decider
            tx_part.groups = list(self.parts)
            self._check_size(tx_part)

    def _check_size(self, tx_part: TransactionPart) -> None:
        """Refuse a part that is too large: it goes as one message, and no broker takes a larger
        one."""
        most = self.tx_transport.broker.limits.message_bytes_max
        size = sum(len(message.content) for message, _ in tx_part.publishes)
        if size > most:
            raise PreconditionFailed(
                f"a transaction with {size} bytes for queues of one group is too large, at most "
                f"{most} are possible (limits.message_bytes_max): commit more often",
                90,
                20,
            )

    def _part(self, group: int) -> TransactionPart:
        part = self.parts.get(group)
        if part is None:
            now_ms = int(self.tx_transport.broker.turn.now_ms)
            part = TransactionPart(PREPARED, self.tx, 0, [], now_ms)
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
        shared = self.tx_transport.broker.shared
        queues = list(publication.queues)
        if message.route.delayed and publication.options.held:
            vhost = self.channel.connection.router.vhost
            held = self.tx_transport.broker.state.vhosts[vhost].destinations.get(DELAYED_QUEUE)
            found = [each for each in shared.values() if each is held]
            by_group = {int(each.definition.group): [int(each.id)] for each in found}
            self._publish(by_group, message)
            return
        by_group = {}
        rest = Publication(message, [], [], publication.mandatory, publication.options)
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
        """Choose the group that decides: one that is at home here, if there is one."""
        for group in self.parts:
            prepared_txs = prepared_transactions_of(self.tx_transport.broker, group)
            if prepared_txs is not None and prepared_txs.queue.away is None:
                return group
        return min(self.parts, default=0)


class DistributedCommit(PendingCommit):
    """A transaction of a client here in which homes elsewhere have a part."""

    def __init__(
        self, tx_transport: TransactionTransport, channel: Channel, split: TransactionSplit
    ) -> None:
        here: dict[GroupLog, int] = {}
        elsewhere: dict[Forward, int] = {}
        super().__init__(here, elsewhere, channel, TxCommitOk())
        self.tx_transport = tx_transport
        self.number = split.number
        self.tx = split.tx
        self.transaction = split.transaction
        self.parts = split.parts
        self.rest = split.rest
        self.decider = split.decider

    def answer_client(self) -> None:
        """Everything is done: settle here what homes have settled, and answer the client."""
        channel = self.channel
        for tag, kind in self.transaction.settled.items():
            if tag not in self.rest.settled:
                self._forget(tag, kind)
        channel.wake_if_global()
        if len(self.rest.publications) == 0 and len(self.rest.settled) == 0:
            PendingCommit.finish(self)
            return
        broker = self.tx_transport.broker
        broker.commits.append(carry_out(broker, channel, self.rest))

    def _forget(self, tag: int, kind: int) -> None:
        """Forget a delivery that a home elsewhere has settled: telling that home is not needed, and
        might come too late."""
        consumer = self.channel.unacked.consumer(tag)
        if consumer is None or consumer.proxy is None:
            self.channel.settle_one(tag, kind)
            return
        self.channel.unacked.forget(tag)
        consumer.unacked -= 1


class SingleGroupCommit(DistributedCommit):
    """A transaction in one group whose home is another broker, which does it as one record."""

    def send(self) -> None:
        tx_part = self.parts[self.decider]
        tx_part.kind = DECIDE
        self.tx_transport.send(self.decider, tx_part, self)
        self.tx_transport.broker.commits.append(self)

    def finish(self) -> None:
        self.answer_client()


class MultiGroupCommit(DistributedCommit):
    """A transaction over several groups, first while it is prepared, then while it is decided."""

    def __init__(
        self, tx_transport: TransactionTransport, channel: Channel, split: TransactionSplit
    ) -> None:
        super().__init__(tx_transport, channel, split)
        self.deciding = False
        self.outcome: bool | None = None

    def prepare(self) -> None:
        self.tx_transport.open[self.number] = self
        for group, tx_part in self.parts.items():
            if group != self.decider:
                self.tx_transport.send(group, tx_part, self)
        self.tx_transport.broker.commits.append(self)
        if not self.tx_transport.rules.prepared_first:
            self._decide()

    def is_safe(self) -> bool:
        """Whether there is something to do: all have prepared, or the outcome is known.

        An aborted transaction is over only when nothing of it can reach the first group any more.
        """
        if self.deciding:
            return self.outcome is not None and (self.outcome or super().is_safe())
        return self.outcome is not None or super().is_safe()

    def finish(self) -> None:
        if self.outcome is None and self.channel.closing:
            self._give_up()
            return
        if self.outcome is None:
            self._decide()
            self.tx_transport.broker.commits.append(self)
            return
        del self.tx_transport.open[self.number]
        if self.outcome:
            self.answer_client()
        else:
            self._failed()
        self.tx_transport.report(self.tx, EDGE, self.decider)

    def _give_up(self) -> None:
        """Have the transaction aborted: its client is gone, and what the client held of the first
        group is back in the queues, for others."""
        del self.tx_transport.open[self.number]
        self.tx_transport.ask(self.parts[self.decider])

    def _decide(self) -> None:
        self.deciding = True
        tx_part = self.parts[self.decider]
        tx_part.kind = DECIDE
        self.tx_transport.send(self.decider, tx_part, self)

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
