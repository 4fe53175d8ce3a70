"""Learning: what this broker does when it has learnt something about brokers and groups.

Of groups most entries change one: there may be thousands, one per stream, and when a broker dies
each of them has several entries. So only what an entry was about is looked at, unless brokers have
changed too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rhizome.cluster.departing import forget_departed
from rhizome.cluster.facts import ClusterFact, GroupChanged, GroupRemoved
from rhizome.cluster.placement import STREAMS_FROM

if TYPE_CHECKING:
    from rhizome.broker.queue import Queue
    from rhizome.cluster.node import Node


class Learning:
    def __init__(self, node: Node) -> None:
        self._node = node

    def learn(self, facts: Iterable[ClusterFact]) -> None:
        """An entry has changed this."""
        groups: dict[int, None] = {}
        for fact in facts:
            if not isinstance(fact, (GroupChanged, GroupRemoved)):
                self.everything()
                return
            groups[fact.group.id] = None
        self._node.roles.update_groups(groups)
        self.homes_changed(groups)

    def everything(self) -> None:
        """Brokers or groups are others than before: learn where homes and brokers are."""
        node = self._node
        node.roles.update()
        known = node.state.groups.groups
        self.homes_changed([*known, *[each for each in node.edge.groups if each not in known]])
        node.tenures.brokers_changed()
        for record in node.state.registry.view():
            if record.name != node.me.name:
                node.links.learn(record.name, record.addresses, record.role)
        forget_departed(node)
        node.telling.changed()

    def homes_changed(self, groups: Iterable[int]) -> None:
        """Homes may be elsewhere than before, or here: queues and routes lead there."""
        node = self._node
        known = node.state.groups.groups
        others = False
        for number in groups:
            group = known.get(number)
            if group is None and number >= STREAMS_FROM:
                self._ended(number)
            if group is not None and not node.roles.is_home(number):
                home = group.home if group.home != node.me.name else ""
                neighbour = node.neighbour(home) if home else None
                node.remote(number).home_is(neighbour, group.epoch)
            others = others or group is None or not group.stream
        for queue in self._queues(groups, others):
            queue.away = node.away(queue)
        for vhost in node.broker.state.vhosts.values():
            vhost.router.epoch += 1

    def _ended(self, number: int) -> None:
        """The group of a stream is gone."""
        self._node.edge.end(number)
        for neighbour in self._node.neighbours.values():
            if neighbour.taking is not None:
                neighbour.taking.attachments.pop(number, None)

    def _queues(self, groups: Iterable[int], others: bool) -> list[Queue]:
        """The queues of some groups, or more; ``others``: one of them is no stream's."""
        if others:
            return list(self._node.broker.shared.values())
        streams = self._node.roles.streams
        return [queue for queue in map(streams.queue_of, groups) if queue is not None]
