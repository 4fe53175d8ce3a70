"""The cluster as a broker of it shows it to people, and the changes that they order."""

from __future__ import annotations

import asyncio

from rhizome.cluster.consensus import ChangeRefused as Refused
from rhizome.cluster.consensus import NotRoot
from rhizome.cluster.node import Node
from rhizome.management.clusterview import (
    ADD_PRIMARY,
    FORCE_ROOT,
    Change,
    ChangeRefused,
    ClusterDocument,
    FailoverInfo,
    GroupInfo,
    Preview,
)
from rhizome.server.clusterpicture import Known, broker_infos, cluster_info
from rhizome.server.clusterpreview import basis_of, preview_of
from rhizome.server.config import Config

COMMIT_POLL_S = 0.02
COMMIT_PATIENCE_S = 10.0


def known_to(node: Node) -> Known:
    """What the node knows now."""
    hellos = {node.me.name: node.me}
    connections: dict[str, int] = {}
    news = node.gossip.all_news()
    for link in node.links.open_links():
        hellos[link.name] = link.peer
    for name, told in news.items():
        count = told.get("connections", 0)
        connections[name] = count if isinstance(count, int) else 0
    homes: dict[str, int] = {}
    for group in node.state.groups.groups.values():
        homes[group.home] = homes.get(group.home, 0) + 1
    return Known(node.consensus.status(), hellos, connections, homes)


class NodeView:
    """Implements ``ClusterView``."""

    def __init__(self, node: Node, config: Config) -> None:
        self._node = node
        self._name = config.cluster.name or config.broker.name

    async def cluster_document(self) -> ClusterDocument:
        node = self._node
        known = known_to(node)
        return ClusterDocument(
            node.me.name,
            cluster_info(known, self._name),
            broker_infos(known),
            self._groups(known),
            {
                name: tuple(
                    FailoverInfo(info.broker, info.addresses, info.machine) for info in infos
                )
                for name, infos in node.state.failover_map.items()
            },
        )

    def _groups(self, known: Known) -> tuple[GroupInfo, ...]:
        node = self._node
        news = node.gossip.all_news()
        found = []
        for group in node.state.groups.groups.values():
            counts = news.get(group.home, {}).get("messages", {})
            count = counts.get(str(group.id), 0) if isinstance(counts, dict) else 0
            reachable = group.home in known.hellos
            found.append(
                GroupInfo(
                    group.id,
                    group.home if reachable else None,
                    group.epoch,
                    group.failover,
                    tuple(member.broker for member in group.in_sync),
                    node.state.groups.queues.get(group.id, 0),
                    count if isinstance(count, int) else 0,
                )
            )
        return tuple(found)


class NodeControl:
    """Implements ``ClusterControl``."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def preview(self, change: Change) -> Preview:
        return preview_of(change, known_to(self._node))

    async def execute(self, change: Change, basis: str) -> str:
        node = self._node
        if basis_of(change, node.consensus.status()) != basis:
            raise ChangeRefused("the cluster has changed since that was shown: look again")
        refusal = self.preview(change).refusal
        if refusal:
            raise ChangeRefused(refusal)
        try:
            if change.kind == FORCE_ROOT:
                node.consensus.force_root(node.now_ms)
                return f"{node.me.name} is the root of a new cluster"
            if change.kind == ADD_PRIMARY:
                index = node.consensus.add_primary(change.broker, node.now_ms)
                done = f"{change.broker} is a primary now"
            else:
                index = node.consensus.remove_primary(change.broker, node.now_ms)
                done = f"{change.broker} is no longer a primary"
        except (Refused, NotRoot) as error:
            raise ChangeRefused(str(error)) from error
        await self._committed(index)
        return done

    async def _committed(self, index: int) -> None:
        waited_s = 0.0
        while self._node.applied.index < index:
            if waited_s >= COMMIT_PATIENCE_S:
                raise ChangeRefused(
                    "the change was proposed and is not committed yet: look at the status"
                )
            await asyncio.sleep(COMMIT_POLL_S)
            waited_s += COMMIT_POLL_S
