"""Events of simulated applications about their leases of work queues."""

from __future__ import annotations

from typing import NamedTuple


class LeaseAsked(NamedTuple):
    """An application sends a request for its lease: it settles everything below `settle` (-1: it
    settles nothing), and with `ends` returns the rest. Any request keeps the lease for
    `keep_ms`."""

    application: str
    session: int
    consumer: str
    queue: str
    lease: str
    settle: int
    ends: int
    keep_ms: int


class LeaseAnswered(NamedTuple):
    """The request was done (`code` 0) or refused. The lease has positions `first` to `next` - 1."""

    session: int
    consumer: str
    code: int
    first: int
    next: int


class LeaseRead(NamedTuple):
    """A message of a lease came to its application."""

    application: str
    session: int
    consumer: str
    position: int
    message: str
    intact: int


class LeaseHole(NamedTuple):
    """An application is told that there is nothing at a position any more."""

    session: int
    consumer: str
    position: int
