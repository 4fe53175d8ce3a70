"""Cluster info: what operators are shown of a cluster, as the consensus core and the links know
it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rhizome.cluster.consensus.consensus_output import Status
from rhizome.cluster.consensus.consensus_registry import Registered
from rhizome.cluster.link.broker_hello import PRIMARY, SECONDARY, Hello
from rhizome.management.cluster_view import (
    ACTIVE,
    DRAINING,
    ISOLATED,
    JOINING,
    READY,
    STARTING,
    STOPPED,
    BrokerInfo,
    ClusterInfo,
    Quorum,
)
from rhizome.server.operator_views.group_info import Duties


@dataclass(frozen=True, slots=True)
class ClusterKnowledge:
    """What one broker knows at a moment.

    ``hellos``: of this broker, and of those it has links to. ``connections`` and ``duties`` are by
    broker, as far as they are known here: applications, and its roles in groups. ``draining``: the
    brokers that are to stop.
    """

    status: Status
    hellos: Mapping[str, Hello]
    connections: Mapping[str, int] = field(default_factory=dict)
    duties: Mapping[str, Duties] = field(default_factory=dict)
    draining: tuple[str, ...] = ()

    @property
    def me(self) -> Hello:
        return self.hellos[self.status.name]


def cluster_info(known: ClusterKnowledge, cluster_name: str) -> ClusterInfo:
    status = known.status
    quorum = status.quorum
    return ClusterInfo(
        status.cluster_uuid,
        cluster_name,
        status.term,
        status.root or None,
        Quorum(quorum.defined, quorum.active, quorum.needed),
        tuple(_notes(known)),
    )


def _notes(known: ClusterKnowledge) -> Iterator[str]:
    status = known.status
    if status.waits_for:
        yield f"{status.name} waits for {status.waits_for}"
    if status.parent_uuid:
        yield f"this cluster was forced out of cluster {status.parent_uuid}"
    if status.joint:
        yield "a change of the primaries is under way"
    for member in status.members:
        if not member.bound and status.cluster_uuid:
            yield f"{member.name} is a primary that has not come yet"
        elif member.linked and not member.counts:
            yield f"{member.name} has come with another store, and votes once it is admitted"
        if member.rests:
            yield (
                f"{member.name} has no vote: it was away for longer than cluster.last_man_standing,"
                " and votes again when it is back and has caught up"
            )
        elif not member.votes:
            yield (
                f"{member.name} has no vote: it shares its machine with another primary"
                " (cluster.machine)"
            )


def broker_infos(known: ClusterKnowledge) -> tuple[BrokerInfo, ...]:
    """All brokers that are registered, should be there or are linked, in order of seniority."""
    registered = {each.registration.name: each for each in known.status.view}
    names = [*registered, *(member.name for member in known.status.members), *sorted(known.hellos)]
    return tuple(_broker(known, name, registered.get(name)) for name in dict.fromkeys(names))


def _broker(known: ClusterKnowledge, name: str, registered: Registered | None) -> BrokerInfo:
    hello = known.hellos.get(name)
    machine, role = "", PRIMARY
    addresses: tuple[str, ...] = ()
    if hello is not None:
        machine, role, addresses = hello.machine, hello.role, hello.addresses
    elif registered is not None:
        entry = registered.registration
        machine, role, addresses = entry.machine, entry.role, entry.addresses
    duties = known.duties.get(name, Duties())
    return BrokerInfo(
        name,
        role,
        _status(known, name, role, registered),
        registered.seniority if registered is not None else 0,
        machine,
        addresses,
        known.connections.get(name, 0),
        linked=hello is not None,
        draining=name in known.draining,
        homes=duties.homes,
        stuck=duties.stuck,
        copies=duties.copies,
    )


def _status(known: ClusterKnowledge, name: str, role: str, registered: Registered | None) -> str:
    hello = known.hellos.get(name)
    is_me = name == known.status.name
    if hello is None:
        # Secondaries have no links to each other, so the cluster state has to do.
        apart = known.me.role == role == SECONDARY and registered is not None
        return ACTIVE if apart else STOPPED
    if registered is None or registered.registration.incarnation != hello.incarnation:
        return STARTING if is_me and not known.status.cluster_uuid else JOINING
    if is_me and not known.status.has_lease:
        return ISOLATED
    if name in known.draining:
        return DRAINING
    return ACTIVE if role == SECONDARY or known.duties.get(name, Duties()).homes else READY
