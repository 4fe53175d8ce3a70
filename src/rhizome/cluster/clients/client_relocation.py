"""Client relocation: sessions that move to another broker while their own goes on (J13 to J15).

A broker that is drained lets its clients go, spread over the grace period, once it is home of
nothing. At the end of that period the last ones go, whatever they hold. With the connect policy
``redirect`` a broker that has more connections than others asks clients to go to those, one at a
time. Clients that can move are asked with ``session.move``. Others are closed with 320 and the
address of another broker, and only by a broker that is drained.

A session is moved when it holds no unacked message, or when its client can resume: then nothing is
delivered again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from rhizome.amqp.methods import SessionMove
from rhizome.cluster.clients.failover_map_push import can

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.connection.connection import Connection
    from rhizome.cluster.clients.connect_policy import Admission
    from rhizome.cluster.group_roles import GroupRoles
    from rhizome.cluster.link.broker_hello import Hello
    from rhizome.cluster.state.cluster_state import ClusterState

MOVES: Final = "session.move"
RESUMES: Final = "session.resume"

STEP_MS: Final = 200
ASKED_AGAIN_MS: Final = 10_000
"""A client that has not gone by then is asked again, or closed if the broker is drained."""


class DrainNode(Protocol):
    """What moving clients away needs of the node."""

    broker: Broker
    me: Hello
    state: ClusterState
    roles: GroupRoles
    admission: Admission
    now_ms: int


class ClientDrain:
    """Asks clients of this broker to move to another one.

    Invariant: ``asked`` has the time at which each connection was asked to go.
    """

    def __init__(self, node: DrainNode) -> None:
        self._node = node
        self._asked: dict[int, int] = {}
        self._step_ms = node.now_ms
        self._began_ms = -1
        self._count = 0

    def tick(self) -> None:
        node = self._node
        if node.now_ms - self._step_ms < STEP_MS:
            return
        self._step_ms = node.now_ms
        record = node.state.registry.brokers.get(node.me.name)
        if record is None or not record.draining:
            self._began_ms = -1
            self._redistribute()
        elif all(home.group.local for home in node.roles.homes.values()):
            self._let_go(record.grace_ms)

    def _let_go(self, grace_ms: int) -> None:
        """Let go the share of clients that matches the part of the grace period that has passed."""
        here = self._node.broker.running_connections()
        now_ms = self._node.now_ms
        if self._began_ms < 0:
            self._began_ms = now_ms
            self._count = len(here)
        passed_ms = now_ms - self._began_ms
        over = passed_ms >= grace_ms
        staying = 0 if over else self._count * (grace_ms - passed_ms) // grace_ms
        where = self._node.admission.elsewhere()
        if not where:
            return
        for connection in here[: max(0, len(here) - staying)]:
            if over or may_move(connection):
                self._dismiss(connection, where)

    def _dismiss(self, connection: Connection, where: str) -> None:
        if can(connection, MOVES):
            asked_ms = self._asked.get(int(connection.id))
            if asked_ms is None:
                self._ask(connection, where)
            if asked_ms is None or self._node.now_ms - asked_ms < ASKED_AGAIN_MS:
                return
        me = self._node.me.name
        connection.force_close(f"broker '{me}' is being drained: connect to {where}")

    def _redistribute(self) -> None:
        """Ask one client to go to a broker that has fewer, if the policy is to spread them."""
        where = self._node.admission.less_loaded()
        if not where:
            return
        now_ms = self._node.now_ms
        for connection in self._node.broker.running_connections():
            asked_ms = self._asked.get(int(connection.id))
            fresh = asked_ms is None or now_ms - asked_ms >= ASKED_AGAIN_MS
            if fresh and can(connection, MOVES) and may_move(connection):
                self._ask(connection, where)
                return

    def _ask(self, connection: Connection, where: str) -> None:
        known = self._node.broker.connections
        self._asked = {number: ms for number, ms in self._asked.items() if number in known}
        self._asked[int(connection.id)] = self._node.now_ms
        connection.send(0, SessionMove(where, self._node.admission.known_hosts()))


def may_move(connection: Connection) -> bool:
    """Whether nothing would be delivered again if this client came back elsewhere."""
    if can(connection, RESUMES):
        return True
    return all(
        channel.unacked.count == 0 and channel.transaction is None
        for channel in connection.channels.values()
    )
