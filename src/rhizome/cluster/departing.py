"""Departing: what is forgotten of brokers that the cluster doesn't know any more.

Secondaries come and go without a configuration change, under new names perhaps each time. One that
is in neither the registry nor the configuration, and has no link, is nobody's neighbour: it is not
dialled, and nothing is kept for it. If it comes back it links by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rhizome.cluster.node import Node


def forget_departed(node: Node) -> None:
    """Forget the brokers that are gone for good."""
    for name in dict.fromkeys([*node.links.peers, *node.neighbours]):
        if _is_gone(node, name):
            node.links.forget(name)
            node.neighbours.pop(name, None)
            node.down_since_ms.pop(name, None)
            for home in node.roles.homes.values():
                home.copies.forget(name)


def _is_gone(node: Node, name: str) -> bool:
    peer = node.links.peers.get(name)
    if name in node.state.registry.brokers or (peer is not None and peer.configured):
        return False
    neighbour = node.neighbours.get(name)
    # The link may be one that its broker is only now joining with.
    is_linked = node.links.link_to(name) is not None
    return not is_linked and (neighbour is None or not node.edge.at_home(neighbour))
