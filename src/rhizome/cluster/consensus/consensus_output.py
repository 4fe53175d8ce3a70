"""Consensus output: what a driver must do after it has given the core its inputs, and the status of
a core."""

from __future__ import annotations

from dataclasses import dataclass, field

from rhizome.cluster.consensus.consensus_events import Event
from rhizome.cluster.consensus.consensus_messages import Message
from rhizome.cluster.consensus.consensus_registry import Registered
from rhizome.cluster.consensus.log.cluster_store import Batch, Entry


@dataclass(frozen=True, slots=True)
class Installation:
    """A snapshot that takes the place of the application's state. ``data`` are its own bytes."""

    index: int
    data: bytes


@dataclass(slots=True)
class Ready:
    """The driver's duties, in this order:

    1. submit ``batch`` to the store under ``token``, if there is one; call ``written`` with it, or
       a later one, when it is synced. No need to wait: what must not be sent before is not here;
    2. send ``messages``, in their order;
    3. install ``snapshot``, if there is one;
    4. apply ``committed``, in their order; then call ``applied`` with the index of the last thing
       applied. Entries of kinds that the application doesn't know are passed over;
    5. act on ``events``;
    6. if the core's ``snapshot_due`` says so, call ``snapshot_taken``;
    7. call ``ready`` again until ``is_empty``, and ``tick`` at ``next_deadline_ms``.
    """

    token: int = 0
    batch: Batch | None = None
    messages: list[tuple[str, Message]] = field(default_factory=list)
    snapshot: Installation | None = None
    committed: list[Entry] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def is_empty(self) -> bool:
        return not (self.batch or self.messages or self.snapshot or self.committed or self.events)


@dataclass(frozen=True, slots=True)
class Quorum:
    """The votes that there are and that are needed.

    ``defined`` primaries vote, ``active`` of them are seen from here, and ``needed`` must be seen
    to elect a root, or to keep the present one (R1).
    """

    defined: int
    active: int
    needed: int


@dataclass(frozen=True, slots=True)
class LeaseStatus:
    name: str
    incarnation: str
    left_ms: int
    applied: int
    presumed: bool
    """Not granted by this root: an earlier one may have granted it."""


@dataclass(frozen=True, slots=True)
class MemberStatus:
    name: str
    bound: bool
    votes: bool
    linked: bool
    counts: bool
    """Whether the broker under this name is the one that the membership means."""
    rests: bool = False
    """Whether it doesn't vote because it was away (last man standing)."""


@dataclass(frozen=True, slots=True)
class Status:
    """Where a broker stands; ``waits_for`` says in words what keeps it from a better state."""

    name: str
    role: str
    """root, candidate, following, or searching for a root."""
    term: int
    root: str
    cluster_uuid: str
    parent_uuid: str
    commit_index: int
    applied_index: int
    settled_index: int
    last_index: int
    synced_index: int
    snapshot_index: int
    quorum: Quorum
    joint: bool
    members: tuple[MemberStatus, ...]
    view: tuple[Registered, ...]
    has_lease: bool
    lease_left_ms: int
    leases: tuple[LeaseStatus, ...]
    waits_for: str
