"""Groups and placement: which broker is the home of which shared queues.

With the placement `spread` every primary brings a group of its own when it registers, and a new
queue goes to the group with the fewest queues, or where its declarer asks (`x-group`, or `group` in
a policy: a broker's name or a group's number). With `root` there is one group, and its home follows
the root. Witnesses and secondaries bring none.

All of this is decided while an entry is applied, from what was applied before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rhizome.broker.definitions import QueueDefinition
from rhizome.broker.outcome import Fact, QueueCreated, QueueDeleted
from rhizome.broker.state import State
from rhizome.broker.words import queue_resource
from rhizome.cluster.commands import (
    DISK,
    ROOT,
    SPREAD,
    WHOLE,
    AppointHome,
    Member,
    SetInSync,
)
from rhizome.cluster.facts import ClusterFact, GroupChanged, GroupRemoved
from rhizome.cluster.failover import FailoverMap
from rhizome.cluster.registry import BrokerRecord, Registry
from rhizome.errors import NotFound, PreconditionFailed


@dataclass(frozen=True)
class Group:
    """A set of shared queues with one home.

    ``origin`` is the broker that brought the group. The home is one incarnation of a broker, and
    another incarnation of it is another home, in another epoch (G1). A group whose home was removed
    has neither: it is unavailable until a home is appointed. ``in_sync`` are the standbys that the
    home must wait for; ``version`` counts the changes of that set (G5).
    """

    id: int
    origin: str
    home: str
    incarnation: str
    epoch: int = 1
    version: int = 1
    in_sync: tuple[Member, ...] = ()
    failover: tuple[str, ...] = ()


class Groups:
    """Invariant: numbers are never given twice; ``queues`` counts the shared queues of each group
    in ``groups``, and has no others."""

    groups: dict[int, Group]
    queues: dict[int, int]
    next_id: int

    def __init__(self) -> None:
        self.groups = {}
        self.queues = {}
        self.next_id = 1

    # --- counting

    def observe(self, facts: Iterable[Fact]) -> None:
        """Count the queues that came and went."""
        for fact in facts:
            if isinstance(fact, QueueCreated) and not fact.definition.is_private():
                self._count(fact.definition.group, 1)
            elif isinstance(fact, QueueDeleted) and not fact.definition.is_private():
                self._count(fact.definition.group, -1)

    def recount(self, state: State) -> None:
        self.queues = dict.fromkeys(self.groups, 0)
        for vhost in state.vhosts.values():
            for definition in vhost.queues.values():
                if not definition.is_private():
                    self._count(definition.group, 1)

    def _count(self, group: int, change: int) -> None:
        assert group in self.groups, f"a queue is in group {group}, which does not exist"
        self.queues[group] += change

    # --- placing

    def place(self, definition: QueueDefinition, registry: Registry, placement: str) -> int:
        """The group for a new queue; raises PreconditionFailed if there is none as asked for."""
        if not self.groups:
            raise PreconditionFailed(
                f"{queue_resource(definition.vhost, definition.name)} can't be placed: "
                "no primary that keeps queues has registered yet; try again later"
            )
        if definition.options.group is not None:
            return self._asked_for(definition, definition.options.group)
        if placement == ROOT:
            return min(self.groups)
        fit = [group for group in self.groups.values() if _is_fit(group, registry)]
        least = min(fit or self.groups.values(), key=lambda each: (self.queues[each.id], each.id))
        return least.id

    def _asked_for(self, definition: QueueDefinition, wanted: str) -> int:
        """By the broker that is at home there, or brought it, or by number."""
        for group in self.groups.values():
            if group.origin == wanted:
                return group.id
        for group in self.groups.values():
            if wanted in (group.home, str(group.id)):
                return group.id
        known = ", ".join(
            f"{group.id} ({group.origin or 'its broker was removed'})"
            for group in self.groups.values()
        )
        raise PreconditionFailed(
            f"{queue_resource(definition.vhost, definition.name)} asks for group '{wanted}'; "
            f"there are {known}"
        )

    # --- brokers come and go

    def arrange(self, registry: Registry, placement: str, facts: list[ClusterFact]) -> None:
        """Have the groups that the placement wants: one for each primary, or one for all."""
        for broker in registry.view():
            if not broker.holds_queues() or not broker.incarnation:
                continue
            brought = any(group.origin == broker.name for group in self.groups.values())
            if not self.groups or (placement == SPREAD and not brought):
                self._put(Group(self.next_id, broker.name, broker.name, broker.incarnation), facts)
                self.next_id += 1
        if placement == ROOT and self.groups:
            first = min(self.groups)
            for group in list(self.groups.values()):
                if group.id != first and self.queues[group.id] == 0:
                    self._remove(group, facts)

    def restarted(self, broker: BrokerRecord, facts: list[ClusterFact]) -> None:
        """A broker is there in a new incarnation.

        As a member it has perhaps lost what was not on disk (G2). As a home without standbys it is
        the only one who has the messages, and is appointed again (G3); with standbys the root
        decides.
        """
        for group in list(self.groups.values()):
            members = tuple(_restarted_member(member, broker) for member in group.in_sync)
            changed = group
            if members != group.in_sync:
                changed = replace(changed, in_sync=members, version=group.version + 1)
            is_home = group.home == broker.name and group.incarnation != broker.incarnation
            if is_home and not group.in_sync:
                changed = replace(changed, incarnation=broker.incarnation, epoch=group.epoch + 1)
            if changed != group:
                self._put(changed, facts)

    def removed(self, broker: BrokerRecord, facts: list[ClusterFact]) -> None:
        """A broker won't come back. Its group stays if it has queues, but without a home: nobody,
        not even a new broker of the same name, may serve them silently empty (G3)."""
        for group in list(self.groups.values()):
            if group.home == broker.name and self.queues[group.id] == 0:
                self._remove(group, facts)
                continue
            changed = group
            members = tuple(each for each in group.in_sync if each.broker != broker.name)
            if members != group.in_sync:
                changed = replace(changed, in_sync=members, version=group.version + 1)
            if group.home == broker.name:
                changed = replace(changed, home="", incarnation="", epoch=group.epoch + 1)
            if group.origin == broker.name:
                changed = replace(changed, origin="")
            if changed != group:
                self._put(changed, facts)

    def follow(self, failover_map: FailoverMap, facts: list[ClusterFact]) -> None:
        """Take the failover list of each group's home from the map."""
        for group in list(self.groups.values()):
            names = tuple(info.broker for info in failover_map.get(group.home, ()))
            if names != group.failover:
                self._put(replace(group, failover=names), facts)

    # --- homes and in-sync sets

    def appoint(self, command: AppointHome, registry: Registry, facts: list[ClusterFact]) -> None:
        """Give a group a home in a new epoch; raises PreconditionFailed if it has changed."""
        group = self._unchanged(command.group, command.epoch, command.version)
        broker = registry.check_current(command.broker, command.incarnation)
        if not broker.holds_queues():
            raise PreconditionFailed(f"broker '{broker.name}' is a {broker.role}: it has no queues")
        members = tuple(each for each in group.in_sync if each.broker != broker.name)
        appointed = replace(
            group,
            home=broker.name,
            incarnation=broker.incarnation,
            epoch=group.epoch + 1,
            in_sync=members,
            version=group.version + (members != group.in_sync),
        )
        self._put(appointed, facts)

    def set_in_sync(self, command: SetInSync, registry: Registry, facts: list[ClusterFact]) -> None:
        group = self._unchanged(command.group, command.epoch, command.version)
        names = [member.broker for member in command.members]
        if len(dict.fromkeys(names)) != len(names) or group.home in names:
            raise PreconditionFailed(
                f"group {group.id} can't have the standbys {', '.join(names)}: "
                "each must be another broker, and none the home"
            )
        for member in command.members:
            registry.check_current(member.broker, member.incarnation)
            if member.copy not in (WHOLE, DISK):
                raise PreconditionFailed(
                    f"the copy of group {group.id} at '{member.broker}' is '{member.copy}'; "
                    f"it must be {WHOLE} or {DISK}"
                )
        self._put(replace(group, in_sync=command.members, version=group.version + 1), facts)

    def _unchanged(self, group_id: int, epoch: int, version: int) -> Group:
        """The group, if it is as the proposer thought (G5)."""
        group = self.groups.get(group_id)
        if group is None:
            raise NotFound(f"no group {group_id}")
        if (group.epoch, group.version) != (epoch, version):
            raise PreconditionFailed(
                f"group {group_id} is in epoch {group.epoch} with version {group.version} of its "
                f"in-sync set, not in epoch {epoch} with version {version}"
            )
        return group

    def _put(self, group: Group, facts: list[ClusterFact]) -> None:
        self.groups[group.id] = group
        self.queues.setdefault(group.id, 0)
        facts.append(GroupChanged(group))

    def _remove(self, group: Group, facts: list[ClusterFact]) -> None:
        del self.groups[group.id]
        del self.queues[group.id]
        facts.append(GroupRemoved(group))


def _is_fit(group: Group, registry: Registry) -> bool:
    """Whether new queues should go here: the home is there, and means to stay."""
    home = registry.brokers.get(group.home)
    return home is not None and home.incarnation == group.incarnation and not home.draining


def _restarted_member(member: Member, broker: BrokerRecord) -> Member:
    if member.broker != broker.name or member.incarnation == broker.incarnation:
        return member
    return Member(broker.name, broker.incarnation, DISK)
