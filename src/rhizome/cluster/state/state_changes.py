"""State changes: what an entry changed in the cluster's brokers and groups.

A part that wants to know of changes, such as of the failover map (J2), looks at the facts of what
was applied; they are the same on every broker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rhizome.cluster.state.broker_registry import BrokerRecord
    from rhizome.cluster.state.groups_and_placement import Group


@dataclass(frozen=True)
class ClusterFact:
    """Something that changed. Facts are listed in the order in which they came about."""


@dataclass(frozen=True)
class BrokerChanged(ClusterFact):
    """A broker has registered, or its record has changed for some other reason.

    ``retired`` is the incarnation that is over because of that ("" if none is).
    """

    broker: BrokerRecord
    retired: str = ""


@dataclass(frozen=True)
class BrokerRemoved(ClusterFact):
    """A broker is no longer known; this is how it was."""

    broker: BrokerRecord


@dataclass(frozen=True)
class GroupChanged(ClusterFact):
    """A group is new, or has another home, epoch, failover list or in-sync set."""

    group: Group


@dataclass(frozen=True)
class GroupRemoved(ClusterFact):
    group: Group


@dataclass(frozen=True)
class FailoverMapChanged(ClusterFact):
    """Everything that clients are told about failover may have changed."""


@dataclass(frozen=True)
class SettingsChanged(ClusterFact):
    """The settings that all brokers share."""
