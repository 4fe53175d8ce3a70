"""Peer requests: the interface through which the HTTP API asks the other brokers of the cluster.

A broker knows its own connections, private queues and the queues that it is home of; it asks its
peers for the rest. A peer request is answered by the asked broker for itself alone: it never asks
on. Brokers trust each other with the name of the user, because the link knows who asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from rhizome.broker.queue.queue import Queue
from rhizome.management.errors import Unavailable

CHECKSUM_HEADER: Final = "x-rhizome-crc32c"
"""The header with the CRC-32C of a body, computed where the body was read."""

LIST_SECONDS_MAX: Final = 2.0
"""A list is made without the rows of a broker that takes longer."""

WORK_SECONDS_MAX: Final = 35.0
"""The time limit of an action on another broker; it may wait for a commit there."""


@dataclass(frozen=True, slots=True)
class PeerRequest:
    """A request of ``user``, who has logged in at the asking broker. ``target``: path and query as
    they came over the wire; ``reason``: why a connection is closed."""

    method: str
    target: str
    user: str
    body: bytes = b""
    reason: str = ""
    token: str = ""
    """The permissions in an access token, if the user has logged in with one: there is no record
    then."""
    address: str = ""
    """The address that the user asked from."""
    origin: str = ""
    """At the asked broker: the broker that has forwarded the request."""


@dataclass(frozen=True, slots=True)
class PeerResponse:
    status: int
    content_type: str
    body: bytes
    checksum: str = ""
    """The value of the header `x-rhizome-crc32c`, if there is one."""


class PeerUnreachable(Unavailable):
    """A broker that can't be asked, or has not answered in time."""


class PeerBrokers(Protocol):
    """Asks the other brokers."""

    def names(self) -> list[str]:
        """The brokers that can be asked now."""
        ...

    def home_of(self, queue: Queue) -> str:
        """The broker that a shared queue is active on; empty while there is none."""
        ...

    def links(self) -> list[dict[str, object]]:
        """The open links of this broker."""
        ...

    async def ask(self, broker: str, question: PeerRequest, seconds: float) -> PeerResponse:
        """Raises Unreached."""
        ...


class NoPeers:
    """The peers of a standalone broker: none."""

    def names(self) -> list[str]:
        return []

    def home_of(self, queue: Queue) -> str:
        return ""

    def links(self) -> list[dict[str, object]]:
        return []

    async def ask(self, broker: str, question: PeerRequest, seconds: float) -> PeerResponse:
        raise PeerUnreachable(f"broker '{broker}' can't be reached: this broker is lone")
