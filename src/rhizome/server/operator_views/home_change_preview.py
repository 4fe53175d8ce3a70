"""Previews of home changes: what a change would do, in words, before it is made (G8, G11)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rhizome.cluster.state.broker_registry import BrokerRecord
from rhizome.cluster.state.cluster_commands import (
    ROOT,
    WHOLE,
    ClusterCommand,
    ForceHome,
    PinHome,
    PlanMove,
    PutSettings,
    SetDraining,
)
from rhizome.cluster.state.cluster_state import ClusterState
from rhizome.cluster.state.groups_and_placement import Group, unavailable
from rhizome.errors import PreconditionFailed
from rhizome.management.cluster_view import (
    DRAIN,
    FORCE_HOME,
    MOVE_HOME,
    SETTINGS,
    UNDRAIN,
    UNPIN,
    Change,
    CopyInfo,
    Preview,
)

KINDS = (DRAIN, UNDRAIN, MOVE_HOME, UNPIN, FORCE_HOME, SETTINGS)


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """A preview, and the command that does what it says; None if it is refused."""

    preview: Preview
    command: ClusterCommand | None = None


def planned_change_for(
    change: Change,
    state: ClusterState,
    root: str,
    connections: int,
    unaware: Sequence[str] = (),
) -> PlannedChange:
    """``connections``: those of the broker that the change is about, as far as known. ``unaware``:
    brokers of a release that doesn't know pins."""
    if not root:
        return _refused("there is no root now, and nothing can be changed")
    if change.kind == SETTINGS:
        return _settings(state, dict(change.settings))
    if change.kind == UNPIN:
        return _unpin(state, change.group)
    broker = state.registry.brokers.get(change.broker)
    if broker is None:
        known = ", ".join(each.name for each in state.registry.view())
        return _refused(f"no broker '{change.broker}' is registered; there are {known}")
    if change.kind == DRAIN:
        return _drain(state, broker, change.grace_ms, root, connections)
    if change.kind == UNDRAIN:
        return _undrain(broker)
    group = state.groups.groups.get(change.group)
    if group is None:
        return _refused(f"there is no group {change.group}")
    if change.kind == MOVE_HOME:
        return _move(state, group, broker, unaware)
    assert change.kind == FORCE_HOME, change.kind
    return _force(state, group, broker, change.copies)


def _refused(reason: str) -> PlannedChange:
    return PlannedChange(Preview((), refusal=reason))


# ---- settings -----------------------------------------------------------------------------------


def _settings(state: ClusterState, given: dict[str, int | str]) -> PlannedChange:
    before = state.settings
    after = PutSettings(
        str(given.get("placement", before.placement)),
        int(given.get("copies", before.copies)),
        before.failover_policy,
        before.state_size_max_bytes,
        int(given.get("min_copies", before.min_copies)),
    )
    try:
        state.check_settings(after)
    except PreconditionFailed as error:
        return _refused(error.text)
    if after == before:
        return _refused("the settings are so already")
    steps = [
        f"{name.replace('_', '-')} is {value} from now on (now {getattr(before, name)})"
        for name, value in vars(after).items()
        if value != getattr(before, name)
    ]
    if after.copies > before.copies:
        steps.append("groups are copied to more brokers, where no policy says otherwise")
    elif after.copies < before.copies:
        steps.append("copies that are more than wanted are let go")
    warnings = []
    keepers = sum(each.holds_queues() for each in state.registry.brokers.values())
    if after.min_copies > keepers:
        warnings.append(
            f"of {keepers} brokers that hold queues {after.min_copies} must have a copy: publishers"
            " are blocked until there are more"
        )
    elif after.copies > keepers:
        warnings.append(f"there are {keepers} brokers that hold queues, so {keepers} copies")
    preview = Preview(tuple(steps), tuple(warnings), basis=f"settings {before}")
    return PlannedChange(preview, after)


# ---- drain --------------------------------------------------------------------------------------


def _drain(
    state: ClusterState, broker: BrokerRecord, grace_ms: int, root: str, connections: int
) -> PlannedChange:
    if not broker.draining:
        try:
            state.registry.check_drainable(broker.name)
        except PreconditionFailed as error:
            return _refused(error.text)
    steps: list[str] = []
    warnings: list[str] = []
    groups = list(state.groups.groups.values())
    for group in groups:
        if group.home == broker.name and not group.local:
            steps.append(_move_step(state, group, _successor(state, group)))
    members = [each for each in groups if each.member(broker.name) is not None]
    if members:
        numbers = ", ".join(str(each.id) for each in members)
        steps.append(f"others keep the copies that it has of group {numbers}; then it is let go")
    if broker.name == root:
        steps.append("another primary becomes root")
    seconds = grace_ms // 1000
    steps.append(
        f"its {_count(connections, 'connection')} are asked to go elsewhere over {seconds} s, and"
        " new ones are not taken"
    )
    for group in groups:
        if group.home == broker.name and group.local:
            queues = state.groups.copy_requirements.count(group.id)
            warnings.append(
                f"{_count(queues, 'queue')} of group {group.id} are not replicated (x-replicate"
                f" none): unavailable while {broker.name} is stopped"
            )
    basis = f"drain {broker.name} {broker.incarnation} root {root}"
    preview = Preview(tuple(steps), tuple(warnings), basis=basis)
    return PlannedChange(preview, SetDraining(broker.name, True, grace_ms))


def _successor(state: ClusterState, group: Group) -> BrokerRecord | None:
    """The broker that the root will probably choose; only the root knows the leases."""
    able = [
        each
        for each in state.registry.view()
        if each.name != group.home and each.holds_queues() and not each.draining and not each.away
    ]
    listed = list(group.failover)
    return min(
        able,
        key=lambda each: (
            not group.is_whole(each.name, each.incarnation),
            listed.index(each.name) if each.name in listed else len(listed),
            each.seniority,
        ),
        default=None,
    )


def _move_step(state: ClusterState, group: Group, target: BrokerRecord | None) -> str:
    what = (
        f"group {group.id} with {_count(state.groups.copy_requirements.count(group.id), 'queue')}"
    )
    if target is None:
        return f"{what} stays: nobody else can take it now"
    if group.is_whole(target.name, target.incarnation):
        return f"{what} moves to {target.name}, which has a whole copy"
    return f"{what} is copied to {target.name}, then moves there"


def _undrain(broker: BrokerRecord) -> PlannedChange:
    if not broker.draining:
        return _refused(f"{broker.name} is not being drained")
    steps = (
        f"{broker.name} takes connections, new queues and copies again",
        "groups go back to it as cluster.rebalance says",
    )
    preview = Preview(steps, basis=f"undrain {broker.name} {broker.incarnation}")
    return PlannedChange(preview, SetDraining(broker.name, False))


# ---- move ---------------------------------------------------------------------------------------


def _move(
    state: ClusterState, group: Group, broker: BrokerRecord, unaware: Sequence[str]
) -> PlannedChange:
    refusal = ""
    if group.local:
        refusal = f"the queues of group {group.id} are not replicated: they stay on {group.home}"
    elif unavailable(group, state.registry):
        refusal = f"group {group.id} is unavailable: {unavailable(group, state.registry)}"
    elif not broker.holds_queues():
        refusal = f"{broker.name} is a {broker.role}, which holds no queues"
    elif broker.name == group.home:
        refusal = f"{broker.name} is the home of group {group.id} already"
    elif broker.draining or broker.away:
        why = "is being drained" if broker.draining else "is away"
        refusal = f"{broker.name} {why}"
    if refusal:
        return _refused(refusal)
    steps = [_move_step(state, group, broker), "publishers and consumers pause for a moment"]
    basis = f"move group {group.id} epoch {group.epoch} to {broker.name} {broker.incarnation}"
    command: ClusterCommand = PinHome(group.id, broker.name, group.epoch)
    warnings: tuple[str, ...] = ()
    if unaware or state.settings.placement == ROOT:
        command = PlanMove(group.id, broker.name, group.epoch)
        warnings = _will_go_back(state, group, broker, unaware)
    elif group.stream or group.origin != broker.name:
        steps.append(
            f"it is pinned: it stays there, and goes back there after a failure, until"
            f" `rhizome group unpin {group.id}`"
        )
    return PlannedChange(Preview(tuple(steps), warnings, basis=basis), command)


def _will_go_back(
    state: ClusterState, group: Group, broker: BrokerRecord, unaware: Sequence[str]
) -> tuple[str, ...]:
    if state.settings.placement == ROOT:
        return ("the placement is root: it goes where the root is, as soon as that has a copy",)
    if group.origin == broker.name:
        return ()
    return (
        f"{', '.join(unaware)} can't tell that a person has moved it, being of an earlier release:"
        " it may go elsewhere again, as cluster.rebalance says",
    )


def _unpin(state: ClusterState, number: int) -> PlannedChange:
    group = state.groups.groups.get(number)
    if group is None:
        return _refused(f"there is no group {number}")
    if not group.pinned:
        return _refused(f"group {number} is not pinned")
    steps = (
        f"group {number} is no longer pinned to {group.pinned}",
        "it may move to another broker, as cluster.rebalance says",
    )
    preview = Preview(steps, basis=f"unpin group {number} from {group.pinned}")
    return PlannedChange(preview, PinHome(number, "", group.epoch))


# ---- force --------------------------------------------------------------------------------------


def _force(
    state: ClusterState, group: Group, broker: BrokerRecord, copies: tuple[CopyInfo, ...]
) -> PlannedChange:
    """The copy that is chosen, and what others have that it lacks."""
    refusal = ""
    if not unavailable(group, state.registry):
        refusal = (
            f"group {group.id} has its home, {group.home}; `rhizome group move` moves it without"
            " losing anything"
        )
    elif not broker.holds_queues():
        refusal = f"{broker.name} is a {broker.role}, which holds no queues"
    elif broker.away or not broker.incarnation:
        refusal = f"{broker.name} is down; start it first"
    if refusal:
        return _refused(refusal)
    chosen = next((each for each in copies if each.broker == broker.name), None)
    if chosen is not None and not chosen.usable:
        return _refused(f"the copy at {broker.name} is being installed or damaged")
    parent = 0 if chosen is None else min(chosen.epoch, group.epoch)
    steps = (
        f"{broker.name} becomes the home of group {group.id}"
        f" ({_count(state.groups.copy_requirements.count(group.id), 'queue')})"
        f" in epoch {group.epoch + 1}",
        "it begins without any message: it has no copy"
        if chosen is None
        else f"it begins with its copy, which ends at record {chosen.index} of epoch"
        f" {chosen.epoch}",
        "copies elsewhere that come back drop what it lacks: keep a copy of their data directories"
        if group.stream
        else "copies elsewhere that come back set aside what it lacks, and raise an alarm",
    )
    warnings = tuple(_losses(state, group, broker, chosen, copies))
    ends = "nothing" if chosen is None else f"{chosen.epoch}/{chosen.index}"
    basis = (
        f"force group {group.id} epoch {group.epoch} version {group.version} to {broker.name}"
        f" {broker.incarnation} at {ends}"
    )
    command = ForceHome(
        group.id, broker.name, broker.incarnation, group.epoch, group.version, parent
    )
    return PlannedChange(Preview(steps, warnings, basis=basis), command)


def _losses(
    state: ClusterState,
    group: Group,
    broker: BrokerRecord,
    chosen: CopyInfo | None,
    copies: tuple[CopyInfo, ...],
) -> list[str]:
    """What may be lost, in sentences; the worst first."""
    lost: list[str] = []
    if chosen is None:
        lost.append(f"ALL messages of group {group.id} are given up")
    here = (0, 0) if chosen is None else (chosen.epoch, chosen.index)
    for copy in sorted(copies, key=lambda each: (-each.epoch, -each.index)):
        if copy.broker != broker.name and (copy.epoch, copy.index) > here:
            more = copy.index - here[1]
            ahead = f"{more} records more" if copy.epoch == here[0] else "a later epoch"
            lost.append(
                f"{copy.broker} has {ahead}, up to record {copy.index} of epoch {copy.epoch}:"
                f" choose it instead if you can"
            )
    answered = [each.broker for each in copies]
    member = group.member(broker.name)
    if member is None and group.home != broker.name:
        lost.append(
            f"{broker.name} was not in sync: messages that publishers were told are safe may be"
            " lost, and messages that were acked may come again"
        )
    elif member is not None and member.copy != WHOLE:
        lost.append(f"{broker.name} has what was on disk only: transient messages may be lost")
    holders = [group.home, *(each.broker for each in group.in_sync)]
    away = [name for name in holders if name and name not in answered and name != broker.name]
    for name in dict.fromkeys(away):
        lost.append(f"{name} does not answer: what only it has is lost; start it if you can")
    if not group.home:
        lost.append("its last home was removed from the cluster, with what only that had")
    return lost


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
