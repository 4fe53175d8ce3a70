"""Revocation: connections and consumers that depend on a user's rights end when the rights do.

When a committed command has changed a user or a permission, every broker of the cluster checks each
connection of that user again, before the next messages are delivered:

- a connection whose login is no longer valid (the user is deleted, has another password or another
  kind; the token has expired) is closed with 320;
- a connection to a vhost that its user may no longer enter is closed with 320;
- a consumer of a queue that its user may no longer read is cancelled. A client that doesn't know
  basic.cancel from the broker, or waits for an answer just then, has its channel closed with 403.

Publishes, gets and everything else that a client asks for are checked each time, so they need
nothing here.

A user may have a hundred thousand consumers, and a token a thousand scopes, so the check is spread
over several turns. Until its turn has come, a connection is sent nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from rhizome.amqp.methods import BasicCancel
from rhizome.broker.connection.connection_states import CLOSING, RUNNING
from rhizome.broker.turn import Chore, Turn
from rhizome.errors import AccessRefused

if TYPE_CHECKING:
    from rhizome.broker.channel.channel import Channel
    from rhizome.broker.channel.consumer import Consumer
    from rhizome.broker.connection.connection import Connection

LISTED_PER_WORK: Final = 20
"""One unit of work for listing this many consumers."""


@final
class Revocation:
    """Invariant: ``connections`` has every connection that has logged in and is not gone, by user
    and number, so a change of one user costs nothing for the connections of others.

    Users that have changed in this turn are checked once at its end: a snapshot may remove a
    permission and restore it at once. ``review`` has the connections that wait to be checked.
    """

    connections: dict[str, dict[int, Connection]]
    turn: Turn
    review: Review

    def __init__(self, turn: Turn) -> None:
        self.connections = {}
        self.turn = turn
        self.review = Review(turn)

    def watch(self, connection: Connection) -> None:
        """A connection has logged in."""
        user = connection.identity.user
        if user not in self.connections:
            self.connections[user] = {}
        self.connections[user][connection.id] = connection

    def forget(self, connection: Connection) -> None:
        """A connection is gone."""
        user = connection.identity.user
        watched = self.connections.get(user)
        if watched is not None:
            watched.pop(connection.id, None)
            if len(watched) == 0:
                del self.connections[user]

    def changed(self, user: str, deleted: bool) -> None:
        """A user or its permissions have changed."""
        if user in self.connections:
            self.turn.users[user] = deleted or self.turn.users.get(user, False)

    def renewed(self, connection: Connection) -> None:
        """A connection has a new token, which may permit less than the old one did."""
        self.review.add(connection, False)

    def revoke(self) -> None:
        """End connections and consumers that depend on rights which the changed users no longer
        have."""
        users = self.turn.users
        self.turn.users = {}
        for user, deleted in users.items():
            for connection in list(self.connections.get(user, {}).values()):
                self.review.add(connection, deleted)


@final
class Review(Chore):
    """Checks the connections whose rights have changed, over several turns.

    Invariant: ``waiting`` has them, and whether their user was deleted; ``consumers`` is what is
    left to check of ``current``. They are sent nothing until they are done. One that changes again
    while it is checked is checked once more.
    """

    turn: Turn
    waiting: dict[Connection, bool]
    current: Connection | None
    consumers: list[Consumer]
    is_queued: bool

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.waiting = {}
        self.current = None
        self.consumers = []
        self.is_queued = False

    def add(self, connection: Connection, deleted: bool) -> None:
        if connection.stage >= CLOSING:
            return
        connection.identity.invalidate()
        connection.hold_output()
        self.waiting[connection] = deleted or self.waiting.get(connection, False)
        if not self.is_queued:
            self.is_queued = True
            self.turn.chores.append(self)

    def run(self) -> bool:
        try:
            while self.current is not None or len(self.waiting) > 0:
                if self.turn.is_full():
                    return False
                self._step(self.current)
        except Exception:
            self._drop_current()
            raise
        self.is_queued = False
        return True

    def _step(self, current: Connection | None) -> None:
        if current is None:
            self._begin()
        elif len(self.consumers) > 0 and current.stage == RUNNING:
            self._check(current, self.consumers.pop())
        else:
            self.current = None
            self.consumers = []
            if current not in self.waiting:
                current.let_output_go()

    def _drop_current(self) -> None:
        """A connection whose rights can't be checked has none; the others are checked all the
        same."""
        if self.current is not None:
            self.current.stop()
        self.current = None
        self.consumers = []
        self.is_queued = len(self.waiting) > 0
        if self.is_queued:
            self.turn.chores.append(self)

    def _begin(self) -> None:
        """Check a connection itself, and find the consumers that are to be checked."""
        connection = next(iter(self.waiting))
        deleted = self.waiting.pop(connection)
        self.current = connection
        identity = connection.identity
        self.turn.work += identity.check_work
        identity.invalidate()
        reason = f"user '{identity.user}' was deleted" if deleted else identity.revoked()
        vhost = connection.router.vhost
        if not reason and connection.stage == RUNNING and not identity.may_enter(vhost):
            reason = f"user '{identity.user}' may no longer enter vhost '{vhost}'"
        if reason:
            if connection.stage < CLOSING:
                connection.force_close(reason)
            return
        for channel in connection.channels.values():
            channel.publish_access = -1
            self.consumers.extend(channel.consumers.values())
        self.consumers.reverse()
        self.turn.work += i64(len(self.consumers)) // LISTED_PER_WORK

    def _check(self, connection: Connection, consumer: Consumer) -> None:
        channel = consumer.channel
        self.turn.work += connection.identity.check_work
        if channel.closing or channel.consumers.get(consumer.tag) is not consumer:
            return
        if not connection.identity.may_read(connection.router.vhost, consumer.queue.name):
            _end_consumer(channel, consumer)


def _end_consumer(channel: Channel, consumer: Consumer) -> None:
    connection = channel.connection
    if not connection.cancel_notify or connection.suspensions > 0:
        queue, vhost = consumer.queue.name, connection.router.vhost
        channel.fail(
            AccessRefused(
                f"access to queue '{queue}' in vhost '{vhost}' refused for user "
                f"'{connection.identity.user}': its permission to read was taken away",
                60,
                20,
            )
        )
        return
    del channel.consumers[consumer.tag]
    channel.send(BasicCancel(consumer.tag, True))
    connection.broker.remove_consumer(consumer)
