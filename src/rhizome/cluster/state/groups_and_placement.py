"""Groups and placement: which broker is the home of which shared queues.

With the placement `spread` every primary brings a group of its own when it registers, and a new
queue goes to the group with the fewest queues, or where its declarer asks (`x-group`, or `group` in
a policy: a broker's name or a group's number). With `root` there is one group, and its home follows
the root. Witnesses and secondaries bring none.

Queues that are not to be replicated (`x-replicate` none) are in the *local* group of a primary,
which is made when the first such queue is declared and never has another home (G9). A stream has a
group of its own, which is made and goes with it.

All of this is decided while an entry is applied, from what was applied before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from rhizome.broker.erlang_term_text import queue_resource
from rhizome.broker.metadata.metadata_changes import Fact, QueueChanged, QueueCreated, QueueDeleted
from rhizome.broker.metadata.metadata_state import State
from rhizome.broker.metadata.queue_policy_user_records import QueueDefinition
from rhizome.cluster.state.broker_registry import BrokerRecord, Registry
from rhizome.cluster.state.cluster_commands import (
    DISK,
    ROOT,
    SPREAD,
    WHOLE,
    AppointHome,
    ForceHome,
    Member,
    PinHome,
    PlanMove,
    PutSettings,
    SetInSync,
    TransferHome,
)
from rhizome.cluster.state.copy_requirements import CopyRequirements
from rhizome.cluster.state.failover_map import FailoverMap
from rhizome.cluster.state.placement_index import PlacementIndex, index_of
from rhizome.cluster.state.state_changes import ClusterFact, GroupChanged, GroupRemoved
from rhizome.errors import NotFound, PreconditionFailed

NOT_REPLICATED: Final = "none"
GROUPS_MAX: Final = 0x7FFF
STREAMS_FROM: Final = 0x8000
STREAMS_TO: Final = 0xFFFF
"""Numbers of groups have 16 bits in records and on links. The upper half are those of streams: no
journal names such a group, so these numbers are given again."""


@dataclass(frozen=True)
class Group:
    """A set of shared queues with one home.

    ``origin`` is the broker that brought the group. The home is one incarnation of a broker;
    another incarnation of it is another home, in another epoch (G1). A group whose home was removed
    has neither: it is unavailable until a home is appointed. ``in_sync`` are the standbys that the
    home must wait for; ``version`` counts the changes of that set (G5).

    ``local``: its queues are not replicated, and nobody takes it over (G9). ``copies`` is how many
    its queues ask for, the home's included, and ``min_copies`` how many must be there (G10).
    ``moving_to``: the broker to which the home is to hand the group (G11). ``parent``: the epoch
    that the present one continues; lower than the one before after `ForceHome` (G8), 0 if from
    nothing. ``stream``: it is the group of a stream, and of nothing else. ``forced``: the last
    epoch that began with `ForceHome`; a broker that has records of an earlier one may have what
    nobody else has. ``pinned``: the broker where a person wants the home to be, "" if the root may
    choose.
    """

    id: int
    origin: str
    home: str
    incarnation: str
    epoch: int = 1
    version: int = 1
    in_sync: tuple[Member, ...] = ()
    failover: tuple[str, ...] = ()
    local: bool = False
    copies: int = 1
    min_copies: int = 1
    moving_to: str = ""
    parent: int = 0
    stream: bool = False
    forced: int = 0
    pinned: str = ""

    def member(self, broker: str) -> Member | None:
        return next((each for each in self.in_sync if each.broker == broker), None)

    def is_whole(self, broker: str, incarnation: str) -> bool:
        return Member(broker, incarnation, WHOLE) in self.in_sync


class Groups:
    """All groups, and the placement of queues in them.

    Invariant: numbers are never given twice, except those of streams; ``copy_requirements`` has the
    shared queues of the groups in ``groups``, and no others; ``index`` is that of ``groups``.

    ``last_stream`` is the number that a stream got last, and no stream that is gone had an epoch
    above ``stream_epoch``: a number that is given again goes on with a higher one, so that nobody
    takes one stream for another (G1).
    """

    groups: dict[int, Group]
    index: PlacementIndex
    copy_requirements: CopyRequirements
    next_id: int
    last_stream: int
    stream_epoch: int

    def __init__(self) -> None:
        self.groups = {}
        self.index = PlacementIndex()
        self.copy_requirements = CopyRequirements()
        self.next_id = 1
        self.last_stream = STREAMS_TO
        self.stream_epoch = 0

    def take_in(self, groups: Iterable[Group]) -> None:
        """Have these groups, in this order, and no others."""
        self.groups = {group.id: group for group in groups}
        self.index = index_of(self.groups)

    # --- counting

    @property
    def queues(self) -> dict[int, int]:
        """The number of shared queues of each group."""
        return {group: self.copy_requirements.count(group) for group in self.groups}

    def observe(
        self, changes: Iterable[Fact], settings: PutSettings, facts: list[ClusterFact]
    ) -> None:
        """Take in the queues that were added or removed, or whose requirements changed."""
        touched: dict[int, None] = {}
        for change in changes:
            if isinstance(change, (QueueCreated, QueueChanged)):
                if not change.definition.is_private():
                    self._check_group(change.definition)
                    self.copy_requirements.put(change.definition)
                    touched[change.definition.group] = None
            elif isinstance(change, QueueDeleted) and not change.definition.is_private():
                self.copy_requirements.drop(change.definition)
                touched[change.definition.group] = None
        for group in touched:
            if self.groups[group].stream and self.copy_requirements.count(group) == 0:
                self._remove(self.groups[group], facts)
            else:
                self._set_copies(self.groups[group], settings, facts)

    def recount(self, state: State) -> None:
        self.copy_requirements = CopyRequirements()
        for vhost in state.vhosts.values():
            for definition in vhost.queues.values():
                if not definition.is_private():
                    self._check_group(definition)
                    self.copy_requirements.put(definition)

    def _check_group(self, definition: QueueDefinition) -> None:
        group = definition.group
        assert group in self.groups, f"a queue is in group {group}, which does not exist"

    def settle_copies(self, settings: PutSettings, facts: list[ClusterFact]) -> None:
        """Set the copies of each group to what settings and queues ask for."""
        for group in list(self.groups.values()):
            self._set_copies(group, settings, facts)

    def _set_copies(self, group: Group, settings: PutSettings, facts: list[ClusterFact]) -> None:
        copies, least = 1, 1
        if not group.local:
            copies, least = self.copy_requirements.copies(
                group.id, settings.copies, settings.min_copies
            )
        if (copies, least) != (group.copies, group.min_copies):
            self._put(replace(group, copies=copies, min_copies=least), facts)

    # --- placing

    def place(
        self,
        definition: QueueDefinition,
        registry: Registry,
        placement: str,
        facts: list[ClusterFact],
    ) -> int:
        """The group for a new queue; raises PreconditionFailed if there is none as asked for."""
        if definition.options.queue_type == "stream":
            return self._place_stream(definition, registry, facts)
        if definition.options.replicate == NOT_REPLICATED:
            return self._place_locally(definition, registry, facts)
        shared = self._shared()
        if not shared:
            raise _no_place(definition)
        if definition.options.group is not None:
            return self._asked_for(definition, definition.options.group, shared)
        if placement == ROOT:
            return min(group.id for group in shared)
        fit = [group for group in shared if _is_fit(group, registry)]
        least = min(
            fit or shared, key=lambda each: (self.copy_requirements.count(each.id), each.id)
        )
        return least.id

    def _asked_for(self, definition: QueueDefinition, wanted: str, among: list[Group]) -> int:
        """The group that is asked for: by the broker that is its home, or brought it, or by
        number."""
        for group in among:
            if group.origin == wanted:
                return group.id
        for group in among:
            if wanted in (group.home, str(group.id)):
                return group.id
        known = ", ".join(
            f"{group.id} ({group.origin or 'its broker was removed'})" for group in among
        )
        raise PreconditionFailed(
            f"{queue_resource(definition.vhost, definition.name)} asks for group '{wanted}'; "
            f"there are {known}"
        )

    def _place_locally(
        self, definition: QueueDefinition, registry: Registry, facts: list[ClusterFact]
    ) -> int:
        """The local group of the primary that was asked for, or that has the fewest such queues."""
        wanted = definition.options.group
        local = [self.groups[number] for number in self.index.local]
        by_number = [group.id for group in local if str(group.id) == wanted]
        if by_number:
            return by_number[0]
        fit = self._fit_brokers(definition, registry)
        by_home = {group.home: group for group in local}

        def load(broker: BrokerRecord) -> tuple[int, int]:
            group = by_home.get(broker.name)
            return (
                0 if group is None else self.copy_requirements.count(group.id),
                broker.seniority,
            )

        chosen = min(fit, key=load)
        group = by_home.get(chosen.name)
        return self._new(chosen, True, facts) if group is None else group.id

    def _place_stream(
        self, definition: QueueDefinition, registry: Registry, facts: list[ClusterFact]
    ) -> int:
        """A group of its own, at the primary that was asked for, or that has the fewest such
        groups."""
        streams_at = self.index.streams_at

        def load(broker: BrokerRecord) -> tuple[int, int]:
            return (streams_at.get(broker.name, 0), broker.seniority)

        chosen = min(self._fit_brokers(definition, registry), key=load)
        number = self._free_stream()
        if number == 0:
            raise PreconditionFailed(
                f"{queue_resource(definition.vhost, definition.name)} can't be placed: there are "
                f"{STREAMS_TO - STREAMS_FROM + 1} streams, and a cluster can't have more"
            )
        self.last_stream = number
        group = Group(
            number,
            chosen.name,
            chosen.name,
            chosen.incarnation,
            epoch=self.stream_epoch + 1,
            local=definition.options.replicate == NOT_REPLICATED,
            stream=True,
        )
        self._put(group, facts)
        return number

    def _free_stream(self) -> int:
        """The number after the last that was given, of those that are free; 0 if none is."""
        number = self.last_stream
        for _ in range(STREAMS_FROM, STREAMS_TO + 1):
            number = number + 1 if number < STREAMS_TO else STREAMS_FROM
            if number not in self.groups:
                return number
        return 0

    def _shared(self) -> list[Group]:
        """The groups that queues are put into, which are replicated."""
        return [self.groups[number] for number in self.index.replicated]

    def _fit_brokers(self, definition: QueueDefinition, registry: Registry) -> list[BrokerRecord]:
        """The primaries that may get a queue for themselves: the one that it asks for, or those
        that are present and are to stay; any that keep queues if there are none of these."""
        known = [each for each in registry.view() if each.holds_queues() and each.incarnation]
        if not known:
            raise _no_place(definition)
        wanted = definition.options.group
        if wanted is not None:
            named = [each for each in known if each.name == wanted]
            if not named:
                group = self._asked_for(definition, wanted, list(self.groups.values()))
                named = [each for each in known if each.name == self.groups[group].home]
            if not named:
                raise _no_place(definition)
            known = named
        fit = [each for each in known if not each.draining and not each.away]
        return fit or known

    def _new(self, broker: BrokerRecord, local: bool, facts: list[ClusterFact]) -> int:
        assert self.next_id <= GROUPS_MAX
        group = Group(self.next_id, broker.name, broker.name, broker.incarnation, local=local)
        self._put(group, facts)
        self.next_id += 1
        return group.id

    # --- brokers come and go

    def arrange(self, registry: Registry, placement: str, facts: list[ClusterFact]) -> None:
        """Have the groups that the placement wants: one for each primary, or one for all."""
        for broker in registry.view():
            if not broker.holds_queues() or not broker.incarnation:
                continue
            shared = self._shared()
            brought = any(group.origin == broker.name for group in shared)
            if not shared or (placement == SPREAD and not brought):
                self._new(broker, False, facts)
        shared = self._shared()
        if placement == ROOT and shared:
            first = min(group.id for group in shared)
            for group in shared:
                if group.id != first and self.copy_requirements.count(group.id) == 0:
                    self._remove(group, facts)

    def restarted(self, broker: BrokerRecord, facts: list[ClusterFact]) -> None:
        """A broker is back in a new incarnation.

        As a member it has perhaps lost what was not on disk (G2). As a home without standbys it is
        the only one that has the messages, and is appointed again (G3, G9); with standbys the root
        decides.
        """
        for group in list(self.groups.values()):
            members = tuple(_restarted_member(member, broker) for member in group.in_sync)
            changed = group
            if members != group.in_sync:
                changed = replace(changed, in_sync=members, version=group.version + 1)
            is_home = group.home == broker.name and group.incarnation != broker.incarnation
            if is_home and not group.in_sync:
                changed = _in_new_epoch(changed, broker)
            if changed != group:
                self._put(changed, facts)

    def removed(self, broker: BrokerRecord, facts: list[ClusterFact]) -> None:
        """A broker won't come back. Its group stays if it has queues, but without a home: nobody,
        not even a new broker of the same name, may serve them silently empty (G3)."""
        for group in list(self.groups.values()):
            if group.home == broker.name and self.copy_requirements.count(group.id) == 0:
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
            if group.pinned == broker.name:
                changed = replace(changed, pinned="")
            if broker.name in (group.home, group.moving_to):
                changed = replace(changed, moving_to="")
            if changed != group:
                self._put(changed, facts)

    def follow(
        self, failover_map: FailoverMap, among: Iterable[int], facts: list[ClusterFact]
    ) -> None:
        """Take the failover lists of the homes of these groups from the map. All others have theirs
        from the same map already."""
        for number in among:
            group = self.groups.get(number)
            if group is None:
                continue
            infos = () if group.local else failover_map.get(group.home, ())
            names = tuple(info.broker for info in infos)
            if names != group.failover:
                self._put(replace(group, failover=names), facts)

    # --- homes and in-sync sets

    def appoint(self, command: AppointHome, registry: Registry, facts: list[ClusterFact]) -> None:
        """Give a group a home in a new epoch; raises PreconditionFailed if it has changed, or if
        the broker may lack something that was confirmed (G3, G9).

        If a copy on disk takes over though the old home is back, the old home's disk has everything
        confirmed as well: it is a member from the first moment.
        """
        group = self._unchanged(command.group, command.epoch, command.version)
        broker = _check_home(registry, command.broker, command.incarnation)
        member = group.member(broker.name)
        if member is None and group.home != broker.name:
            raise PreconditionFailed(
                f"broker '{broker.name}' is no in-sync member of group {group.id} and was not its "
                "home: it may lack confirmed messages; `rhizome group force-home` accepts that"
            )
        members = [each for each in group.in_sync if each.broker != broker.name]
        last = registry.brokers.get(group.home)
        if member is not None and member.copy == DISK and last is not None:
            if last.incarnation not in ("", group.incarnation):
                members.append(Member(last.name, last.incarnation, DISK))
        self._put(_in_new_epoch(_with_members(group, members), broker), facts)

    def transfer(self, command: TransferHome, registry: Registry, facts: list[ClusterFact]) -> None:
        """The home hands a group over to a whole member (G11). It keeps everything, so it is a
        member itself from then on; only what is on disk counts if it has restarted meanwhile."""
        group = self._unchanged(command.group, command.epoch, command.version)
        broker = _check_home(registry, command.broker, command.incarnation)
        if not group.is_whole(broker.name, broker.incarnation):
            raise PreconditionFailed(
                f"group {group.id} can't be handed to '{broker.name}': it has no whole copy"
            )
        members = [each for each in group.in_sync if each.broker != broker.name]
        last = registry.brokers.get(group.home)
        if last is not None and last.incarnation:
            copy = WHOLE if last.incarnation == group.incarnation else DISK
            members.append(Member(last.name, last.incarnation, copy))
        self._put(_in_new_epoch(_with_members(group, members), broker), facts)

    def force(self, command: ForceHome, registry: Registry, facts: list[ClusterFact]) -> None:
        """Give a group a home that a person chose, whatever that loses (G8)."""
        group = self._unchanged(command.group, command.epoch, command.version)
        broker = _check_home(registry, command.broker, command.incarnation)
        if not 0 <= command.parent <= group.epoch:
            raise PreconditionFailed(
                f"group {group.id} is in epoch {group.epoch} and can't go on from {command.parent}"
            )
        forced = _in_new_epoch(_with_members(group, []), broker)
        self._put(replace(forced, parent=command.parent, forced=forced.epoch), facts)

    def plan_move(self, command: PlanMove, registry: Registry, facts: list[ClusterFact]) -> None:
        """Say where a group's home is to go (G11)."""
        group = self._in_epoch(command.group, command.epoch)
        if command.broker:
            _check_destination(group, registry.get(command.broker))
        if command.broker != group.moving_to:
            self._put(replace(group, moving_to=command.broker), facts)

    def pin(self, command: PinHome, registry: Registry, facts: list[ClusterFact]) -> None:
        """Say where a group's home is to be until a person says otherwise. A move to elsewhere is
        called off; without a pin the move that is under way goes on. A group of queues needs no pin
        for the broker that brought it: it goes back there by itself."""
        group = self._in_epoch(command.group, command.epoch)
        moving_to = group.moving_to
        if command.broker:
            moving_to = "" if command.broker == group.home else command.broker
            if moving_to or group.local:
                _check_destination(group, registry.get(command.broker))
        is_own = command.broker == group.origin and not group.stream
        pinned = "" if is_own else command.broker
        if (pinned, moving_to) != (group.pinned, group.moving_to):
            self._put(replace(group, pinned=pinned, moving_to=moving_to), facts)

    def set_in_sync(self, command: SetInSync, registry: Registry, facts: list[ClusterFact]) -> None:
        group = self._unchanged(command.group, command.epoch, command.version)
        if group.local and command.members:
            raise PreconditionFailed(f"the queues of group {group.id} are not replicated")
        names = [member.broker for member in command.members]
        if len(dict.fromkeys(names)) != len(names) or group.home in names:
            raise PreconditionFailed(
                f"group {group.id} can't have the standbys {', '.join(names)}: "
                "each must be another broker, and none the home"
            )
        for member in command.members:
            _check_home(registry, member.broker, member.incarnation)
            if member.copy not in (WHOLE, DISK):
                raise PreconditionFailed(
                    f"the copy of group {group.id} at '{member.broker}' is '{member.copy}'; "
                    f"it must be {WHOLE} or {DISK}"
                )
        self._put(replace(group, in_sync=command.members, version=group.version + 1), facts)

    def _get(self, group_id: int) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            raise NotFound(f"no group {group_id}")
        return group

    def _in_epoch(self, group_id: int, epoch: int) -> Group:
        group = self._get(group_id)
        if group.epoch != epoch:
            raise PreconditionFailed(f"group {group.id} is in epoch {group.epoch}, not {epoch}")
        return group

    def _unchanged(self, group_id: int, epoch: int, version: int) -> Group:
        """The group, if it is as the proposer thought (G5)."""
        group = self._get(group_id)
        if (group.epoch, group.version) != (epoch, version):
            raise PreconditionFailed(
                f"group {group_id} is in epoch {group.epoch} with version {group.version} of its "
                f"in-sync set, not in epoch {epoch} with version {version}"
            )
        return group

    def _put(self, group: Group, facts: list[ClusterFact]) -> None:
        self.index.replaced(group.id, self.groups.get(group.id), group)
        self.groups[group.id] = group
        facts.append(GroupChanged(group))

    def _remove(self, group: Group, facts: list[ClusterFact]) -> None:
        self.index.replaced(group.id, self.groups.pop(group.id), None)
        if group.stream:
            self.stream_epoch = max(self.stream_epoch, group.epoch)
        facts.append(GroupRemoved(group))


def wanted_standbys(group: Group, registry: Registry) -> list[str]:
    """The brokers that the home should invite to keep a copy.

    These are as many as the group wants of the failover list and the broker that the group came
    from, which has most of it; those in sync come first, then those that are present. The broker to
    which the group is to move is one of them (G11).

    In-sync members that are not among them are let go once these are all whole.
    """
    if group.local:
        return []
    listed = [group.origin, *group.failover] if _is_apart(group, registry) else group.failover
    able = []
    for place, name in enumerate(dict.fromkeys(listed)):
        broker = registry.brokers.get(name)
        if broker is None or name == group.home or not broker.holds_queues():
            continue
        if not broker.draining and not broker.lost:
            able.append((group.member(name) is None, broker.away, place, name))
    names = [name for *_, name in sorted(able)[: group.copies - 1]]
    if group.moving_to and group.moving_to not in names:
        names.insert(0, group.moving_to)
    return names


def _is_apart(group: Group, registry: Registry) -> bool:
    """Whether the broker that a group came from is on another machine than its home."""
    origin, home = registry.brokers.get(group.origin), registry.brokers.get(group.home)
    if origin is None or home is None:
        return False
    return not origin.machine or origin.machine != home.machine


def unavailable(group: Group, registry: Registry) -> str:
    """Why nobody serves the queues of a group, in a sentence; empty if its home is present (G3)."""
    home = registry.brokers.get(group.home)
    if home is not None and home.incarnation == group.incarnation and not home.away:
        return ""
    if home is None:
        lost = "its home was removed from the cluster"
    elif home.incarnation == group.incarnation or not home.incarnation:
        lost = f"its home {home.name} is down"
    else:
        lost = f"its home {home.name} has restarted"
    if group.local:
        return f"{lost}, and its queues are not replicated{_until(home)}"
    if not group.in_sync:
        return f"{lost}, and nobody else has all of its messages{_until(home)}"
    here = [each for each in group.in_sync if _is_here(each, registry)]
    whole = [each.broker for each in here if each.copy == WHOLE]
    if whole:
        return f"{lost}; {whole[0]} is taking over"
    missing = ", ".join(
        f"{each.broker} ({each.copy})" for each in group.in_sync if each not in here
    )
    if here:
        names = " or ".join(each.broker for each in here)
        late = f" unless {missing} comes back at once" if missing else ""
        return f"{lost}; {names} takes over{late}"
    return f"{lost}, and so are its copies: start {missing}{' or ' + home.name if home else ''}"


def _until(home: BrokerRecord | None) -> str:
    if home is None:
        return ": `rhizome group force-home` gives up what is lost"
    return f": start {home.name}"


def _is_here(member: Member, registry: Registry) -> bool:
    broker = registry.brokers.get(member.broker)
    return broker is not None and broker.incarnation == member.incarnation and not broker.away


def _with_members(group: Group, members: list[Member]) -> Group:
    kept = tuple(members)
    return replace(group, in_sync=kept, version=group.version + (kept != group.in_sync))


def _in_new_epoch(group: Group, home: BrokerRecord) -> Group:
    return replace(
        group,
        home=home.name,
        incarnation=home.incarnation,
        epoch=group.epoch + 1,
        parent=group.epoch,
        moving_to="",
    )


def _check_home(registry: Registry, name: str, incarnation: str) -> BrokerRecord:
    """The broker, if that is its incarnation and it can hold queues (G1)."""
    broker = registry.check_current(name, incarnation)
    _check_holds_queues(broker)
    return broker


def _check_holds_queues(broker: BrokerRecord) -> None:
    if not broker.holds_queues():
        raise PreconditionFailed(f"broker '{broker.name}' is a {broker.role}: it has no queues")


def _check_destination(group: Group, broker: BrokerRecord) -> None:
    """Raise PreconditionFailed if a group's home can't move to a broker."""
    _check_holds_queues(broker)
    if group.local:
        raise PreconditionFailed(
            f"the queues of group {group.id} are not replicated: they stay on '{group.home}'"
        )
    if broker.name == group.home or broker.draining:
        why = "is its home" if broker.name == group.home else "is being drained"
        raise PreconditionFailed(f"group {group.id} can't move to '{broker.name}', which {why}")


def _no_place(definition: QueueDefinition) -> PreconditionFailed:
    return PreconditionFailed(
        f"{queue_resource(definition.vhost, definition.name)} can't be placed: "
        "no primary that keeps queues has registered yet; try again later"
    )


def _is_fit(group: Group, registry: Registry) -> bool:
    """Whether new queues should go here: the home is present, and is to stay."""
    home = registry.brokers.get(group.home)
    return (
        home is not None
        and home.incarnation == group.incarnation
        and not home.draining
        and not home.away
    )


def _restarted_member(member: Member, broker: BrokerRecord) -> Member:
    if member.broker != broker.name or member.incarnation == broker.incarnation:
        return member
    return Member(broker.name, broker.incarnation, DISK)
