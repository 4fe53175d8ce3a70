"""Events of brokers and of the run, reported to the checkers as they happen.

An event is a named tuple; `entry` is the index of an entry of the cluster's log. Its trace line is
its kind and its plain fields, so it never shows a memory address. Scenarios add kinds of their own:
the `Watch` knows none of them by name.
"""

from __future__ import annotations

from typing import NamedTuple

Entry = tuple[int, int, str]
"""Index, term and digest of an entry of the log."""


class Started(NamedTuple):
    """A broker has started; `uuid` is the identity in its store."""

    broker: str
    uuid: str
    role: str
    machine: str = ""


class JournalAt(NamedTuple):
    """A broker's journal counts as durable up to `written`, and a sync has covered it up to
    `synced`. Reported only with a flush policy that does not wait."""

    broker: str
    written: int
    synced: int


class JournalOpened(NamedTuple):
    """A broker has started, and its journal reaches up to here."""

    broker: str
    end: int


class Voted(NamedTuple):
    """A broker's vote is on its way; `broker` itself counts as a voter for itself."""

    broker: str
    uuid: str
    role: str
    term: int
    candidate: str


class BecameRoot(NamedTuple):
    """A broker has been elected; `entries` is its log as far as it still has it."""

    broker: str
    term: int
    entries: list[Entry]


class Committed(NamedTuple):
    """A broker whose term is `seen_in` knows an entry to be committed."""

    broker: str
    entry: int
    term: int
    digest: str
    seen_in: int


class Applied(NamedTuple):
    """A broker's state after an entry."""

    broker: str
    entry: int
    state: str


class Accepted(NamedTuple):
    """An application was told that its change is committed."""

    broker: str
    entry: int
    digest: str


class Settled(NamedTuple):
    """A broker says: every broker with a live lease has applied the entry (R10)."""

    broker: str
    entry: int


class Declared(NamedTuple):
    """An application got its declare-ok for a queue that nobody deletes."""

    broker: str
    queue: str


class Confirmed(NamedTuple):
    """An application has the confirm of a message."""

    application: str
    body: str


class Consumed(NamedTuple):
    """An application got a message of a shared queue."""

    application: str
    body: str


class NewsTold(NamedTuple):
    """An application published to subscribers."""

    application: str
    body: str


class NewsHeard(NamedTuple):
    """A subscriber got what was published."""

    application: str
    body: str


class Subscribed(NamedTuple):
    """A subscriber's private queue is bound and consumed."""

    application: str


class SubscriberGone(NamedTuple):
    application: str


class LeaseGained(NamedTuple):
    """A broker holds a lease, and held none before (R9)."""

    broker: str


class LeaseOver(NamedTuple):
    """A root says: this incarnation holds no lease, so its homes may be replaced (R9)."""

    root: str
    broker: str
    incarnation: str


class Resigned(NamedTuple):
    """A root has resigned, or was deposed; `held` is whether its lease still ran."""

    broker: str
    term: int
    held: int
    reason: str


class RegistryAt(NamedTuple):
    """What a broker knows of the cluster itself after an entry."""

    broker: str
    entry: int
    digest: str


class MembershipAt(NamedTuple):
    """Who votes after a committed entry: names and the UUIDs bound to them."""

    broker: str
    entry: int
    voters: list[tuple[str, str]]


class Ordered(NamedTuple):
    """A root has begun what a person ordered, such as a change of membership."""

    broker: str
    order: str


class Serves(NamedTuple):
    """A broker begins to act as root under a lease (R9)."""

    broker: str
    term: int


class Healed(NamedTuple):
    """All faults are over, and every broker runs."""


class Recovered(NamedTuple):
    """Some time later: the cluster looks as if there had been no faults, or should by now."""


Observation = tuple[object, ...]


def trace_line(observation: Observation) -> str:
    """The event as a line of the trace."""
    shown = [str(field) for field in observation if isinstance(field, (str, int))]
    return " ".join(["*", type(observation).__name__, *shown])
