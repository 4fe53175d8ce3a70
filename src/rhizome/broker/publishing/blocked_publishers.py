"""Blocked publishers: publishers that wait, and are told why.

A broker blocks while it is alarmed, isolated or short of copies. It then stops reading from each
connection that publishes, even in the middle of a content. While publishing is suspended the broker
can't tell where a publish leads, so not even the first one is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rhizome.broker.broker_context import BrokerContext
    from rhizome.broker.connection.connection import Connection


def update_blocking(broker: BrokerContext) -> None:
    """A reason to block has come or gone."""
    blocking = broker.alarmed or broker.isolation != "" or broker.stall != ""
    reason = broker.isolation or (broker.alarm_reason if broker.alarmed else "") or broker.stall
    if blocking == broker.blocking and reason == broker.block_reason:
        return
    broker.blocking = blocking
    broker.block_reason = reason
    broker.observer.publishers_blocked(reason)
    if blocking:
        for channel in broker.contents.channels():
            published_by(broker, channel.connection)
        return
    stalled = list(broker.stalled.values())
    broker.stalled = {}
    for connection in stalled:
        connection.set_blocked("")
        connection.set_stalled(False)


def published_by(broker: BrokerContext, connection: Connection) -> None:
    """Note that a connection is a publisher, or has published while blocked."""
    connection.publishing = True
    if broker.blocking and not connection.stalled:
        broker.stalled[connection.id] = connection
        if broker.block_reason:
            connection.set_blocked(broker.block_reason)
        connection.set_stalled(True)


def content_awaited(broker: BrokerContext, connection: Connection) -> None:
    """A publish has come without all of its content. While the broker blocks, that is enough to
    make the connection a publisher."""
    if broker.blocking:
        published_by(broker, connection)


def leave_unread(broker: BrokerContext, connection: Connection) -> None:
    """A publish has come while publishing is suspended."""
    published_by(broker, connection)
    broker.unread[connection.id] = connection
    connection.set_stalled(True)


def suspend_publishing(broker: BrokerContext, suspended: bool) -> None:
    """Have publishes wait unread, or go on."""
    broker.suspended = suspended
    while not broker.suspended and len(broker.unread) > 0:
        # The one that has waited longest comes first, because reading it may suspend publishing
        # again.
        connection = next(iter(broker.unread.values()))
        del broker.unread[connection.id]
        connection.set_stalled(connection.id in broker.stalled)
