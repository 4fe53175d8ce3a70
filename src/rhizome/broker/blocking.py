"""Blocking: publishers that wait, and are told why.

A broker blocks while it is alarmed, isolated or short of copies: each connection that publishes
then is taken no more input from, be it in the middle of a content. While it is suspended nobody can
say where a publish leads to, so not even the first one is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.connection import Connection


def judge_blocking(broker: Broker) -> None:
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


def published_by(broker: Broker, connection: Connection) -> None:
    """A connection has shown itself to be a publisher, or published while blocked."""
    connection.publishing = True
    if broker.blocking and not connection.stalled:
        broker.stalled[connection.id] = connection
        if broker.block_reason:
            connection.set_blocked(broker.block_reason)
        connection.set_stalled(True)


def content_awaited(broker: Broker, connection: Connection) -> None:
    """A publish has come without all of its content: while the broker blocks that is enough to be
    a publisher."""
    if broker.blocking:
        published_by(broker, connection)


def leave_unread(broker: Broker, connection: Connection) -> None:
    """A publish has come while publishing is suspended."""
    published_by(broker, connection)
    broker.unread[connection.id] = connection
    connection.set_stalled(True)


def suspend_publishing(broker: Broker, suspended: bool) -> None:
    """Have publishes wait unread, or go on."""
    broker.suspended = suspended
    while not broker.suspended and len(broker.unread) > 0:
        # Whoever has waited longest first: one that is read may suspend it again.
        connection = next(iter(broker.unread.values()))
        del broker.unread[connection.id]
        connection.set_stalled(connection.id in broker.stalled)
