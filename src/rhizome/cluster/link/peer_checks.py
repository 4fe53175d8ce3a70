"""Peer checks: who may link with whom. Both ends check; a refusal names what each of them has."""

from __future__ import annotations

from rhizome.cluster.link.broker_hello import SECONDARY, Hello, negotiated_version


def refusal(me: Hello, peer: Hello) -> str:
    """Why ``peer`` and this broker can't be linked; empty if they can."""
    for check in (_version, _itself, _same_identity, _same_name, _cluster, _primaries, _roles):
        reason = check(me, peer)
        if reason:
            return reason
    return ""


def _version(me: Hello, peer: Hello) -> str:
    if negotiated_version(me.versions, peer.versions):
        return ""
    return (
        f"broker {me.name!r} speaks {_versions(me)} of the link protocol and broker "
        f"{peer.name!r} {_versions(peer)}: upgrade one release at a time"
    )


def _versions(hello: Hello) -> str:
    oldest, newest = hello.versions
    return f"version {newest}" if oldest == newest else f"versions {oldest} to {newest}"


def is_itself(me: Hello, peer: Hello) -> bool:
    return (peer.uuid, peer.incarnation) == (me.uuid, me.incarnation)


def _itself(me: Hello, peer: Hello) -> str:
    return f"this is broker {me.name!r} itself" if is_itself(me, peer) else ""


def _same_identity(me: Hello, peer: Hello) -> str:
    if peer.uuid != me.uuid:
        return ""
    return (
        f"brokers {me.name!r} and {peer.name!r} have one identity, {me.uuid}: one runs on a copy "
        "of the other's store"
    )


def _same_name(me: Hello, peer: Hello) -> str:
    return name_taken(me, peer) if peer.name == me.name else ""


def another_answers(name: str, address: str, listed: bool, peer: Hello) -> str:
    """Why another broker than the expected one answered. Brokers of one machine may share an
    address that both tell the others; that is no mistake, unless a list has it as the address of a
    primary."""
    if not listed and address in peer.addresses:
        return f"brokers {name!r} and {peer.name!r} share {address}, and {peer.name!r} answered"
    return (
        f"broker {name!r} was expected at {address}, and {peer.name!r} answers: correct the list "
        "of primaries"
    )


def name_taken(known: Hello, other: Hello) -> str:
    """The refusal of a second broker with the same name (R7)."""
    return f"two brokers are named {known.name!r}: {known.uuid} and {other.uuid}"


def _cluster(me: Hello, peer: Hello) -> str:
    """The refusal of a store of another cluster, with both named (R7). An empty one may join."""
    if not me.cluster_uuid or not peer.cluster_uuid or me.cluster_uuid == peer.cluster_uuid:
        return ""
    return (
        f"broker {me.name!r} belongs to cluster {me.cluster_uuid} and broker {peer.name!r} to "
        f"cluster {peer.cluster_uuid}"
    )


def _primaries(me: Hello, peer: Hello) -> str:
    """Before there is a cluster, all brokers must have the same list of primaries (R7)."""
    if me.cluster_uuid or peer.cluster_uuid or not me.votes() or not peer.votes():
        return ""
    if me.primaries_hash == peer.primaries_hash:
        return ""
    return (
        f"brokers {me.name!r} and {peer.name!r} have different lists of primaries (hashes "
        f"{me.primaries_hash[:16]} and {peer.primaries_hash[:16]})"
    )


def _roles(me: Hello, peer: Hello) -> str:
    if me.role != SECONDARY or peer.role != SECONDARY:
        return ""
    return f"{me.name!r} and {peer.name!r} are both secondaries, which are linked to primaries only"
