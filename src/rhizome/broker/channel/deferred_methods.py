"""Deferred methods: methods about a queue active here that can't be carried out or answered yet.

basic.get waits for a message that is visible (L1) and readable. A home says that a queue is purged,
empty or unused only while it has a lease (R9) and knows what other brokers hold (A2). purge-ok is
sent when no takeover can bring the messages back.

Waiting methods are tried again after each commit, when the lease comes, and at every tick. By then
the queue may be deleted, or have another home.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from mypy_extensions import i64

from rhizome.amqp.methods import BasicGet, Method, QueueDelete, QueuePurge, QueuePurgeOk
from rhizome.broker.channel.consume_methods import get
from rhizome.broker.channel.open_transaction import PendingCommit
from rhizome.broker.channel.topology_methods import queue_delete, queue_purge
from rhizome.broker.connection.connection_states import RUNNING
from rhizome.broker.group_log.log_port import GroupLog
from rhizome.broker.publishing.forward_port import Forward
from rhizome.errors import AmqpError, InternalFault

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.channel.channel import Channel
    from rhizome.broker.connection.connection import Connection
    from rhizome.broker.queue.queue import Queue


@final
class DeferredMethods:
    """Invariant: each entry of ``methods`` stands for one suspension of its connection."""

    broker: Broker
    methods: list[tuple[Connection, Channel, Method]]

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.methods = []

    def later(self, channel: Channel, method: Method) -> None:
        """Carry out a method later."""
        channel.connection.suspend()
        self.methods.append((channel.connection, channel, method))

    def purged(self, channel: Channel, queue: Queue, count: i64, no_wait: bool) -> None:
        """A queue was purged: answer when that is safe."""
        self.broker.observer.queue_purged(channel.connection, queue, count)
        purge = Purge(channel, queue, count, no_wait)
        if purge.is_done():
            purge.tell()
        else:
            channel.connection.suspend()
            self.broker.commits.append(purge)

    def try_again(self) -> None:
        if len(self.methods) == 0:
            return
        methods = self.methods
        self.methods = []
        for connection, channel, method in methods:
            if connection.stage == RUNNING and not channel.closing:
                if channel.connection is connection:
                    self._try(connection, channel, method)
            connection.resume()

    def _try(self, connection: Connection, channel: Channel, method: Method) -> None:
        """Try one method; if it fails it must not hold up the others."""
        try:
            _carry_out(channel, method)
        except AmqpError as error:
            if error.class_id == 0:
                error.class_id = method.code() >> 16
                error.method_id = method.code() & 0xFFFF
            connection.fail_on(channel, error)
        except Exception as bug:
            self.broker.report_bug(bug, connection.name)
            connection.fail(InternalFault("the broker made a mistake; its log has the details"))


def _carry_out(channel: Channel, method: Method) -> None:
    if isinstance(method, BasicGet):
        get(channel, method)
    elif isinstance(method, QueuePurge):
        queue_purge(channel, method)
    elif isinstance(method, QueueDelete):
        queue_delete(channel, method)


@final
class Purge(PendingCommit):
    """A purge that was recorded in a log, which is safe once the log is committed up to ``index``.

    A home that is replaced before then can't tell whether the next home knows of the purge, so the
    next home is asked.
    """

    connection: Connection
    queue: Queue
    log: GroupLog
    index: i64
    no_wait: bool

    def __init__(self, channel: Channel, queue: Queue, count: i64, no_wait: bool) -> None:
        here: dict[GroupLog, int] = {}
        elsewhere: dict[Forward, int] = {}
        super().__init__(here, elsewhere, channel, QueuePurgeOk(count))
        self.connection = channel.connection
        self.queue = queue
        self.log = queue.log
        self.index = queue.log.mark() if queue.recorded and count > 0 else 0
        self.no_wait = no_wait

    def is_safe(self) -> bool:
        return self.is_done() or self.queue.away is not None or self.queue.log is not self.log

    def is_done(self) -> bool:
        """Whether the messages stay purged, whoever is home next."""
        return self.queue.deleted or self.index <= self.log.committed_disk

    def tell(self) -> None:
        if not self.no_wait:
            self.channel.send(self.answer)

    def finish(self) -> None:
        channel = self.channel
        connection = self.connection
        if not channel.closing and channel.connection is connection:
            if self.is_done():
                self.tell()
            else:
                again = QueuePurge(self.queue.name, self.no_wait)
                connection.broker.defer(channel, again)
        connection.resume()
