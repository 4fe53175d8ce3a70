"""Events of a broker's place in the cluster, for the driver of its consensus core."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class BecameRoot:
    """This broker was elected. It acts once ``RootReady`` says that its term has begun."""

    term: int


@dataclass(frozen=True, slots=True)
class RootReady:
    """The first entry of the root's own term is committed: it knows all that was committed (R2)."""

    term: int


@dataclass(frozen=True, slots=True)
class Resigned:
    term: int
    reason: str


@dataclass(frozen=True, slots=True)
class RootKnown:
    """Another broker is root."""

    name: str
    term: int


@dataclass(frozen=True, slots=True)
class RootLost:
    """The root has been silent for longer than its lease lasts, or has abdicated."""

    name: str


@dataclass(frozen=True, slots=True)
class LeaseGained:
    """This broker may deliver, confirm and admit publishes (R9)."""


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """This broker may not: it is isolated, or its root is new."""


@dataclass(frozen=True, slots=True)
class BrokerLeaseLive:
    """At the root: a lease was granted to a broker that had none."""

    name: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class BrokerLeaseOver:
    """At the root: this incarnation holds no lease any more, so its homes may be replaced."""

    name: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class ClusterNamed:
    """The store belongs to this cluster from now on; hellos must say so. After a forced root
    (``parent_uuid``) every link must be closed (R12)."""

    cluster_uuid: str
    parent_uuid: str


@dataclass(frozen=True, slots=True)
class PeerRefused:
    """A broker that linked isn't of this cluster; the link should be closed with the reason."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class IncarnationRetired:
    """This incarnation is out of the registry for ever: go on as a new one."""

    incarnation: str


@dataclass(frozen=True, slots=True)
class VoterRests:
    """At the root: a voter was away for so long that it does not count until it is back."""

    name: str
    voters: int


@dataclass(frozen=True, slots=True)
class VoterWakes:
    """At the root: a voter that rested is back and is to count again."""

    name: str
    voters: int


Event: TypeAlias = (
    BecameRoot
    | RootReady
    | Resigned
    | RootKnown
    | RootLost
    | LeaseGained
    | LeaseLost
    | BrokerLeaseLive
    | BrokerLeaseOver
    | ClusterNamed
    | PeerRefused
    | IncarnationRetired
    | VoterRests
    | VoterWakes
)
