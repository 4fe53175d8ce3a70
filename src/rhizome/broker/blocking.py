"""Blocking: publishers that wait, and are told why.

A broker blocks while it is alarmed, isolated or short of copies: each connection that publishes
then is taken no more input from, be it in the middle of a content. While it is suspended nobody can
say where a publish leads to, so not even the first one is read.

A turn is spent when routes have cost too many steps in it: connections whose last route was costly
are deferred, that is left unread until the end of the next turn, in which everybody else is served.
Who publishes what is hard to route thus slows down to a few messages in each turn. If routes go on
to be costly, of connections that were not known for it, everybody is deferred.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.connection import Connection


TURN_STEPS_MAX: Final = 50_000
"""So many steps of routing are enough for one turn (`ROUTE_STEPS_MAX` bounds a single route)."""

TURN_STEPS_LIMIT: Final = 3 * TURN_STEPS_MAX
"""Beyond this nobody's input is taken in the turn, whoever they are."""

COSTLY_STEPS: Final = 1000
"""A route of more steps is costly."""


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
        for channel in list(broker.contents.channels):
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
    if not suspended:
        _read_on(broker)


def routed_by(broker: Broker, connection: Connection, steps: i64) -> None:
    """Somebody's publish has cost so many steps."""
    turn = broker.turn
    turn.steps += steps
    connection.costly = steps > COSTLY_STEPS
    if turn.steps > TURN_STEPS_MAX:
        turn.spent = True
        must_defer(broker, connection)


def must_defer(broker: Broker, connection: Connection) -> bool:
    """Whether the turn is spent and nothing more is taken from this connection in it."""
    turn = broker.turn
    if not turn.spent or not (connection.costly or turn.steps > TURN_STEPS_LIMIT):
        return False
    broker.unread[connection.id] = connection
    connection.set_stalled(True)
    return True


def end_deferral(broker: Broker) -> None:
    """A turn has passed in which others were served: read those on who were deferred."""
    broker.turn.spent = False
    broker.turn.steps = 0
    _read_on(broker)


def _read_on(broker: Broker) -> None:
    """Read on: those first whose routes are cheap, and who have waited longest."""
    for costly in (False, True):
        for connection in list(broker.unread.values()):
            if broker.suspended or broker.turn.spent:
                return
            if connection.costly == costly and broker.unread.pop(connection.id, None) is not None:
                connection.set_stalled(connection.id in broker.stalled)
