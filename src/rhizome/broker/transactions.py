"""Transactions: publishes and settlements of a channel, kept until commit and then done at once.

Everything that a commit changes on a broker goes into one journal record, so that a crash leaves
all of it or nothing. What changes several groups, or one that is at home elsewhere, the cluster
commits (L4). Private queues and streams that are elsewhere get their part as publishes; the commit
waits for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from mypy_extensions import i64, mypyc_attr

from rhizome.amqp.methods import Method, TxCommitOk, TxRollbackOk, TxSelectOk
from rhizome.broker.confirms import are_safe
from rhizome.broker.letters import bury
from rhizome.broker.port import Forward, GroupLog, Proxy
from rhizome.broker.publishing import Publication, place
from rhizome.broker.stages import CLOSED
from rhizome.broker.streams.rules import is_stream
from rhizome.broker.targets import rehomed
from rhizome.broker.together import begin_all, commit_all
from rhizome.errors import PreconditionFailed

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.channel import Channel


@mypyc_attr(allow_interpreted_subclasses=True)
class PendingCommit:
    """A transaction that is answered once its record is on disk, and what it sent to other brokers
    is safe there.
    """

    here: dict[GroupLog, int]
    elsewhere: dict[Forward, int]
    channel: Channel
    answer: Method

    def __init__(
        self,
        here: dict[GroupLog, int],
        elsewhere: dict[Forward, int],
        channel: Channel,
        answer: Method,
    ) -> None:
        self.here = here
        self.elsewhere = elsewhere
        self.channel = channel
        self.answer = answer

    def is_safe(self) -> bool:
        for log, index in self.here.items():
            if index > log.committed_disk:
                return False
        return are_safe(self.elsewhere)

    def finish(self) -> None:
        """It is safe: answer."""
        channel = self.channel
        if channel.connection.stage != CLOSED:
            if not channel.closing:
                channel.send(self.answer)
            channel.connection.resume()


@final
class Transaction:
    """Invariant: tags in ``settled`` are held by the channel until commit or rollback."""

    publications: list[Publication]
    settled: dict[int, int]

    def __init__(self) -> None:
        self.publications = []
        self.settled = {}

    def publish(self, publication: Publication) -> None:
        self.publications.append(publication)

    def settle(self, tags: list[int], kind: int) -> None:
        for tag in tags:
            self.settled[tag] = kind

    def groups(self, channel: Channel) -> dict[int, bool]:
        """The groups that it changes something in, and whether that is done elsewhere; streams are
        not among them."""
        found: dict[int, bool] = {}
        shared = channel.connection.broker.shared
        for publication in self.publications:
            for queue in publication.queues:
                if queue.log.group != 0 and not is_stream(queue.options):
                    found.setdefault(queue.log.group, False)
            for target in publication.targets:
                for queue_id in target.queue_ids:
                    away = shared.get(queue_id)
                    if away is not None and not is_stream(away.options):
                        found[target.forward.group] = True
        for tag in self.settled:
            consumer = channel.unacked.consumer(tag)
            if consumer is not None and not is_stream(consumer.queue.options):
                group = consumer.queue.definition.group
                if group != 0 and consumer.proxy is not None:
                    found[group] = True
                elif group != 0:
                    found.setdefault(group, False)
        return found


def select(channel: Channel) -> None:
    if channel.confirms is not None:
        raise PreconditionFailed("cannot switch from confirm to tx mode", 90, 10)
    if channel.transaction is None:
        channel.transaction = Transaction()
    channel.send(TxSelectOk())


def commit(channel: Channel) -> None:
    """Do everything in the transaction; commit-ok is sent once it is safe."""
    transaction = channel.transaction
    if transaction is None:
        raise PreconditionFailed("channel is not transactional", 90, 20)
    channel.transaction = Transaction()
    broker = channel.connection.broker
    for publication in transaction.publications:
        reach = rehomed(publication.queues, publication.targets, broker.shared)
        publication.queues = reach.queues
        publication.targets = reach.targets
    if len(transaction.publications) == 0 and len(transaction.settled) == 0:
        channel.send(TxCommitOk())
        return
    groups = transaction.groups(channel)
    if len(groups) > 1 or True in groups.values():
        broker.across.commit(channel, transaction)
    else:
        broker.commits.append(carry_out(broker, channel, transaction))
    channel.connection.suspend()


def carry_out(broker: Broker, channel: Channel, transaction: Transaction) -> PendingCommit:
    """Do what a transaction collected, here as one record."""
    size: i64 = 0
    for publication in transaction.publications:
        size += len(publication.message.content) + 256
    elsewhere: dict[Forward, int] = {}
    begin_all(broker, size + len(transaction.settled) * 32)
    for publication in transaction.publications:
        # It exists from here on: its time to live counts from the commit.
        publication.message.arrived_ms = broker.turn.now_ms
        place(broker, publication, channel)
        for target in publication.targets:
            elsewhere[target.forward] = target.forward.sent
    proxies: dict[Proxy, None] = {}
    for tag, kind in transaction.settled.items():
        consumer = channel.unacked.consumer(tag)
        if consumer is not None and consumer.proxy is not None:
            proxies[consumer.proxy] = None
        channel.settle_one(tag, kind)
    bury(broker)
    for proxy in proxies:
        proxy.commit(elsewhere)
    return PendingCommit(commit_all(broker), elsewhere, channel, TxCommitOk())


def rollback(channel: Channel) -> None:
    """Forget the publishes; what was settled is unacked again."""
    if channel.transaction is None:
        raise PreconditionFailed("channel is not transactional", 90, 30)
    channel.transaction = Transaction()
    channel.send(TxRollbackOk())
