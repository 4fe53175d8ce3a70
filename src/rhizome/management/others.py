"""Others: the other brokers of the cluster, as far as the HTTP API has to ask them.

A broker knows its own connections, private queues and the queues that it is home of; what is
elsewhere it asks for. A question is a request that the asked broker answers for itself alone: it
never asks on. Brokers trust each other with the name of the user: who may ask is known to the link.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from rhizome.broker.queue import Queue
from rhizome.management.errors import Unavailable

LIST_SECONDS_MAX: Final = 2.0
"""A list goes without the rows of a broker that takes longer."""

WORK_SECONDS_MAX: Final = 35.0
"""For what is to be done elsewhere; it may wait for a commit there."""


@dataclass(frozen=True, slots=True)
class Question:
    """A request of ``user``, who has logged in where it was asked. ``target``: path and query as
    they came over the wire; ``reason``: why a connection is closed."""

    method: str
    target: str
    user: str
    body: bytes = b""
    reason: str = ""
    token: str = ""
    """What an access token permits, if the user has logged in with one: there is no record then."""
    address: str = ""
    """Where the user asked from."""
    origin: str = ""
    """The broker that has passed the request on, at the one that is asked."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    content_type: str
    body: bytes


class Unreached(Unavailable):
    """A broker that can't be asked, or has not answered in time."""


class Others(Protocol):
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

    async def ask(self, broker: str, question: Question, seconds: float) -> Reply:
        """Raises Unreached."""
        ...


class Nobody:
    """A lone broker has no others."""

    def names(self) -> list[str]:
        return []

    def home_of(self, queue: Queue) -> str:
        return ""

    def links(self) -> list[dict[str, object]]:
        return []

    async def ask(self, broker: str, question: Question, seconds: float) -> Reply:
        raise Unreached(f"broker '{broker}' can't be reached: this broker is lone")
