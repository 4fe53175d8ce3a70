"""Log entries: the kinds of entries in the log, and their payloads.

The application's entries are opaque bytes. The others are the core's own; the application sees them
too, in order, so that it can keep its view of the brokers.

    EMPTY          a root's first entry in its term, with the root's name (R2)
    APPLICATION    a command to the application's state machine
    FOUNDING       the first entry, or that of a forced root: cluster UUID and membership (R7, R12)
    MEMBERSHIP     who votes from here on (R4)
    REGISTRATION   an incarnation of a broker; its index is the broker's seniority (R6)
    RETIREMENT     an incarnation that will not come back
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rhizome.cluster.consensus.dataclass_codec import decode, encode
from rhizome.cluster.consensus.log.cluster_store import Entry
from rhizome.cluster.consensus.membership import Membership

EMPTY: Final = 0
APPLICATION: Final = 1
FOUNDING: Final = 2
MEMBERSHIP: Final = 3
REGISTRATION: Final = 4
RETIREMENT: Final = 5

KIND_NAMES: Final = {
    EMPTY: "empty",
    APPLICATION: "application",
    FOUNDING: "founding",
    MEMBERSHIP: "membership",
    REGISTRATION: "registration",
    RETIREMENT: "retirement",
}


@dataclass(frozen=True, slots=True)
class Tenure:
    """Payload of EMPTY: whose term begins here. It tells a new root which leases were the root's
    own, and are over (R9)."""

    root: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class Founding:
    """Payload of FOUNDING. ``parent_uuid`` names the cluster that a forced root left (R12)."""

    cluster_uuid: str
    parent_uuid: str
    membership: Membership


@dataclass(frozen=True, slots=True)
class Registration:
    """Payload of REGISTRATION: one incarnation of a broker, and who takes over from it (J3)."""

    name: str
    uuid: str
    incarnation: str
    role: str
    addresses: tuple[str, ...]
    machine: str
    failover: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Retirement:
    """Payload of RETIREMENT."""

    name: str
    incarnation: str


def membership_of(entry: Entry) -> Membership | None:
    """The membership that an entry contains; None if it contains none."""
    if entry.kind == MEMBERSHIP:
        return decode(Membership, entry.payload)
    if entry.kind == FOUNDING:
        return decode(Founding, entry.payload).membership
    return None


def payload(value: Tenure | Founding | Membership | Registration | Retirement) -> bytes:
    return encode(value)
