"""Failover map push: clients that ask for it get the failover map, at once and whenever it changes
(J6).

The map goes out on channel 0 as ``session.failover-map`` (docs/client/protocol.md). It says which
brokers there are, where clients find them, and who takes over from whom. So a client whose broker
is gone knows where to go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rhizome.amqp.methods import SessionFailoverMap
from rhizome.broker.connection.connection_states import RUNNING
from rhizome.cluster.link.broker_hello import WITNESS

if TYPE_CHECKING:
    from rhizome.broker.connection.connection import Connection
    from rhizome.cluster.state.broker_registry import BrokerRecord
    from rhizome.cluster.state.cluster_state import ClusterState

CAPABILITY: Final = "failover.map"
BROKERS_MAX: Final = 64
"""A map with more brokers than this has only those that take over from the one that tells it."""
FRAME_SLACK_BYTES: Final = 64


class FailoverMapPush:
    """Sends the failover map to the clients that asked for it.

    Invariant: every connection in ``listeners`` that is open has been sent ``told``.
    """

    def __init__(self, state: ClusterState, me: str) -> None:
        """``me``: the name of this broker."""
        self._state = state
        self._me = me
        self._listeners: dict[int, Connection] = {}
        self._told: dict[str, object] = {}

    def opened(self, connection: Connection) -> None:
        """A client has logged in."""
        if not can(connection, CAPABILITY):
            return
        if not self._told:
            self._told = self._map()
        self._listeners[int(connection.id)] = connection
        self._tell(connection)

    def changed(self) -> None:
        """The cluster state has changed in something that may concern the map."""
        self._listeners = {
            number: each for number, each in self._listeners.items() if each.stage == RUNNING
        }
        made = self._map()
        if made != self._told:
            self._told = made
            for connection in self._listeners.values():
                self._tell(connection)

    def _tell(self, connection: Connection) -> None:
        version = self._state.index
        method = SessionFailoverMap(version, self._told)
        if len(method.encode()) > connection.frame_max - FRAME_SLACK_BYTES:
            method = SessionFailoverMap(version, self._map(brokers_max=0))
        connection.send(0, method)

    def _map(self, brokers_max: int = BROKERS_MAX) -> dict[str, object]:
        state, me = self._state, self._me
        view = [each for each in state.registry.view() if each.role != WITNESS]
        if len(view) > brokers_max:
            near = {me, *(info.broker for info in state.failover_map.get(me, ()))}
            view = [each for each in view if each.name in near]
        names = {each.name for each in view}
        brokers: list[object] = [_entry(each) for each in view]
        failover: dict[str, object] = {
            name: [info.broker for info in infos]
            for name, infos in state.failover_map.items()
            if name in names
        }
        return {"broker": me, "brokers": brokers, "failover": failover}


def can(connection: Connection, capability: str) -> bool:
    """Whether the client of a connection says that it can do something."""
    capabilities = connection.client_properties.get("capabilities")
    return isinstance(capabilities, dict) and capabilities.get(capability) is True


def _entry(broker: BrokerRecord) -> dict[str, object]:
    addresses: list[object] = list(broker.addresses)
    return {
        "name": broker.name,
        "role": broker.role,
        "addresses": addresses,
        "machine": broker.machine,
        "draining": broker.draining,
        "away": broker.away,
    }
