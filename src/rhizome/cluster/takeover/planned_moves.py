"""Planned moves: the root moves homes though nothing failed (G11).

A move is planned in the cluster state (`PlanMove`), so it outlives the root that planned it. The
home then makes a copy at the destination, if there is none yet, and stops admitting when that copy
is whole. It waits until the copy has everything, and asks for `TransferHome`. Reasons to plan one:

- the home is to stop (drain): to a whole member, else to a broker that can take a copy;
- with the placement `root`, the root is another broker and is in sync (R14);
- the home can't serve everybody: an edge doesn't reach it, or its disk is full
  (``impaired_homes.py``);
- homes are not spread as they should be (``home_balance.py``): after a failure, for one.

A root that should not be root hands over its role: when it is drained, when a live broker doesn't
reach it, and with the placement `root` when it isn't in sync or its disk is full.

Members that the group does not want any more (they are drained, or only helped out) are let go as
soon as the wanted ones are whole.
"""

from __future__ import annotations

from typing import Final

from rhizome.cluster.state.broker_registry import BrokerRecord
from rhizome.cluster.state.cluster_commands import ROOT, WHOLE, PlanMove, SetInSync
from rhizome.cluster.state.cluster_state import ClusterState
from rhizome.cluster.state.groups_and_placement import Group, wanted_standbys
from rhizome.cluster.takeover.home_balance import WATCH_MS, HomeBalance
from rhizome.cluster.takeover.impaired_homes import ImpairedHomes
from rhizome.cluster.takeover.lease_holders import LeaseHolders
from rhizome.cluster.takeover.root_port import RootProposals, about_group
from rhizome.cluster.takeover.settings import RootSettings

NEVER_MS: Final = 1 << 62

HAND_OVER_EVERY_MS: Final = 5_000
"""How often the role of root is offered, if it isn't taken."""

RELIEFS_MAX: Final = 4
"""With this many moves under way no further group is moved from a home that can't serve
everybody."""

COPIED_RELIEFS_MAX: Final = 1
"""The same for groups that must be copied before they move: that may take long."""


class PlannedMoves:
    """Plans moves, at the root.

    Invariant: at most one move per group is under way, and it is in the cluster state.
    """

    def __init__(
        self,
        state: ClusterState,
        root_proposals: RootProposals,
        lease_holders: LeaseHolders,
        settings: RootSettings,
    ) -> None:
        self.state = state
        self.root_proposals = root_proposals
        self.lease_holders = lease_holders
        self.settings = settings
        self.impaired_homes = ImpairedHomes(state, root_proposals.port, lease_holders, settings)
        self._relieved: dict[int, str] = {}
        """Where groups are to go from homes that can't serve everybody."""
        self._moving = 0
        """Moves under way, while there is such a home."""
        self.balance = HomeBalance(
            state, root_proposals.port, lease_holders, self.impaired_homes, settings
        )
        self._offered_ms = -HAND_OVER_EVERY_MS

    def clear(self) -> None:
        """This broker is no longer root."""
        self.impaired_homes.clear()
        self._relieved = {}
        self.balance.clear()
        self._offered_ms = -HAND_OVER_EVERY_MS

    def run(self, now_ms: int, troubled: bool) -> None:
        """Plan what is due. ``troubled``: some group has no home, so no move that can wait is
        planned."""
        self.impaired_homes.look(now_ms)
        self._moving = self.under_way() if self.impaired_homes.troubled else 0
        for group in self.state.groups.groups.values():
            if group.local or not self.lease_holders.has_home(group, self.state.registry):
                continue
            if self.root_proposals.is_open(about_group(group.id)):
                continue
            if group.moving_to:
                self._review(group)
            elif not self._plan(group) and not self._relieve(group, now_ms, troubled):
                self._let_go(group)
        self._rebalance(now_ms, troubled)
        self._offer_office(now_ms)

    def deadline_ms(self, now_ms: int) -> int:
        return now_ms + WATCH_MS if self.balance.is_on() else NEVER_MS

    def under_way(self) -> int:
        return sum(bool(group.moving_to) for group in self.state.groups.groups.values())

    # --- moves that must be made

    def _review(self, group: Group) -> None:
        """Call off a move that can't succeed any more, or that nobody needs any more."""
        target = self.state.registry.brokers.get(group.moving_to)
        if target is None or target.draining or target.away:
            self._propose(group, "")
        elif self._relieved.get(group.id) == target.name:
            troubled = self.impaired_homes.troubled
            if group.home not in troubled or target.name in troubled:
                self._propose(group, "")

    def _relieve(self, group: Group, now_ms: int, troubled: bool) -> bool:
        """Plan a move away from a home that can't serve everybody; False if it can, or if no broker
        can do better. With the placement `root` the role of root moves, and the groups with it."""
        self._relieved.pop(group.id, None)
        why = self.impaired_homes.troubled.get(group.home, "")
        if not why or troubled or self._moving >= RELIEFS_MAX:
            return False
        if self.state.settings.placement == ROOT:
            return False
        target = self.impaired_homes.successor(group, now_ms)
        if target is None:
            return False
        is_whole = group.is_whole(target.name, target.incarnation)
        if not is_whole and self._moving >= COPIED_RELIEFS_MAX:
            return False
        if not self._propose(group, target.name):
            return False
        self._moving += 1
        self._relieved[group.id] = target.name
        self.root_proposals.port.report(f"{why}: group {group.id} moves to {target.name}")
        return True

    def _plan(self, group: Group) -> bool:
        """Plan a move that has a pressing reason; False if there is none, or nowhere to go."""
        home = self.state.registry.brokers[group.home]
        follows = self.state.settings.placement == ROOT
        if follows and home.name != self.lease_holders.me and self._is_fit(group):
            return self._propose(group, self.lease_holders.me)
        if not home.draining or (follows and self._heir()):
            return False  # with placement `root` the next root takes the group along
        target = self._successor(group)
        return target is not None and self._propose(group, target.name)

    def _is_fit(self, group: Group) -> bool:
        """Whether this broker could be the home of a group, has room, and is to stay."""
        me = self.state.registry.brokers.get(self.lease_holders.me)
        if me is None or me.draining or me.name in self.impaired_homes.troubled:
            return False
        return group.is_whole(me.name, me.incarnation)

    def _successor(self, group: Group) -> BrokerRecord | None:
        """Who takes a group from a home that is to stop: a whole member, else one of the failover
        list, else the most senior of the others. None if there is nobody, or if a whole member may
        still show itself to a new root."""
        able = [
            each
            for each in self.state.registry.view()
            if each.name != group.home and each.holds_queues() and not each.draining
        ]

        def rank(broker: BrokerRecord) -> tuple[bool, int, int]:
            listed = list(group.failover)
            place = listed.index(broker.name) if broker.name in listed else len(listed)
            return (not group.is_whole(broker.name, broker.incarnation), place, broker.seniority)

        for broker in sorted(able, key=rank):
            if self.lease_holders.is_here(broker):
                return broker
            whole = group.is_whole(broker.name, broker.incarnation)
            if whole and not self.lease_holders.is_over(broker.name, broker.incarnation):
                return None
        return None

    def _propose(self, group: Group, target: str) -> bool:
        command = PlanMove(group.id, target, group.epoch)
        return self.root_proposals.propose(about_group(group.id), command)

    # --- members that are not wanted any more

    def _let_go(self, group: Group) -> None:
        """Take members out of the set that are beyond what is wanted, or are to stop; not if that
        would leave too few (G10)."""
        registry = self.state.registry
        wanted = wanted_standbys(group, registry)
        if not self._are_whole(group, wanted):
            return
        enough = len(wanted) >= group.copies - 1
        kept = []
        for member in group.in_sync:
            broker = registry.brokers.get(member.broker)
            stops = broker is None or broker.draining
            if member.broker in wanted or not (enough or stops):
                kept.append(member)
        if len(kept) < len(group.in_sync) and len(kept) + 1 >= group.min_copies:
            command = SetInSync(group.id, tuple(kept), group.epoch, group.version)
            self.root_proposals.propose(about_group(group.id), command)

    def _are_whole(self, group: Group, names: list[str]) -> bool:
        for name in names:
            member = group.member(name)
            if member is None or member.copy != WHOLE:
                return False
        return True

    # --- moves that can wait

    def _rebalance(self, now_ms: int, troubled: bool) -> None:
        """Plan the next move of a group that is to go back, or to a broker with fewer homes."""
        chosen = self.balance.choose(now_ms, troubled or self.under_way() > 0)
        if chosen is not None:
            self._propose(*chosen)

    # --- the role of root

    def _offer_office(self, now_ms: int) -> None:
        heir = self._heir() or self.impaired_homes.heir(now_ms)
        if heir and now_ms - self._offered_ms >= HAND_OVER_EVERY_MS:
            self._offered_ms = now_ms
            self.root_proposals.port.hand_over(heir)

    def _heir(self) -> str:
        """Who should be root instead of this broker; empty if nobody should."""
        me = self.state.registry.brokers.get(self.lease_holders.me)
        if me is None:
            return ""
        if self.state.settings.placement == ROOT:
            return self._heir_with_home(me)
        groups = self.state.groups.groups.values()
        if not me.draining or any(not each.local and each.home == me.name for each in groups):
            return ""
        others = [each for each in self.state.registry.view() if self._could_be_root(each)]
        chosen = min(others, key=lambda each: not each.holds_queues(), default=None)
        return "" if chosen is None else chosen.name

    def _heir_with_home(self, me: BrokerRecord) -> str:
        """Where the home follows the root, the root is where the messages are (R14): if this broker
        can't be, the role goes to the home, or to a whole member that stays."""
        shared = [each for each in self.state.groups.groups.values() if not each.local]
        group = min(shared, key=lambda each: each.id, default=None)
        if group is None or not self.lease_holders.has_home(group, self.state.registry):
            return ""
        stays = not me.draining and me.name not in self.impaired_homes.troubled
        if self._is_fit(group) or (group.home == me.name and stays):
            return ""
        holders = [group.home, *(each.broker for each in group.in_sync if each.copy == WHOLE)]
        for name in holders:
            broker = self.state.registry.brokers.get(name)
            if broker is not None and self._could_be_root(broker):
                if name not in self.impaired_homes.full:
                    return name
        return ""

    def _could_be_root(self, broker: BrokerRecord) -> bool:
        if broker.name == self.lease_holders.me or not broker.votes() or broker.draining:
            return False
        return self.lease_holders.is_here(broker)
