"""Checks of `broker.cores`: settings that brokers which share one address can't have."""

from __future__ import annotations

from collections.abc import Iterator

from rhizome.server.config.cluster_section import (
    PRIMARY,
    WITNESS,
    ClusterSection,
    check_broker_name,
)
from rhizome.server.config.config_fields import SettingError
from rhizome.server.config.config_sections import BrokerSection, ListenSection


def core_name(name: str, number: int) -> str:
    """The broker of a machine's core: the first has the configured name."""
    return name if number == 1 else f"{name}-{number}"


def cores_contradictions(
    broker: BrokerSection, listen: ListenSection, cluster: ClusterSection
) -> Iterator[tuple[str, str]]:
    """(key, what is wrong) for each fault."""
    if broker.cores == 1:
        return
    try:
        check_broker_name(core_name(broker.name, broker.cores))
    except SettingError as error:
        yield "broker.name", str(error)
    if broker.memory:
        yield (
            "broker.memory",
            f"is true, and broker.cores is {broker.cores}: several brokers are a cluster, and its"
            " primary keeps its votes on disk",
        )
    if cluster.discover:
        yield (
            "cluster.discover",
            f"is given, and broker.cores is {broker.cores}: the brokers of several cores need a"
            " list; use primaries",
        )
    if cluster.role == WITNESS:
        yield "broker.cores", "is more than 1, and a witness serves no applications: leave it out"
    if cluster.connect_policy == "active-only":
        yield (
            "cluster.connect_policy",
            'is "active-only", and the brokers that broker.cores adds hold no queues: they would'
            " send everybody away",
        )
    if cluster.is_clustered and cluster.role == PRIMARY:
        yield from _shared_with_links(broker, listen, cluster)


def _shared_with_links(
    broker: BrokerSection, listen: ListenSection, cluster: ClusterSection
) -> Iterator[tuple[str, str]]:
    """Brokers elsewhere must be able to dial this one, and not just any broker of the machine."""
    own = cluster.address_of(broker.name)
    if own is None or own.path:
        return
    if own.port not in [address.port for address in listen.links if not address.path]:
        yield (
            "listen.links",
            f"doesn't have port {own.port}, at which cluster.primaries says that {broker.name} is"
            f" dialled: the {broker.cores} brokers of this machine share listen.amqp and"
            " listen.tls; give this one a port of its own in cluster.primaries, and list it here",
        )
