"""Node port: what this broker's roles in groups need of its node. Compiled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mypy_extensions import mypyc_attr

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.cluster_port import Waiter
    from rhizome.broker.metadata.metadata_commands import Command
    from rhizome.cluster.link.link_manager import LinkTable
    from rhizome.cluster.peer_link_state import Applied
    from rhizome.cluster.state.cluster_state import ClusterState
    from rhizome.journal.salvaged_messages import SalvageManifest


@mypyc_attr(allow_interpreted_subclasses=True)
class NodePort:
    """The node, as the homes, standbys and transactions of its broker see it. ``name`` and
    ``incarnation`` are those of this broker; ``applied`` is how far it has applied the cluster's
    log."""

    broker: Broker
    name: str
    incarnation: str
    state: ClusterState
    applied: Applied

    def __init__(
        self, broker: Broker, name: str, incarnation: str, state: ClusterState, applied: Applied
    ) -> None:
        self.broker = broker
        self.name = name
        self.incarnation = incarnation
        self.state = state
        self.applied = applied

    def now_ms(self) -> int:
        raise NotImplementedError

    def is_ready(self) -> bool:
        """Whether this broker is registered, and has applied what was committed before."""
        raise NotImplementedError

    def links(self) -> LinkTable:
        raise NotImplementedError

    def propose(self, command: Command, waiter: Waiter | None) -> None:
        raise NotImplementedError

    def absent_clients(self, group: int) -> dict[str, str]:
        """The clients that consumed from a group, can resume, and have lost their broker, each with
        the incarnation of that broker."""
        raise NotImplementedError

    def homes_changed(self, groups: Iterable[int]) -> None:
        """The home of these groups is elsewhere than before, or here."""
        raise NotImplementedError

    def salvaged(self, about: SalvageManifest) -> None:
        """Messages that a copy had to give up were saved (G8)."""
        raise NotImplementedError
