"""Transactions: publishes and settlements of a channel, kept until commit and then done at once.

Everything that a commit changes on this broker goes into one journal record, so that a crash leaves
all of it or nothing. If a commit changes several groups, or one whose home is another broker, the
cluster commits it (L4). Private queues and streams on other brokers get their part as publishes,
and the commit waits for those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from rhizome.amqp.methods import TxCommitOk, TxRollbackOk, TxSelectOk
from rhizome.broker.channel.open_transaction import PendingCommit, Transaction
from rhizome.broker.cluster_port import Proxy
from rhizome.broker.dead_letters.dead_letter_routing import bury
from rhizome.broker.group_log.atomic_records import begin_all, commit_all
from rhizome.broker.publishing.forward_port import Forward
from rhizome.broker.publishing.publish_path import place
from rhizome.broker.publishing.remote_targets import rehomed
from rhizome.errors import PreconditionFailed

if TYPE_CHECKING:
    from rhizome.broker.broker_context import BrokerContext
    from rhizome.broker.channel.channel import Channel


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


def carry_out(broker: BrokerContext, channel: Channel, transaction: Transaction) -> PendingCommit:
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
