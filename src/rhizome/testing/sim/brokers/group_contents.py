"""What a broker's node holds of groups, for the checkers that compare copies."""

from __future__ import annotations

from rhizome.broker.broker import Broker
from rhizome.cluster.home.home_group import HomeGroup
from rhizome.cluster.node import Node
from rhizome.cluster.replication.group_copy import GroupCopy
from rhizome.cluster.state.cluster_commands import WHOLE
from rhizome.testing.sim.checkers.group_copy_checkers import GroupContents, Live


def holdings_of(node: Node) -> list[GroupContents]:
    """What there is of each group at a broker, as home or as a copy."""
    roles, groups, me = node.roles, node.state.groups.groups, node.me
    found = [_home_holding(node, home) for home in roles.homes.values()]
    for number, copy in roles.copies.items():
        group = groups.get(number)
        member = None if group is None else group.member(me.name)
        whole = (
            group is not None
            and member is not None
            and member.copy == WHOLE
            and member.incarnation == me.incarnation
            and group.epoch == copy.epoch
        )
        found.append(_copy_holding(me.name, copy, whole))
    return found


def copies_missing_at(node: Node) -> list[str]:
    """What is wrong with the groups whose home a broker is."""
    found = []
    for home in node.roles.homes.values():
        group = home.group
        whole = sum(each.copy == WHOLE for each in group.in_sync)
        able = sum(each.holds_queues() for each in node.state.registry.brokers.values())
        if home.log.silent:
            found.append(f"group {group.id} is still recovering at {node.me.name}")
        if not group.local and whole < min(group.copies, able) - 1:
            found.append(
                f"group {group.id} at {node.me.name} has {whole} whole copies beside its home and "
                f"wants {group.copies - 1}: {home.copies.status()}"
            )
    return found


def kept_at(node: Node) -> list[str]:
    """What a broker keeps for clients that can resume, and for edges of its groups, while they are
    away."""
    found = [
        f"{len(suspended.places)} messages for {client}"
        for client, suspended in node.broker.suspended_sessions.suspended_sessions.items()
        if suspended.places
    ]
    for tenure in node.tenures.tenures.values():
        for name, detached in tenure.detached.items():
            if detached.places:
                found.append(f"{len(detached.places)} messages of group {tenure.group} for {name}")
    return found


def _home_holding(node: Node, home: HomeGroup) -> GroupContents:
    log = home.log
    return GroupContents(
        node.me.name,
        home.group.id,
        True,
        True,
        False,
        int(log.epoch),
        int(log.next_index) - 1,
        lambda: _live_at_home(home),
        lambda: dict(log.origins),
        lambda: _unreadable_at_home(node.broker),
    )


def _unreadable_at_home(broker: Broker) -> Live:
    """What a home knows to be damaged on its disk."""
    damage = broker.damage
    found: Live = {}
    for queue in broker.shared.values():
        indexes = [int(each.index) for each in damage.of(queue)] + list(damage.asked.get(queue, {}))
        if indexes:
            found[int(queue.id)] = indexes
    return found


def _live_at_home(home: HomeGroup) -> Live:
    port = home.copies.port
    found: Live = {}
    for queue_id in port.queue_ids():
        queue = port.live(queue_id)
        if queue is not None:
            found[queue_id] = sorted(index for part in queue.parts for index, _ in part.positions())
    return {queue_id: live for queue_id, live in found.items() if live}


def _copy_holding(broker: str, copy: GroupCopy, whole: bool) -> GroupContents:
    def live() -> Live:
        found = {
            int(queue_id): sorted(
                index for level in queue.levels.values() for index, _ in level.positions()
            )
            for queue_id, queue in copy.queues.items()
        }
        return {queue_id: live for queue_id, live in found.items() if live}

    return GroupContents(
        broker,
        int(copy.group),
        False,
        whole,
        bool(copy.installing),
        int(copy.epoch),
        int(copy.index),
        live,
        lambda: dict(copy.origins),
    )
