"""ResumableClients: which clients may come back elsewhere when their broker is gone (J12).

A client with the capability ``session.resume`` presents what it holds at the next broker. If its
broker was also the home of the queue, nobody but the client knows what that is: a new home that did
not wait would deliver it to others. So brokers tell each other which such clients consume from
which groups, and a new home waits for those of brokers that are gone (`home_group.py`).

A client counts from the first message about it on, a tenth of a second at the most after it began
to consume. It counts for as long as its broker keeps what it holds.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Final, Protocol

from rhizome.amqp.field_table import encode_table, read_table
from rhizome.broker.connection.session_resume import KEEP_MS
from rhizome.cluster.link.broker_hello import RESUMABLE, SECONDARY
from rhizome.cluster.protocol.catalogue import RESUMABLE_CLIENTS

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.connection.connection import Connection
    from rhizome.cluster.link.link import Link
    from rhizome.cluster.link.link_manager import LinkTable

TELL_EVERY_MS: Final = 100
CLIENTS_MAX: Final = 256
"""A broker names no more of its clients. For the others a new home waits as long as it may."""
CONSUMERS_MAX: Final = 2048
"""How many consumers of clients are looked at each time, since a client may have thousands. What is
beyond counts as others."""
OTHERS: Final = ""
"""Stands for clients that are not named."""
ID_BYTES_MAX: Final = 255

Clients = dict[str, list[int]]
"""The groups from which each client consumes."""


class ClientsNode(Protocol):
    """What this needs of the node."""

    broker: Broker
    links: LinkTable
    now_ms: int


class GoneBroker:
    """A broker whose link broke, and the clients that it had."""

    def __init__(self, name: str, incarnation: str, clients: Clients, since_ms: int) -> None:
        self.name = name
        self.incarnation = incarnation
        self.clients = clients
        self.since_ms = since_ms


class ResumableClients:
    """The resumable clients of this broker, as others were told, and those of others.

    ``heard`` is by broker, while there is a link. ``gone`` has the brokers whose link broke while
    they had such clients, for as long as anybody keeps something for these.
    """

    def __init__(self, node: ClientsNode) -> None:
        self._node = node
        self._told: Clients = {}
        self._told_ms = node.now_ms
        self.heard: dict[str, Clients] = {}
        self.gone: list[GoneBroker] = []

    def link_up(self, link: Link) -> None:
        """A broker that is back as it was has its clients back, too."""
        self.gone = [
            each
            for each in self.gone
            if (each.name, each.incarnation) != (link.name, link.peer.incarnation)
        ]
        if self._told:
            self._tell(link)

    def link_down(self, link: Link) -> None:
        clients = self.heard.pop(link.name, {})
        if clients:
            incarnation = link.peer.incarnation
            self.gone.append(GoneBroker(link.name, incarnation, clients, self._node.now_ms))

    def received(self, link: Link, payload: bytes) -> None:
        """Another broker tells which clients it has."""
        clients: Clients = {}
        for client, groups in read_table(payload, 0)[0].items():
            if isinstance(groups, list):
                clients[client] = [each for each in groups if isinstance(each, int)]
        self.heard[link.name] = clients

    def absent(self, group: int) -> dict[str, str]:
        """The clients of a group whose brokers are gone, each with the incarnation of its broker,
        without those that are back here. Edges tell of those that are back elsewhere when they
        attach."""
        return {
            client: each.incarnation
            for each in self.gone
            for client, groups in each.clients.items()
            if (group in groups or client == OTHERS) and not self._is_back(client)
        }

    def _is_back(self, client: str) -> bool:
        connections = self._node.broker.suspended_sessions.connected.get(client, {})
        return any(each.has_resumed for each in connections.values())

    def tick(self) -> None:
        now_ms = self._node.now_ms
        self.gone = [each for each in self.gone if now_ms - each.since_ms < KEEP_MS]
        if now_ms - self._told_ms < TELL_EVERY_MS:
            return
        self._told_ms = now_ms
        clients = self._clients()
        if clients != self._told:
            self._told = clients
            for link in self._node.links.open_links():
                self._tell(link)

    def _tell(self, link: Link) -> None:
        """Only primaries become homes."""
        if RESUMABLE in link.peer.features and link.peer.role != SECONDARY:
            link.send(RESUMABLE_CLIENTS, encode_table(dict(self._told)))

    def _clients(self) -> Clients:
        """The resumable clients here, and those for which something is kept."""
        sessions = self._node.broker.suspended_sessions
        clients: Clients = {}
        left = CONSUMERS_MAX
        for client in islice(sessions.suspended_sessions, CLIENTS_MAX):
            if client in self._told:
                clients[client] = self._told[client]
        for client, connections in islice(sessions.connected.items(), CLIENTS_MAX):
            groups = set(clients.get(client, ()))
            for connection in connections.values():
                left -= _add_groups(connection, groups, left)
            if groups:
                clients[client] = sorted(groups)
        if left <= 0 or len(sessions.connected) + len(sessions.suspended_sessions) > CLIENTS_MAX:
            clients[OTHERS] = []
        for client in list(clients):
            if len(client.encode("utf-8", "surrogateescape")) > ID_BYTES_MAX:
                del clients[client]
                clients[OTHERS] = []
        return clients


def _add_groups(connection: Connection, groups: set[int], looks_max: int) -> int:
    """Add the groups from which a client consumes, or has got something, over one connection;
    returns how many places were looked at."""
    looks = 1
    for channel in connection.channels.values():
        if looks >= looks_max:
            break
        looks += 1
        consumers = chain(channel.consumers.values(), channel.pulls.values())
        for consumer in islice(consumers, max(0, looks_max - looks)):
            looks += 1
            groups.add(int(consumer.queue.definition.group))
    return looks
