"""The port: all that the broker core knows of whatever surrounds it, alone or in a cluster.

Interfaces, all owned by the broker:

- ``GroupLog``: where the broker records its decisions about messages (enqueued, dequeued, requeued,
  purged), in batches per turn. The log says how far its records are safe: ``committed_memory`` and
  ``committed_disk`` never fall, and a publish is confirmed once the index that it needs is at or
  below the one that its reliability level asks for.
- ``Cluster``: where the broker proposes changes of the cluster state (declare, bind, delete, ...).
  A proposal is answered through a ``Waiter`` when it is committed, applied and safe.
- ``Forward``: the way to another broker for what is published here and belongs there.
- ``Away``: where a shared queue is active, if that is not here; ``Proxy`` is what one consumer of
  such a queue has there.
- ``Carrier``: the way back, for deliveries to consumers that are on another broker.

A lone broker runs on ``lone.py``, which commits at once; there is no "if clustered" in the core.
Nothing here knows sockets, files, clocks or threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

from rhizome.broker.message import Message
from rhizome.broker.unsure import Unsure

if TYPE_CHECKING:
    from rhizome.amqp.methods import BasicGet, QueueDelete
    from rhizome.broker.application_tokens import ApplicationTokens, Shown
    from rhizome.broker.channel import Channel
    from rhizome.broker.commands import Command
    from rhizome.broker.connection import Connection
    from rhizome.broker.consumer import Consumer
    from rhizome.broker.queue import Queue
    from rhizome.broker.routing.destination import Binding, Destination
    from rhizome.broker.routing.exchange import Exchange
    from rhizome.broker.state import Outcome
    from rhizome.broker.targets import Target
    from rhizome.broker.transactions import Transaction
    from rhizome.journal.checkpoint import CheckpointBuilder
    from rhizome.journal.index import PagedIndex


EVERYTHING: Final = 1 << 62
"""The ``visible`` of a log whose messages may be delivered at once."""


@mypyc_attr(allow_interpreted_subclasses=True)
class GroupLog:
    """The log of one group as its home's queues see it.

    A ``replicated`` log records every decision, transient messages and those of queues that are not
    durable included; others record what must survive a restart.

    Invariant: indexes are handed out in the order of ``append``; ``committed_disk`` and
    ``committed_memory`` never fall and never pass ``next_index - 1`` (G6). A message above
    ``visible`` must not be delivered yet (L1); queues that wait for that are in ``waiting``. While
    the log is ``still`` nothing leaves its queues, dropped or expired either: somebody elsewhere
    may hold what is ready here (A2). While it is ``recovering`` its home is new and confirms
    nothing (G7). ``unsure`` is what was recorded for this broker's own applications and may not be
    committed on the copies of the log.
    Up to ``reliable_memory`` and ``reliable_disk`` an in-sync standby has had everything, too.
    ``starts`` has the first index of each epoch of a replicated log, this one included (L2), and
    ``origins`` the last number that was taken from each edge (A1), which is part of the records
    if the log is ``numbered``; ``refused`` are those that the edge may not know to be. What is
    recorded while it is ``derived`` follows from what the log has: whoever is home next would do
    the same.
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
    recovering: bool
    replicated: bool
    numbered: bool
    derived: bool
    starts: list[tuple[int, int]]
    origins: dict[int, int]
    refused: dict[int, list[int]]
    waiting: list[Queue]
    unsure: Unsure

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
        self.recovering = False
        self.replicated = False
        self.numbered = False
        self.derived = False
        self.starts = []
        self.origins = {}
        self.refused = {}
        self.waiting = []
        self.unsure = Unsure()

    def append(self, message: Message, ids: list[int], durable: bool) -> None:
        """Give the message its index and record it, if it is persistent and ``durable`` or if the
        log is replicated. ``ids``: the queues that the record names."""
        raise NotImplementedError

    def append_from(
        self, message: Message, ids: list[int], durable: bool, origin: i64, number: i64
    ) -> None:
        """Append what an edge sent under this number, which the record remembers (A1)."""
        raise NotImplementedError

    def take_from(self, origin: i64, number: i64) -> None:
        """What is appended next, if anything is before ``taken``, an edge sent under this number:
        one record has both (A1)."""
        raise NotImplementedError

    def taken(self) -> None:
        """What an edge sent has been dealt with."""
        raise NotImplementedError

    def note_number(self, origin: i64, number: i64) -> None:
        """A number of an edge was taken without a message; 0: the edge won't come back."""
        raise NotImplementedError

    def note_refused(self, origin: i64, number: i64) -> None:
        """A queue refused what an edge sent under this number, be it that others took it (A1)."""
        raise NotImplementedError

    def dequeue(self, queue_id: i64, indexes: list[int], durable: bool) -> None:
        """Messages left a queue; ``durable`` if one of them may be in the journal."""
        raise NotImplementedError

    def requeue(self, queue_id: i64, index: i64, count: i64, durable: bool) -> None:
        raise NotImplementedError

    def shown(self, queue_id: i64, priority: i64, message_index: i64) -> None:
        """The messages of a priority were delivered up to an index; nobody waits for this."""
        raise NotImplementedError

    def leased(self, queue_id: i64, packed: bytes) -> None:
        """The leases of a queue are these from now on; none if that is empty."""
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
        """Close the transaction; the index that must be on disk before it may be answered, 0 if
        nothing was recorded."""
        raise NotImplementedError

    def buried(self, queue_id: i64, index: i64, rejected: bool) -> None:
        """That a message left a queue is due to what followed from it, or to its rejection."""

    def epoch_of(self, index: i64) -> i64:
        """The epoch that a record belongs to."""
        return self.epoch

    def mark(self) -> i64:
        """An index that is on disk once everything is that was recorded so far."""
        raise NotImplementedError

    def handed_over(self, token: i64) -> None:
        """The journal's batch, which ends at position ``token``, was handed to the writer."""
        raise NotImplementedError

    def synced(self, position: i64) -> None:
        """Everything below ``position`` of the journal is on disk."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Waiter:
    """Whoever waits for a proposal."""

    def resolved(self, outcome: Outcome) -> None:
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Forward:
    """The way to another broker for publishes.

    It leads to the queues of one group, wherever their home is, or (group 0) to the private queues
    of one broker; ``broker_name`` is where that is now.

    Invariant: each message that is sent gets the number after the one before; ``confirmed`` never
    falls and never passes ``sent``. What was sent is kept until it is confirmed. ``thin`` is the
    last number that was confirmed though no standby has what it names.
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
        """Send a message to what ``target`` names there; answers its number.

        A refusal is told to ``channel`` as a nack of ``tag``, unless that is 0.
        """
        raise NotImplementedError

    def pause(self, connection: Connection) -> None:
        """Let a publisher wait until there is room on this way."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Proxy:
    """What a consumer of a queue that is active elsewhere has at that queue's home."""

    def settle(self, consumer: Consumer, message: Message, kind: i64) -> None:
        """Ack, reject or requeue (``unacked.py``) a message that was delivered here."""
        raise NotImplementedError

    def commit(self, elsewhere: dict[Forward, int]) -> None:
        """What was settled so far belongs to a transaction: add what has to be confirmed before
        it is safe at the home."""
        raise NotImplementedError

    def detach(self, consumer: Consumer) -> None:
        """The consumer is gone; what it holds unacked it may still settle."""
        raise NotImplementedError

    def drained(self, consumer: Consumer) -> None:
        """The consumer's connection can take more."""
        raise NotImplementedError

    def epoch(self) -> i64:
        """The epoch of the home that what is delivered comes from."""
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
        """Have a consumer attached there, then answer consume-ok."""
        raise NotImplementedError

    def get(self, channel: Channel, queue: Queue, method: BasicGet) -> None:
        raise NotImplementedError

    def declared(self, channel: Channel, queue: Queue) -> None:
        """Answer declare-ok with the counts that the home knows."""
        raise NotImplementedError

    def purge(self, channel: Channel, queue: Queue, no_wait: bool) -> None:
        raise NotImplementedError

    def delete(self, channel: Channel, queue: Queue, method: QueueDelete) -> None:
        """Have the home look whether the queue may go, then propose that."""
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
        """Resume once the home has told this broker of its epoch, or can't be reached; the homes
        in ``asked`` have been."""
        raise NotImplementedError

    def holder(self, channel: Channel) -> Proxy:
        """What a channel holds messages through that its client held before."""
        raise NotImplementedError

    def present(self, channel: Channel, first_tag: i64) -> None:
        """Tell the home what a channel holds from this tag on: its client held it before."""
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
    """Commits what changes several groups, or one whose home is another broker."""

    def commit(self, channel: Channel, transaction: Transaction) -> None:
        """Commit a transaction as a whole, and answer the channel (L4)."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Holdings:
    """What a client held before it came back. It is asked within one frame."""

    def take(self, queue: Queue, index: i64) -> Message | None:
        """Take a message from where the client held it; it goes on counting as unacked."""
        return None


@mypyc_attr(allow_interpreted_subclasses=True)
class Cluster:
    """Where changes of the cluster state are put in order, and who knows the other brokers."""

    def propose(self, command: Command, waiter: Waiter | None) -> None:
        """Have a command committed and applied; then tell the waiter, now or later."""
        raise NotImplementedError

    def queue_made(self, queue: Queue) -> None:
        """A shared queue was made: say where it is active, and give it what was kept for it."""

    def handed_over(self, token: i64) -> None:
        """The journal's batch of this turn, which ends at position ``token``, went to the
        writer."""

    def synced(self, position: i64) -> None:
        """Everything below ``position`` of the journal is on disk."""

    def write_checkpoint(self, builder: CheckpointBuilder) -> None:
        """Add what the journal holds for groups that are active elsewhere."""

    def passive_indexes(self) -> list[tuple[int, PagedIndex]]:
        """The messages kept here of queues that are active elsewhere, by queue."""
        return []

    def submitted(self) -> None:
        """The batches of this turn were handed to the writers."""

    def ask_copies(self, queue: Queue, index: i64) -> bool:
        """Ask the copies of a queue's group for a message that can't be read here; False if there
        is nobody to ask. The answer is `Damage.repair` or `Damage.nobody_has`, later."""
        return False

    def channel_released(self, channel: Channel) -> None:
        """A channel is closed and has settled all that it held."""

    def client_left(self, channel: Channel) -> None:
        """What a channel holds is kept for a client whose connection is lost (J12)."""

    def client_came_back(self, connection: Connection) -> None:
        """A client has presented everything that it has; the rest can go to others."""

    def holdings_of(self, connection: Connection) -> Holdings:
        """What a client held before it came back, here or through other brokers."""
        return Holdings()

    def private_declared(self, vhost: str, name: str) -> None:
        """A private queue of this broker was declared."""

    def private_deleted(self, vhost: str, name: str) -> None:
        """A private queue of this broker is gone."""

    def private_bound(self, vhost: str, binding: Binding) -> None:
        """A private queue of this broker is bound: others must send what matches."""

    def private_unbound(self, vhost: str, binding: Binding) -> None:
        """A binding of a private queue of this broker is gone."""

    def private_applied(self, outcome: Outcome, waiter: Waiter) -> None:
        """Tell the waiter once everybody who must know of ``outcome`` does: now, or later."""
        waiter.resolved(outcome)

    def private_elsewhere(self, vhost: str, name: str) -> Destination | None:
        """What leads to a private queue or a reply token of this name on another broker."""
        return None

    def demand(self, tokens: ApplicationTokens) -> None:
        """What applications have to show from here on."""

    def check_application(self, connection: Connection, shown: Shown) -> None:
        """Raises what an application of another cluster is refused with."""

    def destination(self, connection: Connection) -> str:
        """The address of the broker that an application is to go to; "" if it is served here.

        Raises what it is refused with.
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
        """An auto-delete exchange has lost its last binding that is known here: have it deleted,
        unless others are known elsewhere."""
        raise NotImplementedError

    def name_suffix(self) -> str:
        """What names of private queues end with, so that others know whose they are."""
        return ""
