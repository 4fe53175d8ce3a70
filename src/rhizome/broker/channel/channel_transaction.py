"""Transactions: publishes and settlements of a channel, kept until commit and then done at once.

Everything that a commit changes on this broker goes into one journal record, so that a crash leaves
all of it or nothing. If a commit changes several groups, or one whose home is another broker, the
cluster commits it (L4). Private queues and streams on other brokers get their part as publishes,
and the commit waits for those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from mypy_extensions import i64, mypyc_attr

from rhizome.amqp.methods import Method, TxCommitOk, TxRollbackOk, TxSelectOk
from rhizome.broker.connection.connection_states import CLOSED
from rhizome.broker.dead_letters.dead_letter_routing import bury
from rhizome.broker.group_log.atomic_records import begin_all, commit_all
from rhizome.broker.group_log.log_port import GroupLog
from rhizome.broker.port import Proxy
from rhizome.broker.publishing.forward_port import Forward
from rhizome.broker.publishing.publish_path import Publication, place
from rhizome.broker.publishing.publisher_confirms import are_safe
from rhizome.broker.publishing.remote_targets import rehomed
from rhizome.broker.streams.stream_restrictions import is_stream
from rhizome.errors import PreconditionFailed

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.channel.channel import Channel


@mypyc_attr(allow_interpreted_subclasses=True)
class PendingCommit:
    """A transaction that is answered once its record is on disk and what it sent to other brokers
    is safe there."""

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
        """The transaction is safe: answer."""
        channel = self.channel
        if channel.connection.stage != CLOSED:
            if not channel.closing:
                channel.send(self.answer)
            channel.connection.resume()


@final
class Transaction:
    """Invariant: the channel holds the tags in ``settled`` until commit or rollback. There are at
    most ``parts_max`` publications and tags, because a commit does them in one turn."""

    publications: list[Publication]
    settled: dict[int, int]
    parts_max: i64

    def __init__(self, parts_max: i64) -> None:
        self.publications = []
        self.settled = {}
        self.parts_max = parts_max

    def publish(self, publication: Publication) -> None:
        self._check_room(1)
        self.publications.append(publication)

    def settle(self, tags: list[int], kind: int) -> None:
        self._check_room(len(tags))
        for tag in tags:
            self.settled[tag] = kind

    def _check_room(self, more: i64) -> None:
        if len(self.publications) + len(self.settled) + more > self.parts_max:
            raise PreconditionFailed(
                f"the transaction has more than {self.parts_max} publishes and acknowledgements"
                " (limits.transaction_parts_max); commit more often"
            )

    def groups(self, channel: Channel) -> dict[int, bool]:
        """The groups that the transaction changes, and whether a home elsewhere has to. Streams are
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
        channel.transaction = _begun(channel)
    channel.send(TxSelectOk())


def commit(channel: Channel) -> None:
    """Do everything in the transaction; commit-ok is sent once it is safe."""
    transaction = channel.transaction
    if transaction is None:
        raise PreconditionFailed("channel is not transactional", 90, 20)
    channel.transaction = _begun(channel)
    broker = channel.connection.broker
    broker.contents.end(channel)
    for publication in transaction.publications:
        recipients = rehomed(publication.queues, publication.targets, broker.shared)
        publication.queues = recipients.queues
        publication.targets = recipients.targets
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
    """Do what a transaction collected; on this broker that is one record."""
    size: i64 = 0
    for publication in transaction.publications:
        size += len(publication.message.content) + 256
    elsewhere: dict[Forward, int] = {}
    begin_all(broker, size + len(transaction.settled) * 32)
    for publication in transaction.publications:
        # The message exists from here on: its time to live counts from the commit.
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
    channel.transaction = _begun(channel)
    channel.connection.broker.contents.end(channel)
    channel.send(TxRollbackOk())


def _begun(channel: Channel) -> Transaction:
    return Transaction(channel.connection.broker.limits.transaction_parts_max)
