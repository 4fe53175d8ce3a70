"""Home balance: at the root, which group should move so that homes are spread over the brokers.

After a failure groups are where they were taken over. They go back by themselves, one at a time:

1. a group that a person pinned goes to its pin (`PinHome`);
2. a group of queues goes to the broker that brought it, which spreads these groups by their number;
3. a stream, or a group whose origin can't have it, goes from a broker to one that has at least two
   fewer homes of its kind: to a whole member if one has, else a copy is made first. Where several
   could go, the one goes that evens out the traffic best;
4. between brokers whose numbers differ by one, such a group goes to a whole member if that takes a
   good part of the traffic from the busier broker.

Invariant: a move is chosen only while all is well: nobody drains, no copy is catching up, nothing
has moved or failed for `PACE_MS`, and the destination has been present for `CALM_MS`. Otherwise
moves would come on top of the work that a failure makes.

With steady traffic this ends: each move by number lowers the sum of the squares of the numbers.
Each move by traffic leaves that sum as it is, and lowers the traffic of the busier of two brokers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rhizome.cluster.state.broker_registry import BrokerRecord
from rhizome.cluster.state.cluster_commands import ROOT, WHOLE
from rhizome.cluster.state.cluster_state import ClusterState
from rhizome.cluster.state.groups_and_placement import Group, wanted_standbys
from rhizome.cluster.takeover.impaired_homes import ImpairedHomes
from rhizome.cluster.takeover.lease_holders import LeaseHolders
from rhizome.cluster.takeover.root_port import UNKNOWN, RootPort
from rhizome.cluster.takeover.settings import EAGER, IDLE, OFF, RootSettings

CALM_MS: Final = {IDLE: 10_000, EAGER: 5_000}
"""How long a broker must have been present before a group moves to it."""

CALM_DOUBLINGS_MAX: Final = 4
"""How often that time is doubled at most: once for each time that the broker was away lately
without having died. Otherwise a group would go back to a starved machine as soon as it recovers,
and be taken over again."""

PACE_MS: Final = 3_000
"""How long nothing must have moved, and every group must have had a home, before the next move."""

LOOK_EVERY_MS: Final = 1_000
"""How often the root looks for a move: each look is at all groups."""

WATCH_MS: Final = 2_000
"""The time over which a group's traffic is measured."""

IDLE_RECORDS_PER_S_MAX: Final = 50
"""A group with less traffic than this may move without anybody noticing."""

BUSY_RECORDS_PER_S: Final = 1_000
"""A broker whose groups have less traffic than this together is not relieved of any."""

RELIEF_PART_MAX: Final = 0.75
"""A move for the sake of traffic leaves the busier of the two brokers at most this part of it."""


class HomeBalance:
    """Chooses moves that can wait, at the root."""

    def __init__(
        self,
        state: ClusterState,
        port: RootPort,
        lease_holders: LeaseHolders,
        impaired_homes: ImpairedHomes,
        settings: RootSettings,
    ) -> None:
        self.state = state
        self.port = port
        self.lease_holders = lease_holders
        self.impaired_homes = impaired_homes
        self.settings = settings
        self.clear()

    def clear(self) -> None:
        """This broker is no longer root."""
        self.traffic = Traffic(self.port)
        self._unrest_ms: int | None = None
        """When something was last seen to move or to lack a home; None before the first look."""
        self._looked_ms = -LOOK_EVERY_MS

    def is_on(self) -> bool:
        """Whether groups go back by themselves. With the placement `root` they follow the root."""
        return self.settings.rebalance != OFF and self.state.settings.placement != ROOT

    def choose(self, now_ms: int, unrest: bool) -> tuple[Group, str] | None:
        """The group that should move now, and where to; None if none should. ``unrest``: a move is
        under way, or a group has no home."""
        if unrest or self._unrest_ms is None:
            self._unrest_ms = now_ms
        if not self.is_on() or now_ms - self._looked_ms < LOOK_EVERY_MS:
            return None
        self._looked_ms = now_ms
        self.traffic.watch(self._movable(), now_ms)
        if now_ms - self._unrest_ms < PACE_MS:
            return None
        if any(each.draining for each in self.state.registry.brokers.values()):
            return None
        fit = {each.name: each for each in self.state.registry.view() if self._is_fit(each, now_ms)}
        found = self._chosen(fit)
        return found if found is None or not self._catching_up() else None

    # --- who may have groups, and which

    def _movable(self) -> list[Group]:
        return [each for each in self.state.groups.groups.values() if not each.local]

    def _is_fit(self, broker: BrokerRecord, now_ms: int) -> bool:
        """Whether a broker has been present, and well, for long enough to be given groups."""
        if not broker.holds_queues() or broker.draining:
            return False
        lapses = self.lease_holders.lapses(broker.name, now_ms)
        calm_ms = CALM_MS[self.settings.rebalance] << min(lapses, CALM_DOUBLINGS_MAX)
        live_ms = self.lease_holders.live_for_ms(broker.name, broker.incarnation, now_ms)
        return live_ms >= calm_ms and self.impaired_homes.was_sound_for(
            broker.name, calm_ms, now_ms
        )

    def _may_move(self, group: Group) -> bool:
        """Whether a move disturbs nobody: the home is present, the copies that can be there are,
        and there is hardly any traffic unless the settings say that traffic doesn't matter."""
        if group.moving_to or not self.lease_holders.has_home(group, self.state.registry):
            return False
        if self._lacks_copy(group):
            return False
        return self.settings.rebalance == EAGER or self.traffic.is_idle(group.id)

    def _catching_up(self) -> bool:
        return any(self._lacks_copy(group) for group in self._movable())

    def _lacks_copy(self, group: Group) -> bool:
        """Whether a broker that is present should have a whole copy and has none yet."""
        whole = [each.broker for each in group.in_sync if each.copy == WHOLE]
        if len(whole) >= group.copies - 1:
            return False
        registry = self.state.registry
        return any(
            name not in whole and self.lease_holders.is_here(registry.brokers[name])
            for name in wanted_standbys(group, registry)
        )

    # --- which move

    def _chosen(self, fit: dict[str, BrokerRecord]) -> tuple[Group, str] | None:
        for group in self._movable():
            wanted = self._proper_home(group, fit)
            if wanted not in ("", group.home) and self._may_move(group):
                return group, wanted
        for streams in (False, True):
            found = self._evened_out(fit, streams)
            if found is not None:
                return found
        return None

    def _proper_home(self, group: Group, fit: dict[str, BrokerRecord]) -> str:
        """The broker that a group belongs to, whatever the others have; empty if there is none, or
        if it can't have the group now."""
        wanted = group.pinned or ("" if group.stream else group.origin)
        return wanted if wanted in fit else ""

    def _evened_out(self, fit: dict[str, BrokerRecord], streams: bool) -> tuple[Group, str] | None:
        """The move of a group without a proper home that makes the homes more even; for the sake of
        their number, else of their traffic."""
        homes: dict[str, list[Group]] = {name: [] for name in fit}
        for group in self._movable():
            if group.stream == streams and group.home in homes:
                homes[group.home].append(group)
        loads = {name: sum(map(self.traffic.rate, (x.id for x in homes[name]))) for name in homes}
        best: tuple[Group, str] | None = None
        best_rank: tuple[bool, int, float, bool, int] | None = None
        for group, target, whole in self._possible(homes, fit):
            rate = self.traffic.rate(group.id)
            before, after = loads[group.home], max(loads[group.home] - rate, loads[target] + rate)
            fewer = len(homes[group.home]) - len(homes[target])
            eases = before >= BUSY_RECORDS_PER_S and after <= before * RELIEF_PART_MAX
            if fewer < 2 and not (whole and eases):
                continue
            rank = (not whole, -fewer, after, group.origin != target, group.id)
            if best_rank is None or rank < best_rank:
                best, best_rank = (group, target), rank
        return best if best is not None and self._may_move(best[0]) else None

    def _possible(
        self, homes: dict[str, list[Group]], fit: dict[str, BrokerRecord]
    ) -> Iterator[tuple[Group, str, bool]]:
        """Each group that may go to a broker with fewer homes, with that broker, and whether that
        one has a whole copy."""
        fewest = min(map(len, homes.values()), default=0)
        for groups in homes.values():
            if len(groups) <= fewest:
                continue
            for group in groups:
                if group.pinned or self._proper_home(group, fit):
                    continue
                for target in fit.values():
                    if len(homes[target.name]) < len(groups):
                        whole = group.is_whole(target.name, target.incarnation)
                        yield group, target.name, whole


class Traffic:
    """How much happens in groups, from what their homes tell of their logs."""

    def __init__(self, port: RootPort) -> None:
        self._port = port
        self._watched_ms = -WATCH_MS
        self._seen: dict[int, int] = {}
        """The last index of each group's log, when it was looked at last."""
        self._rates: dict[int, float] = {}

    def watch(self, groups: list[Group], now_ms: int) -> None:
        passed_ms = now_ms - self._watched_ms
        if passed_ms < WATCH_MS:
            return
        self._watched_ms = now_ms
        seen_before, self._seen, self._rates = self._seen, {}, {}
        for group in groups:
            index = self._port.records_of(group.id)
            self._seen[group.id] = index
            seen = seen_before.get(group.id, UNKNOWN)
            if UNKNOWN not in (index, seen) and index >= seen:
                self._rates[group.id] = (index - seen) * 1000 / passed_ms

    def rate(self, group: int) -> float:
        """Records a second; 0 if nothing is known."""
        return self._rates.get(group, 0.0)

    def is_idle(self, group: int) -> bool:
        return self._rates.get(group, IDLE_RECORDS_PER_S_MAX) < IDLE_RECORDS_PER_S_MAX
