"""A copy of a group that is fed by hand: what a standby has is what the test says it has."""

from __future__ import annotations

from rhizome.cluster.commands import WHOLE, AppointHome, ClusterCommand, Member, SetInSync
from rhizome.cluster.copies.copy import Copy
from rhizome.cluster.grouplog import ReplicatedLog
from rhizome.cluster.placement import Group
from rhizome.testing.cluster import CoreCluster


class Follower:
    """The copy of a queue's group at one broker, which the home need not wait for.

    The home commits what it has alone, unless a test says otherwise; the copy has what was shipped.
    """

    def __init__(self, cluster: CoreCluster, queue: str, standby: str) -> None:
        self.cluster = cluster
        self.standby = standby
        self.number = cluster[standby].queue(queue).definition.group
        log = self.log
        log.shipping = True
        self.copy.begin_epoch(log.epoch, log.next_index)
        self.copy.advance(log.next_index - 1)
        self.make_member()

    @property
    def group(self) -> Group:
        """As the member knows it that has applied most."""
        known = [each.node.state.groups.groups[self.number] for each in self.cluster.running()]
        return max(known, key=lambda group: (group.epoch, group.version))

    @property
    def log(self) -> ReplicatedLog:
        return self.cluster[self.group.home].node.roles.homes[self.number].log

    @property
    def copy(self) -> Copy:
        return self.cluster[self.standby].node.roles.copy_of(self.number)

    def make_member(self) -> None:
        incarnation = self.cluster[self.standby].node.me.incarnation
        members = (Member(self.standby, incarnation, WHOLE),)
        group = self.group
        self.propose(SetInSync(group.id, members, group.epoch, group.version))
        assert self.group.in_sync == members

    def propose(self, command: ClusterCommand) -> None:
        root = self.cluster[self.cluster.root()]
        root.node.propose(command, None)
        root.settle()

    def ship(self) -> None:
        """Bring the copy to where the home is."""
        batch = self.log.take_batch()
        if batch is not None:
            data = b"".join(batch.parts)
            self.copy.apply(data, 0, len(data))
            self.copy.advance(batch.last)
            self.cluster[self.standby].settle()

    def take_over(self) -> None:
        """Make the standby the home of a new epoch, whatever the copy has; the old home lives."""
        group = self.group
        incarnation = self.cluster[self.standby].node.me.incarnation
        self.propose(AppointHome(group.id, self.standby, incarnation, group.epoch, group.version))
        assert self.group.home == self.standby
