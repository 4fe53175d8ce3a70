"""Events of simulated applications about streams: what they appended, what they were shown.

As elsewhere (`application_events.py`), a message has an id of its own for each time that it is
sent. A subscription is one consumer of one channel of one session.
"""

from __future__ import annotations

from typing import Final, NamedTuple

FIRST: Final = "first"
NEXT: Final = "next"


class Appended(NamedTuple):
    """An application published to a stream; `transaction` is 0 outside of one. An
    application that sends the same message twice gives both the same `message_id`."""

    application: str
    session: int
    channel: int
    message: str
    stream: str
    size: int
    transaction: int = 0
    message_id: str = ""


class AppendConfirmed(NamedTuple):
    """Its broker says that the stream has it."""

    message: str


class AppendRefused(NamedTuple):
    """Its broker says that the stream refused it."""

    message: str


class Subscribed(NamedTuple):
    """An application asks to be shown a stream from `start` on: an offset, `first` or `next`. With
    a `name` that the stream has seen before, its stored position counts instead."""

    application: str
    session: int
    channel: int
    consumer: str
    stream: str
    start: str
    name: str = ""


class Shown(NamedTuple):
    """A message of a stream came to an application, with the offset that it is said to have."""

    application: str
    session: int
    channel: int
    consumer: str
    stream: str
    offset: int
    message: str
    intact: int


class DoneWith(NamedTuple):
    """An application has acked what is at an offset."""

    session: int
    channel: int
    consumer: str
    stream: str
    offset: int


class Unsubscribed(NamedTuple):
    """A subscription is over, though its session is not."""

    session: int
    channel: int
    consumer: str


class StreamMade(NamedTuple):
    """An application is about to declare a stream of its own."""

    stream: str


class StreamDeleted(NamedTuple):
    """It is about to delete it, or has lost sight of it: from now on it may be gone."""

    stream: str
