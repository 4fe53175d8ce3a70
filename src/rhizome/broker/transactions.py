"""Transactions: publishes and settlements of a channel, kept until commit and then done at once.

Everything that a commit changes goes into one journal record, so that a crash leaves all of it or
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from rhizome.amqp.methods import TxCommitOk, TxRollbackOk, TxSelectOk
from rhizome.broker.targets import still_there
from rhizome.errors import PreconditionFailed

if TYPE_CHECKING:
    from rhizome.broker.channel import Channel
    from rhizome.broker.publishing import Publication


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
        # What was routed to a queue that is gone by now reaches it no more.
        publication.queues = [queue for queue in publication.queues if not queue.deleted]
        publication.targets = still_there(publication.targets, broker.shared)
    broker.commit_transaction(channel, transaction, TxCommitOk())


def rollback(channel: Channel) -> None:
    """Forget the publishes; what was settled is unacked again."""
    if channel.transaction is None:
        raise PreconditionFailed("channel is not transactional", 90, 30)
    channel.transaction = Transaction()
    channel.send(TxRollbackOk())
