"""State listener: what this broker does when the cluster state of brokers and groups has changed.

Most entries change one group. There may be thousands of groups, one per stream, and when a broker
dies each of them has several entries. So only the groups that an entry was about are looked at,
unless brokers have changed too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from rhizome.cluster.state.groups_and_placement import STREAMS_FROM
from rhizome.cluster.state.state_changes import ClusterFact, GroupChanged, GroupRemoved

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.cluster_port import Away
    from rhizome.broker.queue.queue import Queue
    from rhizome.cluster.clients.failover_map_push import FailoverMapPush
    from rhizome.cluster.edge.edge import Edge
    from rhizome.cluster.edge.edge_group import EdgeGroup
    from rhizome.cluster.group_roles import GroupRoles
    from rhizome.cluster.home.edge_reconciliation import EdgeSessionsByGroup
    from rhizome.cluster.link.broker_hello import Hello
    from rhizome.cluster.link.link_manager import LinkTable
    from rhizome.cluster.peer_frame_dispatch import PeerBroker
    from rhizome.cluster.state.cluster_state import ClusterState


class ListenerNode(Protocol):
    """What follows from a change of brokers and groups happens to this."""

    broker: Broker
    me: Hello
    state: ClusterState
    links: LinkTable
    roles: GroupRoles
    edge: Edge
    tenures: EdgeSessionsByGroup
    peer_brokers: dict[str, PeerBroker]
    failover_map_push: FailoverMapPush
    down_since_ms: dict[str, int]

    def away(self, queue: Queue) -> Away | None: ...
    def edge_group(self, group: int) -> EdgeGroup: ...
    def peer_broker(self, name: str) -> PeerBroker: ...


def forget_departed_brokers(node: ListenerNode) -> None:
    """Forget the brokers that are gone for good."""
    for name in dict.fromkeys([*node.links.peers, *node.peer_brokers]):
        if _is_gone(node, name):
            node.links.forget(name)
            node.peer_brokers.pop(name, None)
            node.down_since_ms.pop(name, None)
            for home in node.roles.homes.values():
                home.copies.forget(name)


def _is_gone(node: ListenerNode, name: str) -> bool:
    peer = node.links.peers.get(name)
    if name in node.state.registry.brokers or (peer is not None and peer.configured):
        return False
    peer_broker = node.peer_brokers.get(name)
    # The link may be one over which its broker is only now joining.
    is_linked = node.links.link_to(name) is not None
    return not is_linked and (peer_broker is None or not node.edge.at_home(peer_broker))


class StateListener:
    def __init__(self, node: ListenerNode) -> None:
        self._node = node

    def learn(self, facts: Iterable[ClusterFact]) -> None:
        """Act on what an entry has changed."""
        groups: dict[int, None] = {}
        for fact in facts:
            if not isinstance(fact, (GroupChanged, GroupRemoved)):
                self.everything()
                return
            groups[fact.group.id] = None
        self._node.roles.update_groups(groups)
        self.homes_changed(groups)

    def everything(self) -> None:
        """Brokers or groups have changed: learn where homes and brokers are."""
        node = self._node
        node.roles.update()
        known = node.state.groups.groups
        self.homes_changed([*known, *[each for each in node.edge.groups if each not in known]])
        node.tenures.brokers_changed()
        for record in node.state.registry.view():
            if record.name != node.me.name:
                node.links.learn(record.name, record.addresses, record.role)
        forget_departed_brokers(node)
        node.failover_map_push.changed()

    def homes_changed(self, groups: Iterable[int]) -> None:
        """Homes may be elsewhere than before, or here: lead queues and routes there."""
        node = self._node
        known = node.state.groups.groups
        others = False
        for number in groups:
            group = known.get(number)
            if group is None and number >= STREAMS_FROM:
                self._ended(number)
            if group is not None and not node.roles.is_home(number):
                home = group.home if group.home != node.me.name else ""
                peer_broker = node.peer_broker(home) if home else None
                node.edge_group(number).home_is(peer_broker, group.epoch)
            is_stream = number >= STREAMS_FROM if group is None else group.stream
            others = others or not is_stream
        for queue in self._queues(groups, others):
            queue.away = node.away(queue)
        for vhost in node.broker.state.vhosts.values():
            vhost.router.epoch += 1

    def _ended(self, number: int) -> None:
        """The group of a stream is gone."""
        self._node.edge.end(number)
        for peer_broker in self._node.peer_brokers.values():
            if peer_broker.forward_receiver is not None:
                peer_broker.forward_receiver.attachments.pop(number, None)

    def _queues(self, groups: Iterable[int], others: bool) -> list[Queue]:
        """The queues of some groups, or more; ``others``: one of the groups is not a stream's."""
        if others:
            return list(self._node.broker.shared.values())
        streams = self._node.roles.streams
        return [queue for queue in map(streams.queue_of, groups) if queue is not None]
