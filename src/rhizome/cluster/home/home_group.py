"""Home group: this broker as the home of one group, for one epoch (G1).

It begins *recovering* if the group has a past. It confirms and shows nothing before its copies have
answered or are left out (G7), and before every broker that may hold messages of the group has
attached, or has had the duration of a lease to do so (A2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from rhizome.cluster.consensus.settings import EXCUSES_MAX
from rhizome.cluster.home.planned_transfer import Transfer
from rhizome.cluster.home.settings import HomeSettings
from rhizome.cluster.link.broker_hello import FETCHES
from rhizome.cluster.replication.broker_adapters import HomeAdapter
from rhizome.cluster.replication.replicable_log import ReplicableLog
from rhizome.cluster.replication.replicator import Replicator
from rhizome.cluster.replication.replicator_port import ReplicatorSettings
from rhizome.cluster.state.groups_and_placement import Group, wanted_standbys

if TYPE_CHECKING:
    from rhizome.cluster.home.edge_reconciliation import EdgeSessions
    from rhizome.cluster.link.link import Link
    from rhizome.cluster.node import Node


@final
class HomeGroup:
    """This broker as the home of one group, for one epoch.

    Invariant: ``tenure.recovering`` and ``log.recovering`` are the same unless it ``failed``.
    """

    def __init__(
        self,
        node: Node,
        group: Group,
        log: ReplicableLog,
        whole: bool,
        tenure: EdgeSessions,
        settings: HomeSettings,
    ) -> None:
        """``whole``: the copy that it begins with lacks nothing."""
        self.node = node
        self.group = group
        self.log = log
        self.tenure = tenure
        port = HomeAdapter(node, group.id)
        port.home = self
        self.settings = settings
        patience = ReplicatorSettings(
            settings.sync_timeout_ms, backfill_bytes_max=settings.catch_up_bytes
        )
        self.copies = Replicator(log, whole, port, patience, node.now_ms)
        self.begun_ms = node.now_ms
        self.attach_ms = node.now_ms + settings.attach_patience_ms
        self.excuses = 0
        self.failed = False
        self.transfer = Transfer(self)
        for link in node.links.open_links():
            self.link_up(link)
        self.changed(group)

    def link_up(self, link: Link) -> None:
        self.copies.link_up(link.name, link.peer.incarnation)
        if FETCHES in link.peer.features:
            self.copies.fetches.link_up(link.name)

    def changed(self, group: Group) -> None:
        """The group, or the set of brokers, has changed to what is committed now."""
        self.group = group
        self.copies.group_changed(group)
        self.copies.wanted(wanted_standbys(group, self.node.state.registry))

    def end_turn(self) -> None:
        """Replicate what this turn has recorded; go on with whatever waited for the copies."""
        if self.failed:
            return
        log = self.log
        memory, disk, visible = log.committed_memory, log.committed_disk, log.visible
        if log.recovering:
            self._update_recovered()
        self.copies.end_turn(self.node.now_ms)
        self.transfer.run()
        if log.committed_memory != memory or log.committed_disk != disk or log.visible != visible:
            self.node.broker.committed()

    def fail(self) -> None:
        """A fault has left this home in the middle of something.

        As if it recovered, it shows and confirms nothing any more, until the broker is started
        again or another one is home. The root is told of it, and appoints a standby that is in
        sync.
        """
        self.failed = True
        self.log.recovering = True
        self.log.update_visible()

    def rests(self) -> bool:
        """Whether there is nothing to do before something happens to the group. Only streams are
        asked: other groups are few, and something happens to them all the time."""
        log = self.log
        if not log.stored or log.recovering or self.transfer.aside or self.group.moving_to:
            return False
        last = log.next_index - 1
        return log.disk() >= last and log.committed_disk >= last and self.copies.rests()

    def _update_recovered(self) -> None:
        if not self.copies.settled() or not self._all_attached():
            return
        self.log.recovering = False
        self.node.broker.takeover_times.add(self.node.now_ms - self.begun_ms, 1)
        self.log.update_visible()
        self.tenure.resolve_all()

    def _all_attached(self) -> bool:
        if self.node.now_ms >= self.attach_ms:
            return True
        return not self.tenure.rules.lists_awaited or not self.missing_edges()

    def missing_edges(self) -> list[str]:
        """Brokers that may hold messages of the group and have not attached."""
        attached = self.tenure.attached()
        return [
            broker.name
            for broker in self.node.state.registry.brokers.values()
            if broker.incarnation and not broker.away and broker.name != self.node.me.name
            if broker.name not in attached
        ]

    def stood_still(self, away_ms: int) -> None:
        """This broker stood still: brokers that answered or attached meanwhile aren't heard yet,
        and must not be taken for silent."""
        self.copies.stood_still(away_ms)
        if self.log.recovering and self.excuses < EXCUSES_MAX:
            self.excuses += 1
            self.attach_ms += away_ms

    def tick(self) -> None:
        self.copies.tick(self.node.now_ms)

    def stall(self) -> str:
        """What publishers of this group wait for; empty if nothing unusual."""
        if self.failed:
            return (
                f"the home of group {self.group.id} had a fault; if no standby is in sync to take"
                f" over, {self.node.me.name} must be started again"
            )
        if self.copies.in_sync.too_few():
            return f"group {self.group.id} has fewer copies than its policy demands"
        if self.copies.congested:
            waits_for = ", ".join(self.copies.status().waits_for)
            return f"the copies of group {self.group.id} at {waits_for} are slow"
        return ""
