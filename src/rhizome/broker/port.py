"""The port: all that the broker core knows of its surroundings, alone or in a cluster.

Interfaces, all owned by the broker:

- ``GroupLog``: where the broker records its decisions about messages (enqueued, dequeued, requeued,
  purged), in batches per turn. The log says how far its records are safe: ``committed_memory`` and
  ``committed_disk`` never fall. A publish is confirmed once the index that it needs is at or below
  the one that its reliability level asks for.
- ``Cluster``: where the broker proposes changes of the cluster state (declare, bind, delete, ...).
  A proposal is answered through a ``Waiter`` when it is committed, applied and safe.
- ``Forward``: the forward queue to another broker, for what is published here and belongs there.
- ``Away``: the home of a shared queue that is active on another broker; ``Proxy`` is what one
  consumer of such a queue has there.
- ``Carrier``: takes deliveries to consumers that are on another broker.

A single broker runs on ``single_node_cluster.py``, which commits at once; there is no "if
clustered" in the core. Nothing here knows sockets, files, clocks or threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

from rhizome.broker.group_log.uncommitted_local_work import UncommittedRecords
from rhizome.broker.message import Message

if TYPE_CHECKING:
    from rhizome.amqp.methods import BasicGet, QueueDelete
    from rhizome.broker.access.application_tokens import ApplicationTokens, Shown
    from rhizome.broker.channel.channel import Channel
    from rhizome.broker.channel.channel_transaction import Transaction
    from rhizome.broker.channel.consumer import Consumer
    from rhizome.broker.connection.connection import Connection
    from rhizome.broker.metadata.metadata_commands import Command
    from rhizome.broker.metadata.metadata_state import Outcome
    from rhizome.broker.publishing.remote_targets import Target
    from rhizome.broker.queue.queue import Queue
    from rhizome.broker.routing.bindings_and_destinations import Binding, Destination
    from rhizome.broker.routing.exchange import Exchange
    from rhizome.journal.checkpoint import CheckpointBuilder
    from rhizome.journal.paged_index import PagedIndex


EVERYTHING: Final = 1 << 62
"""The ``visible`` of a log whose messages may be delivered at once."""


@mypyc_attr(allow_interpreted_subclasses=True)
class GroupLog:
    """The log of one group as its home's queues see it.

    A ``replicated`` log records every decision, including those about transient messages and queues
    that are not durable. Other logs record what must survive a restart.

    Invariant: indexes are handed out in the order of ``append``; ``committed_disk`` and
    ``committed_memory`` never fall and never pass ``next_index - 1`` (G6). A message above
    ``visible`` must not be delivered yet (L1); queues that wait for that are in ``waiting``. While
    the log is ``still`` nothing leaves its queues, not even dropped or expired: an application
    elsewhere may hold what is ready here (A2). While it is ``silent`` nothing more of it counts
    as committed: its home is new (G7), or had a fault.

    ``uncommitted`` is what was recorded for this broker's own applications and may not yet be
    committed on the copies of the log. An in-sync standby has had everything up to
    ``reliable_memory`` and ``reliable_disk``, too. ``starts`` has the first index of each epoch of
    a replicated log, this one included (L2). ``origins`` has the last number that was taken from
    each edge (A1), which is part of the records if the log is ``numbered``; ``refused`` are the
    numbers whose refusal the edge may not know. What is recorded while the log is ``derived``
    follows from what the log has: the next home would do the same.
    """

    group: i64
    epoch: i64
    next_index: i64
    committed_memory: i64
    committed_disk: i64
    reliable_memory: i64
    reliable_disk: i64
    visible: i64
    still: bool
    silent: bool
    replicated: bool
    numbered: bool
    derived: bool
    starts: list[tuple[int, int]]
    origins: dict[int, int]
    refused: dict[int, list[int]]
    waiting: list[Queue]
    uncommitted: UncommittedRecords

    def __init__(self, group: i64, epoch: i64, next_index: i64) -> None:
        self.group = group
        self.epoch = epoch
        self.next_index = next_index
        self.committed_memory = next_index - 1
        self.committed_disk = next_index - 1
        self.reliable_memory = 0
        self.reliable_disk = 0
        self.visible = EVERYTHING
        self.still = False
        self.silent = False
        self.replicated = False
        self.numbered = False
        self.derived = False
        self.starts = []
        self.origins = {}
        self.refused = {}
        self.waiting = []
        self.uncommitted = UncommittedRecords()

    def append(self, message: Message, ids: list[int], durable: bool) -> None:
        """Give the message its index and record it, if it is persistent and ``durable`` or if the
        log is replicated. ``ids``: the queues that the record names."""
        raise NotImplementedError

    def append_from(
        self, message: Message, ids: list[int], durable: bool, origin: i64, number: i64
    ) -> None:
        """Append what an edge sent under this number, which becomes part of the record (A1)."""
        raise NotImplementedError

    def take_from(self, origin: i64, number: i64) -> None:
        """Give the next append, if one comes before ``taken``, this number of an edge: one record
        has both (A1)."""
        raise NotImplementedError

    def taken(self) -> None:
        """What an edge sent under the number has been dealt with."""
        raise NotImplementedError

    def note_number(self, origin: i64, number: i64) -> None:
        """Record a number of an edge that came without a message; 0: the edge won't come back."""
        raise NotImplementedError

    def note_refused(self, origin: i64, number: i64) -> None:
        """Record that a queue refused what an edge sent under this number, even if others took it
        (A1)."""
        raise NotImplementedError

    def dequeue(self, queue_id: i64, indexes: list[int], durable: bool) -> None:
        """Messages left a queue; ``durable`` if one of them may be in the journal."""
        raise NotImplementedError

    def requeue(self, queue_id: i64, index: i64, count: i64, durable: bool) -> None:
        raise NotImplementedError

    def shown(self, queue_id: i64, priority: i64, message_index: i64) -> None:
        """Record up to which index messages of a priority were delivered; nobody waits for this."""
        raise NotImplementedError

    def leased(self, queue_id: i64, packed: bytes) -> None:
        """Record the leases of a queue, which replace those before; empty if there are none."""
        raise NotImplementedError

    def purge(self, queue_id: i64, up_to_index: i64) -> None:
        raise NotImplementedError

    def drop(self, queue_id: i64) -> None:
        """Forget a queue with all its messages."""
        raise NotImplementedError

    def begin(self, bytes_expected: i64) -> None:
        """Open a transaction: what is recorded until ``commit`` is kept whole or not at all."""
        raise NotImplementedError

    def commit(self) -> i64:
        """Close the transaction; return the index that must be on disk before it may be answered, 0
        if nothing was recorded."""
        raise NotImplementedError

    def buried(self, queue_id: i64, index: i64, rejected: bool) -> None:
        """A message left a queue as a dead letter or because its delay is over; ``rejected``: a
        consumer rejected it."""

    def epoch_of(self, index: i64) -> i64:
        """The epoch that a record belongs to."""
        return self.epoch

    def mark(self) -> i64:
        """An index that is on disk once everything recorded so far is."""
        raise NotImplementedError

    def handed_over(self, token: i64) -> None:
        """The journal's batch, which ends at position ``token``, was handed to the writer."""
        raise NotImplementedError

    def synced(self, position: i64) -> None:
        """Everything below ``position`` of the journal is on disk."""
        raise NotImplementedError


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
class Forward:
    """The forward queue to another broker for publishes.

    It leads to the queues of one group, wherever their home is, or (group 0) to the private queues
    of one broker; ``broker_name`` is where that is now.

    Invariant: messages are numbered without gaps in the order of sending; ``confirmed`` never falls
    and never passes ``sent``. What was sent is kept until it is confirmed. ``thin`` is the last
    number that was confirmed although no standby has the message.
    """

    broker_name: str
    group: i64
    sent: i64
    confirmed: i64
    thin: i64
    congested: bool

    def __init__(self, broker_name: str, group: i64) -> None:
        self.broker_name = broker_name
        self.group = group
        self.sent = 0
        self.confirmed = 0
        self.thin = 0
        self.congested = False

    def send(self, message: Message, target: Target, channel: Channel | None, tag: i64) -> i64:
        """Send a message to what ``target`` names there; return its number.

        A refusal is told to ``channel`` as a nack of ``tag``, unless that is 0.
        """
        raise NotImplementedError

    def pause(self, connection: Connection) -> None:
        """Pause a publisher until there is room in this forward queue."""
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
class Away:
    """The home of a shared queue, on another broker.

    Each method answers the channel itself, at once or later; until then the channel's connection is
    suspended. If the home can't be reached the channel is closed with 404.
    """

    def forward(self) -> Forward:
        raise NotImplementedError

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

    def check_application(self, connection: Connection, shown: Shown) -> None:
        """Raise the refusal for an application of another cluster."""

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
