"""A group's home and a standby of it, with the way between them in a test's hand."""

from __future__ import annotations

from rhizome.cluster.home.edge_reconciliation import EdgeSessions
from rhizome.cluster.home.replicated_group_log import ReplicatedGroupLog
from rhizome.cluster.state.cluster_commands import WHOLE, AppointHome, ClusterCommand, ForceHome
from rhizome.cluster.state.groups_and_placement import Group
from rhizome.testing.in_memory_cluster import CoreCluster, PipeEnd


class Standby:
    """The copy of a queue's group at one broker, whole when this begins.

    ``hold`` keeps what the home sends there under way, ``hold_answers`` what it answers: nothing
    new is committed, shown or confirmed until that is let go.
    """

    def __init__(self, cluster: CoreCluster, queue: str, name: str) -> None:
        self.cluster = cluster
        self.queue = queue
        self.name = name
        self.number = cluster[name].queue(queue).definition.group
        self._held: list[tuple[PipeEnd, list[bytes]]] = []
        cluster.advance_until(self._is_whole)

    def _is_whole(self) -> bool:
        incarnation = self.cluster[self.name].node.me.incarnation
        members = [(each.broker, each.incarnation, each.copy) for each in self.group.in_sync]
        return (self.name, incarnation, WHOLE) in members and not self.log.silent

    @property
    def group(self) -> Group:
        """As the member knows it that has applied most."""
        known = [each.node.state.groups.groups[self.number] for each in self.cluster.running()]
        return max(known, key=lambda group: (group.epoch, group.version))

    @property
    def log(self) -> ReplicatedGroupLog:
        return self.cluster[self.group.home].node.roles.homes[self.number].log

    @property
    def tenure(self) -> EdgeSessions:
        return self.cluster[self.group.home].node.tenures.tenures[self.number]

    def hold(self, sender: str = "") -> None:
        """Let what the home, or another broker, sends to the standby wait."""
        self._hold(sender or self.group.home, self.name)

    def hold_answers(self) -> None:
        """Let what the standby sends to the home wait: it has what the home doesn't know it has."""
        self._hold(self.name, self.group.home)

    def _hold(self, sender: str, receiver: str) -> None:
        [end] = [each for each in self.cluster[sender].ends if leads_to(each, receiver)]
        waiting: list[bytes] = []
        end.write = waiting.extend  # type: ignore[method-assign]
        self._held.append((end, waiting))

    def let_go(self) -> None:
        for end, waiting in self._held:
            del end.write  # type: ignore[method-assign]
            end.write(waiting)
            end.owner.busy = True
        self._held = []
        self.cluster.settle()

    def appoint(self) -> None:
        """Make the standby the home of a new epoch, whatever the copy has; the old home lives."""
        group = self.group
        incarnation = self.cluster[self.name].node.me.incarnation
        self._order(AppointHome(group.id, self.name, incarnation, group.epoch, group.version))

    def force(self) -> None:
        """The same, though it is no longer in sync."""
        incarnation = self.cluster[self.name].node.me.incarnation
        epoch, version = self.group.epoch, self.group.version
        self._order(ForceHome(self.number, self.name, incarnation, epoch, version, epoch))

    def _order(self, command: ClusterCommand) -> None:
        root = self.cluster[self.cluster.root()]
        root.node.propose(command, None)
        root.settle()
        assert self.group.home == self.name
        # What the old home sends now is of an older epoch.
        self.let_go()

    def take_over(self) -> None:
        """The same, until the new home has heard everybody and goes on."""
        self.appoint()
        self.cluster.advance_until(lambda: not self.log.silent)
        self.cluster.settle()


def leads_to(end: PipeEnd, name: str) -> bool:
    return end.other is not None and end.other.owner.name == name
