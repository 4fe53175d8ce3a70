"""The cluster port: all that the broker core knows of its surroundings, alone or in a cluster.

Interfaces, all owned by the broker:

- ``Cluster``: where the broker proposes changes of the cluster state (declare, bind, delete, ...).
  A proposal is answered through a ``Waiter`` when it is committed, applied and safe.
- ``Away``: the home of a shared queue that is active on another broker; ``Proxy`` is what one
  consumer of such a queue has there.
- ``Carrier``: takes deliveries to consumers that are on another broker.

Two more have modules of their own, because messages and queues know them: the log of a group
(``group_log/log_port.py``) and the forward queue to another broker
(``publishing/forward_port.py``).

A single broker runs on ``single_node_cluster.py``, which commits at once; there is no "if
clustered" in the core. Nothing here knows sockets, files, clocks or threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

from rhizome.broker.access.application_cluster_token import ApplicationTokens
from rhizome.broker.queue.queue_host import RemoteHome

if TYPE_CHECKING:
    from rhizome.amqp.methods import BasicGet, QueueDelete
    from rhizome.broker.channel.channel import Channel
    from rhizome.broker.channel.consumer import Consumer
    from rhizome.broker.channel.open_transaction import Transaction
    from rhizome.broker.connection.connection import Connection
    from rhizome.broker.message import Message
    from rhizome.broker.metadata.metadata_changes import Outcome
    from rhizome.broker.metadata.metadata_commands import Command
    from rhizome.broker.publishing.forward_port import Forward
    from rhizome.broker.queue.queue import Queue
    from rhizome.broker.routing.bindings_and_destinations import Binding, Destination
    from rhizome.broker.routing.exchange import Exchange
    from rhizome.journal.checkpoint import CheckpointBuilder
    from rhizome.journal.paged_index import PagedIndex


@mypyc_attr(allow_interpreted_subclasses=True)
class Waiter:
    """Waits for a proposal."""

    def takes_whole_state(self) -> bool:
        """Whether only the limit of the whole state applies to the proposal, and not its vhost's
        quota."""
        return False

    def resolved(self, outcome: Outcome) -> None:
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Proxy:
    """What a consumer of a queue that is active elsewhere has at that queue's home."""

    def settle(self, consumer: Consumer, message: Message, kind: i64) -> None:
        """Ack, reject or requeue (``unacked.py``) a message that was delivered here."""
        raise NotImplementedError

    def commit(self, elsewhere: dict[Forward, int]) -> None:
        """What was settled so far belongs to a transaction: add what must be confirmed before it is
        safe at the home."""
        raise NotImplementedError

    def detach(self, consumer: Consumer, waiter: Waiter | None) -> bool:
        """The consumer is gone; it may still settle what it holds unacked. Return whether
        ``waiter`` is told when a queue that ends with it is deleted, or that it isn't."""
        raise NotImplementedError

    def drained(self, consumer: Consumer) -> None:
        """The consumer's connection can take more."""
        raise NotImplementedError

    def epoch(self) -> i64:
        """The epoch of the home that sent the deliveries."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Away(RemoteHome):
    """The home of a shared queue, on another broker.

    Each method answers the channel itself, at once or later; until then the channel's connection is
    suspended. If the home can't be reached the channel is closed with 404.
    """

    def consume(self, consumer: Consumer, no_wait: bool) -> None:
        """Attach a consumer there, then answer consume-ok."""
        raise NotImplementedError

    def get(self, channel: Channel, queue: Queue, method: BasicGet) -> None:
        raise NotImplementedError

    def declared(self, channel: Channel, queue: Queue) -> None:
        """Answer declare-ok with the counts that the home knows."""
        raise NotImplementedError

    def purge(self, channel: Channel, queue: Queue, no_wait: bool) -> None:
        raise NotImplementedError

    def delete(self, channel: Channel, queue: Queue, method: QueueDelete) -> None:
        """Have the home check whether the queue may be deleted, then propose that."""
        raise NotImplementedError

    def prefetch(self, channel: Channel) -> None:
        """The channel's prefetch for all its consumers has changed."""
        raise NotImplementedError

    def knows(self, epoch: i64) -> bool:
        """Whether this broker can tell what became of messages of an epoch."""
        raise NotImplementedError

    def is_void(self, epoch: i64, index: i64) -> bool:
        """Whether a message of an epoch that is known was lost with it."""
        raise NotImplementedError

    def catch_up(self, channel: Channel, queue: Queue, entries: bytes, asked: list[Away]) -> None:
        """Resume once the home has told this broker of its epoch, or can't be reached; the homes in
        ``asked`` have been asked already."""
        raise NotImplementedError

    def holder(self, channel: Channel) -> Proxy:
        """The consumer through which a channel holds messages that its client held before."""
        raise NotImplementedError

    def present(self, channel: Channel, first_tag: i64) -> None:
        """Tell the home what a channel holds from this tag on, because its client held it
        before."""
        raise NotImplementedError


def away_of(queue: Queue) -> Away | None:
    """The home of a queue, if it is active on another broker; the queue itself knows little of
    it."""
    away = queue.away
    assert away is None or isinstance(away, Away), "only the cluster sends queues away"
    return away


@mypyc_attr(allow_interpreted_subclasses=True)
class Carrier:
    """Takes deliveries to consumers that are on another broker."""

    def can_take(self, consumer: Consumer) -> bool:
        raise NotImplementedError

    def deliver(self, consumer: Consumer, message: Message, redelivered: bool) -> None:
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Across:
    """Commits transactions that change several groups, or one whose home is another broker."""

    def commit(self, channel: Channel, transaction: Transaction) -> None:
        """Commit a transaction as a whole, and answer the channel (L4)."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Holdings:
    """The deliveries that a client held before it came back. They are valid within one frame."""

    def take(self, queue: Queue, index: i64) -> Message | None:
        """Take a message from where the client held it; it goes on counting as unacked."""
        return None


MADE_NAME_CHARS: Final = 22
"""Of the part of a name that a broker makes that can't be guessed: 16 bytes."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Histories:
    """The histories of x-recent-history exchanges (`recent_history.py`)."""

    def bound(self, vhost: str, binding: Binding) -> None:
        """Something was bound: if its source has a history, and this broker the means, send it."""

    def dropped(self, exchange: Exchange) -> None:
        """An exchange that has a history is deleted."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Cluster:
    """Orders changes of the cluster state, and knows the other brokers."""

    def propose(self, command: Command, waiter: Waiter | None) -> None:
        """Have a command committed and applied; then tell the waiter, now or later."""
        raise NotImplementedError

    def queue_made(self, queue: Queue) -> None:
        """A shared queue was made: find out where it is active, and restore what was kept for
        it."""

    def handed_over(self, token: i64) -> None:
        """The journal's batch of this turn, which ends at position ``token``, went to the
        writer."""

    def synced(self, position: i64) -> None:
        """Everything below ``position`` of the journal is on disk."""

    def tell_news(self) -> None:
        """Tell the others at once how this broker is."""

    def alarm_of_copies(self) -> str:
        """Why publishers have to wait for the disk of another broker, which has copies of what is
        here; empty if they don't."""
        return ""

    def write_checkpoint(self, builder: CheckpointBuilder) -> None:
        """Add what the journal holds for groups that are active elsewhere."""

    def passive_indexes(self) -> list[tuple[int, PagedIndex]]:
        """The messages kept here as copies of queues that are active elsewhere, by queue."""
        return []

    def submitted(self) -> None:
        """The batches of this turn were handed to the writers."""

    def ask_copies(self, queue: Queue, index: i64) -> bool:
        """Ask the copies of a queue's group for a message that can't be read here; False if there
        is no broker to ask. The answer comes later, as `Damage.repair` or `Damage.nobody_has`."""
        return False

    def channel_released(self, channel: Channel) -> None:
        """A channel is closed and has settled everything that it held."""

    def client_left(self, channel: Channel) -> None:
        """A client's connection is lost: what its channel holds is kept for it (J12)."""

    def client_came_back(self, connection: Connection) -> None:
        """A client has presented everything that it has; the rest may go to others."""

    def holdings_of(self, connection: Connection) -> Holdings:
        """The deliveries that a client held before it came back, here or through other brokers."""
        return Holdings()

    def private_declared(self, vhost: str, name: str) -> None:
        """A private queue of this broker was declared."""

    def private_deleted(self, vhost: str, name: str) -> None:
        """A private queue of this broker is gone."""

    def private_bound(self, vhost: str, binding: Binding) -> None:
        """A private queue of this broker is bound: other brokers must forward what matches."""

    def private_unbound(self, vhost: str, binding: Binding) -> None:
        """A binding of a private queue of this broker is gone."""

    def private_applied(self, outcome: Outcome, waiter: Waiter) -> None:
        """Tell the waiter, now or later, once every broker that must know of ``outcome`` does."""
        waiter.resolved(outcome)

    def private_elsewhere(self, vhost: str, name: str) -> Destination | None:
        """The destination for a private queue or reply token of this name on another broker."""
        return None

    def demand(self, tokens: ApplicationTokens) -> None:
        """Set the token that applications have to show from here on."""

    def application_tokens(self) -> ApplicationTokens:
        """The tokens that applications have to show."""
        return ApplicationTokens()

    def destination(self, connection: Connection) -> str:
        """The address of the broker that an application is redirected to; "" if it is served here.

        Raises the refusal if it is served nowhere.
        """
        return ""

    def known_hosts(self) -> str:
        """The addresses of the other brokers."""
        return ""

    def opened(self, connection: Connection) -> None:
        """An application has logged in and is served here."""

    def is_private_elsewhere(self, vhost: str, name: str) -> bool:
        """Whether a queue of this name is known to be private on another broker."""
        return False

    def exchange_unused(self, exchange: Exchange) -> None:
        """An auto-delete exchange has lost its last binding known here: have it deleted, unless
        other brokers know of bindings."""
        raise NotImplementedError

    def name_suffix(self) -> str:
        """The suffix of private queue names that tells other brokers whose they are."""
        return ""
