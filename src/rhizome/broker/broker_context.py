"""BrokerContext: what connections, channels and the publish path share of their broker.

The broker itself (`broker.py`) has more parts, and knows all that carries out the work. What is in
this module knows nothing of them, so each can be read alone.
"""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from rhizome.amqp.methods import Method
from rhizome.broker.access.auth_interface import AccessEpoch, Authenticator
from rhizome.broker.access.revocation import Revocation
from rhizome.broker.access.usage_limits import Limits
from rhizome.broker.channel.channel import Channel
from rhizome.broker.channel.consumer import Consumer
from rhizome.broker.channel.direct_reply_to import DirectReplyTo
from rhizome.broker.channel.open_transaction import PendingCommit
from rhizome.broker.cluster_port import Across, Cluster, Waiter
from rhizome.broker.connection.connection import Connection
from rhizome.broker.dead_letters.dead_letter import DeadLetter
from rhizome.broker.fault_log import (
    FAULT_CONNECTION,
)
from rhizome.broker.group_log.log_port import GroupLog
from rhizome.broker.message import Message, Route
from rhizome.broker.metadata.metadata_changes import (
    Outcome,
)
from rhizome.broker.metadata.metadata_commands import (
    Command,
)
from rhizome.broker.metadata.metadata_state import State
from rhizome.broker.observer import EventSink, Observer, Tracer
from rhizome.broker.publishing.confirm_latency import ConfirmLatencies
from rhizome.broker.publishing.publisher_confirms import Confirms
from rhizome.broker.publishing.unfinished_content_limits import UnfinishedContents
from rhizome.broker.queue.queue import Queue
from rhizome.broker.queue.queue_host import QueueHost
from rhizome.errors import AmqpError


@final
class BrokerSettings:
    """The name, version and cluster name that the broker tells clients. ``compatible_version`` is
    the version of RabbitMQ that it announces (`amqp.announce_version`)."""

    name: str
    version: str
    cluster_name: str
    compatible_version: str

    def __init__(self, name: str, version: str, cluster_name: str, compatible_version: str) -> None:
        self.name = name
        self.version = version
        self.cluster_name = cluster_name
        self.compatible_version = compatible_version


class ClientSessions:
    """The sessions of clients that can resume (`connection/session_resume.py`)."""

    def opened(self, connection: Connection) -> None:
        """A client that can resume has logged in."""
        raise NotImplementedError

    def closed(self, connection: Connection) -> None:
        """A connection is gone, or its client won't come back."""
        raise NotImplementedError

    def keep(self, connection: Connection) -> None:
        """Keep what a connection holds until its client comes back."""
        raise NotImplementedError


class BrokerContext(QueueHost):
    """``older_peers`` are linked brokers that don't know that producers belong to users
    (`journal/dedup_state.py`)."""

    settings: BrokerSettings
    incarnation: str
    state: State
    logs: dict[int, GroupLog]
    cluster: Cluster
    across: Across
    authenticator: Authenticator
    access_epoch: AccessEpoch
    revocation: Revocation
    limits: Limits
    contents: UnfinishedContents
    observer: Observer
    tracer: Tracer | None
    """Traces what goes through traced vhosts; None while there is none."""
    events: EventSink
    replies: DirectReplyTo
    connections: dict[int, Connection]
    releases: dict[int, Connection]
    """The carriers with closed channels whose messages are going back to their queues."""
    shared: dict[int, Queue]
    internal: dict[int, Queue]
    unconfirmed: list[Channel]
    commits: list[PendingCommit]
    dead_letters: list[DeadLetter]
    published: i64
    confirm_latencies: ConfirmLatencies
    levels_told: list[int]
    blocking: bool
    block_reason: str
    alarmed: bool
    alarm_reason: str
    suspended: bool
    stall: str
    stalled: dict[int, Connection]
    unread: dict[int, Connection]
    older_peers: dict[str, None]
    sessions: ClientSessions

    # ---- the state -------------------------------------------------------------------------------

    def add_shared(self, queue: Queue) -> None:
        """A queue is one that all brokers know, or belongs to a group itself."""
        raise NotImplementedError

    def apply(self, command: Command) -> Outcome:
        """Apply a committed command and react to what it changed."""
        raise NotImplementedError

    def announce(self, outcome: Outcome) -> None:
        """Tell clients what a command took from them, after the proposer has its answer.

        Clients that delete a queue they consume from rely on delete-ok coming first.
        """
        raise NotImplementedError

    def delete_queue(self, queue: Queue, waiter: Waiter | None = None) -> bool:
        """Delete a queue because it is unused; return whether ``waiter`` is told when it is."""
        raise NotImplementedError

    def delete_if_unused(self, queue: Queue, waiter: Waiter | None = None) -> bool:
        """Delete an auto-delete queue that has no consumers and expects none back; return whether
        ``waiter`` is told when it is."""
        raise NotImplementedError

    def cluster_name(self) -> str:
        """The name of the cluster that clients and tools are told: a parameter, or configured."""
        raise NotImplementedError

    def make_name(self, prefix: str) -> str:
        """Make a name that is unique and can't be guessed."""
        raise NotImplementedError

    def queue_deleted(self, queue: Queue) -> None:
        """See `Broker`."""
        raise NotImplementedError

    # ---- connections, channels and consumers -----------------------------------------------------

    def carry(self, name: str) -> Connection:
        """Make a connection that holds the channels of another broker's applications.

        It never speaks AMQP itself: a link feeds its channels and takes what they deliver.
        """
        raise NotImplementedError

    def running_connections(self) -> list[Connection]:
        """See `Broker`."""
        raise NotImplementedError

    def connection_opened(self, connection: Connection) -> None:
        """An application has logged in and is served here."""
        raise NotImplementedError

    def connection_failed(self, connection: Connection, error: AmqpError) -> None:
        """A connection was closed with an error: report it."""
        raise NotImplementedError

    def connection_gone(self, connection: Connection) -> None:
        """A connection's socket is gone."""
        raise NotImplementedError

    def connection_fault(self, connection: Connection, error: BaseException) -> None:
        """End a connection after a fault that is about it, so that its client doesn't wait for
        ever."""
        raise NotImplementedError

    def channel_failed(self, channel: Channel, error: AmqpError) -> None:
        """A channel was closed with an error: report it."""
        raise NotImplementedError

    def login_refused(self, connection: Connection, reason: str) -> None:
        """A client may not log in: report it."""
        raise NotImplementedError

    def drop_private_queues(self, connection: Connection) -> None:
        """Delete the private queues of a connection before its owner is told that the connection is
        gone. Queues that are too much for one turn are deleted later."""
        raise NotImplementedError

    def remove_consumer(self, consumer: Consumer, waiter: Waiter | None = None) -> bool:
        """A consumer is gone; an auto-delete queue is deleted with its last one. Return whether
        ``waiter`` is told when that is done."""
        raise NotImplementedError

    def reply_queue(self, vhost: str) -> Queue:
        """The queue that reply consumers nominally consume; it never holds anything."""
        raise NotImplementedError

    def report_bug(self, error: BaseException, where: str, kind: str = FAULT_CONNECTION) -> None:
        """Report an unexpected exception; the fault has been contained."""
        raise NotImplementedError

    # ---- messages --------------------------------------------------------------------------------

    def route_to(self, exchange: str, key: str) -> Route:
        """The route for a message that the broker itself publishes."""
        raise NotImplementedError

    def write_settled(self) -> None:
        """Write the dequeues of this turn into the log."""
        raise NotImplementedError

    def defer(self, channel: Channel, method: Method) -> None:
        """Carry out a method when this broker may answer it; its connection waits."""
        raise NotImplementedError

    def answer_purge(self, channel: Channel, queue: Queue, count: i64, no_wait: bool) -> None:
        """A queue was purged: answer when that is safe."""
        raise NotImplementedError

    def delayed_queue(self, vhost: str) -> Queue | None:
        """The queue in which a vhost holds delayed messages, made if need be."""
        raise NotImplementedError

    def hold_delayed(self, queue: Queue, message: Message, confirms: Confirms | None) -> None:
        """Hold a message in such a queue until it is due."""
        raise NotImplementedError

    def begin_streams(self) -> None:
        """What is recorded in streams until `commit_streams` is kept whole or not at all."""
        raise NotImplementedError

    def commit_streams(self, needed: dict[GroupLog, int]) -> None:
        """Add what must be on disk before the answer may be sent."""
        raise NotImplementedError
