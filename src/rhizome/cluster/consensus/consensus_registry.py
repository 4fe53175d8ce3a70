"""Consensus registry: the cluster's UUID, members and brokers, as the committed entries say.

Every broker that has applied the same entries holds the same registry. It is part of snapshots.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from rhizome.cluster.consensus.dataclass_codec import decode, encode
from rhizome.cluster.consensus.log.cluster_store import Entry
from rhizome.cluster.consensus.log.log_entry_payloads import (
    EMPTY,
    FOUNDING,
    MEMBERSHIP,
    REGISTRATION,
    RETIREMENT,
    Founding,
    Registration,
    Retirement,
    Tenure,
)
from rhizome.cluster.consensus.membership import Membership

RETIRED_MAX: Final = 256
NOBODY = Tenure("", "")
NO_MEMBERS = Membership(())


@dataclass(frozen=True, slots=True)
class Registered:
    """A broker in the view. ``seniority`` is the index of its registration: lower is older (R6)."""

    seniority: int
    registration: Registration


@dataclass(frozen=True, slots=True)
class Registry:
    """The cluster as its committed entries describe it.

    Invariant: ``brokers`` are in order of seniority, each name once.
    """

    cluster_uuid: str = ""
    parent_uuid: str = ""
    membership: Membership = NO_MEMBERS
    membership_index: int = 0
    tenure: Tenure = NOBODY
    brokers: tuple[Registered, ...] = ()
    retired: tuple[str, ...] = ()
    """The latest incarnations that were retired: none of them is registered again."""

    def get(self, name: str) -> Registered | None:
        return next((b for b in self.brokers if b.registration.name == name), None)

    def is_registered(self, name: str, incarnation: str) -> bool:
        found = self.get(name)
        return found is not None and found.registration.incarnation == incarnation

    def applied(self, entry: Entry) -> Registry:
        """The registry after a committed entry."""
        if entry.kind == EMPTY:
            return replace(self, tenure=decode(Tenure, entry.payload))
        if entry.kind == FOUNDING:
            founding = decode(Founding, entry.payload)
            return replace(
                self,
                cluster_uuid=founding.cluster_uuid,
                parent_uuid=founding.parent_uuid,
                membership=founding.membership,
                membership_index=entry.index,
            )
        if entry.kind == MEMBERSHIP:
            membership = decode(Membership, entry.payload)
            return replace(self, membership=membership, membership_index=entry.index)
        if entry.kind == REGISTRATION:
            registration = decode(Registration, entry.payload)
            newest = Registered(entry.index, registration)
            return replace(self, brokers=(*self._without(registration.name), newest))
        if entry.kind == RETIREMENT:
            retirement = decode(Retirement, entry.payload)
            if self.is_registered(retirement.name, retirement.incarnation):
                retired = (*self.retired, retirement.incarnation)[-RETIRED_MAX:]
                return replace(self, brokers=self._without(retirement.name), retired=retired)
        return self

    def _without(self, name: str) -> tuple[Registered, ...]:
        return tuple(b for b in self.brokers if b.registration.name != name)


@dataclass(frozen=True, slots=True)
class SnapshotBody:
    """The data of a snapshot: what the core knows, and the application's own bytes."""

    registry: Registry
    application: bytes


def encode_snapshot(registry: Registry, application: bytes) -> bytes:
    return encode(SnapshotBody(registry, application))


def decode_snapshot(data: bytes) -> SnapshotBody:
    return decode(SnapshotBody, data)
