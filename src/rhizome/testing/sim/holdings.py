"""What a broker's node holds of groups, for the checkers that compare copies."""

from __future__ import annotations

from rhizome.cluster.commands import WHOLE
from rhizome.cluster.copies.copy import Copy
from rhizome.cluster.home import Home
from rhizome.cluster.node import Node
from rhizome.testing.sim.agreement import Holding, Live


def holdings_of(node: Node) -> list[Holding]:
    """What there is of each group at a broker, as home or as a copy."""
    roles, groups, me = node.roles, node.state.groups.groups, node.me
    found = [_home_holding(me.name, home) for home in roles.homes.values()]
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
    """What is wrong with the groups that are at home at a broker."""
    found = []
    for home in node.roles.homes.values():
        group = home.group
        whole = sum(each.copy == WHOLE for each in group.in_sync)
        able = sum(each.holds_queues() for each in node.state.registry.brokers.values())
        if home.log.recovering:
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
        f"{len(ghost.places)} messages for {client}"
        for client, ghost in node.broker.ghosts.ghosts.items()
        if ghost.places
    ]
    for tenure in node.tenures.tenures.values():
        for name, parked in tenure.parked.items():
            if parked.places:
                found.append(f"{len(parked.places)} messages of group {tenure.group} for {name}")
    return found


def _home_holding(broker: str, home: Home) -> Holding:
    log = home.log
    return Holding(
        broker,
        home.group.id,
        True,
        True,
        False,
        int(log.epoch),
        int(log.next_index) - 1,
        lambda: _live_at_home(home),
        lambda: dict(log.origins),
        lambda: _unreadable_at_home(home),
    )


def _unreadable_at_home(home: Home) -> Live:
    """What a home knows to be damaged on its disk."""
    damage = home.node.broker.damage
    found: Live = {}
    for queue in home.node.broker.shared.values():
        indexes = [int(each.index) for each in damage.of(queue)] + list(damage.asked.get(queue, {}))
        if indexes:
            found[int(queue.id)] = indexes
    return found


def _live_at_home(home: Home) -> Live:
    port = home.copies.port
    found: Live = {}
    for queue_id in port.queue_ids():
        queue = port.live(queue_id)
        if queue is not None:
            found[queue_id] = sorted(index for part in queue.parts for index, _ in part.positions())
    return {queue_id: live for queue_id, live in found.items() if live}


def _copy_holding(broker: str, copy: Copy, whole: bool) -> Holding:
    def live() -> Live:
        found = {
            int(queue_id): sorted(
                index for level in queue.levels.values() for index, _ in level.positions()
            )
            for queue_id, queue in copy.queues.items()
        }
        return {queue_id: live for queue_id, live in found.items() if live}

    return Holding(
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
