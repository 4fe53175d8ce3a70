"""What simulated applications tell of the leases that they have of work queues."""

from __future__ import annotations

from typing import NamedTuple


class LeaseAsked(NamedTuple):
    """An application asks something of its lease: everything below `settle` is done with (-1: that
    isn't said), and with `ends` that the rest goes back. Whatever it is, it is a sign of life for
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
    """It was done, with `code` 0, or refused. The lease has the positions `first` to `next` - 1."""

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
