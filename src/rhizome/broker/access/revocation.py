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
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from rhizome.amqp.methods import BasicCancel
from rhizome.broker.connection.connection_states import CLOSING, RUNNING
from rhizome.broker.turn import Turn
from rhizome.errors import AccessRefused

if TYPE_CHECKING:
    from rhizome.broker.channel.channel import Channel
    from rhizome.broker.channel.consumer import Consumer
    from rhizome.broker.connection.connection import Connection


@final
class Revocation:
    """Invariant: ``connections`` has every connection that has logged in and is not gone, by user
    and number, so a change of one user costs nothing for the connections of others.

    Users that have changed in this turn are checked once at its end: a snapshot may remove a
    permission and restore it at once.
    """

    connections: dict[str, dict[int, Connection]]
    turn: Turn

    def __init__(self, turn: Turn) -> None:
        self.connections = {}
        self.turn = turn

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

    def revoke(self) -> None:
        """End connections and consumers that depend on rights which the changed users no longer
        have."""
        users = self.turn.users
        self.turn.users = {}
        for user, deleted in users.items():
            for connection in list(self.connections.get(user, {}).values()):
                if connection.stage < CLOSING:
                    _look_at(connection, deleted)


def _look_at(connection: Connection, deleted: bool) -> None:
    identity = connection.identity
    identity.invalidate()
    reason = f"user '{identity.user}' was deleted" if deleted else identity.revoked()
    if reason:
        connection.force_close(reason)
        return
    if connection.stage != RUNNING:
        return
    vhost = connection.router.vhost
    if not identity.may_enter(vhost):
        connection.force_close(f"user '{identity.user}' may no longer enter vhost '{vhost}'")
        return
    for channel in list(connection.channels.values()):
        channel.publish_access = -1
        for consumer in list(channel.consumers.values()):
            if not channel.closing and not identity.may_read(vhost, consumer.queue.name):
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
