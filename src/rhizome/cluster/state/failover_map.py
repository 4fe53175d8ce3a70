"""Failover map: who takes over from whom (J1 to J4).

A policy names, for one broker, those that take over from it, the best first. It is a function of
the view (all brokers, the oldest first) and of the number of names that are wanted, and of nothing
else: every broker computes the map for itself while it applies an entry, and all must get the same.

Policies are found by name under the entry points `rhizome.failover_policies`. The code that
composes a broker loads them and passes them in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from rhizome.cluster.state.broker_registry import BrokerRecord
from rhizome.errors import RhizomeError

ENTRY_POINTS: Final = "rhizome.failover_policies"
RING: Final = "ring"

FailoverPolicy = Callable[[str, Sequence[BrokerRecord], int], list[str]]


class UnknownPolicyError(RhizomeError):
    """The cluster uses a failover policy that this broker doesn't have, so it can't take part."""


class NamedLoader(Protocol):
    """The part of an entry point that is used here."""

    @property
    def name(self) -> str: ...

    def load(self) -> Any: ...


@dataclass(frozen=True)
class FailoverInfo:
    """A broker that takes over, and where clients find it."""

    broker: str
    addresses: tuple[str, ...]
    machine: str


FailoverMap = dict[str, tuple[FailoverInfo, ...]]


def ring(broker: str, view: Sequence[BrokerRecord], count: int) -> list[str]:
    """The next brokers after this one in order of seniority, wrapping around.

    It never names one on the same machine, which would fall with it, nor one that keeps no queues,
    is to stop or has been away for long. An unknown machine ("") is none that two brokers could
    share.
    """
    names = [each.name for each in view]
    at = names.index(broker)
    machine = view[at].machine
    following = [*view[at + 1 :], *view[:at]]
    fit = [
        each.name
        for each in following
        if each.holds_queues() and (not machine or each.machine != machine)
        if not each.draining and not each.lost
    ]
    return fit[:count]


def load_policies(entry_points: Iterable[NamedLoader]) -> dict[str, FailoverPolicy]:
    """The policies by name, with the ring among them whatever is installed."""
    policies: dict[str, FailoverPolicy] = {RING: ring}
    for entry_point in entry_points:
        policies[entry_point.name] = entry_point.load()
    return policies


def policy_named(policies: Mapping[str, FailoverPolicy], name: str) -> FailoverPolicy:
    """Raises UnknownPolicyError for one that this broker lacks."""
    policy = policies.get(name)
    if policy is None:
        raise UnknownPolicyError(
            f"the cluster's failover policy is '{name}' and this broker has "
            f"{', '.join(sorted(policies))}: install the package that brings it, then start again"
        )
    return policy


def make_map(
    policies: Mapping[str, FailoverPolicy],
    policy_name: str,
    view: Sequence[BrokerRecord],
    copies: int,
    chosen: Mapping[str, tuple[str, ...]],
) -> FailoverMap:
    """The map for a view; ``chosen`` are the lists that people have set."""
    policy = policy_named(policies, policy_name)
    brokers = {each.name: each for each in view}
    made: FailoverMap = {}
    for name in brokers:
        names = chosen.get(name) or policy(name, view, copies - 1)
        present = [each for each in dict.fromkeys(names) if each in brokers and each != name]
        made[name] = tuple(_info(brokers[each]) for each in present)
    return made


def _info(broker: BrokerRecord) -> FailoverInfo:
    return FailoverInfo(broker.name, broker.addresses, broker.machine)
