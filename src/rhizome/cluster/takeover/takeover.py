"""Takeover: at the root, who becomes the home of a group whose home is gone (G3).

Sans-IO. Its driver tells it of leases (``lease_live``, ``lease_over``), of its own role
(``became_root`` once the root knows all that was committed, ``resigned``), of every change of the
cluster state, of the answers to what it asks, and of time. It proposes through ``RootPort``.

A group goes from

    served      to  homeless   when its home was removed, has restarted or has lost its lease
    served      to  served     when its home tells that a fault keeps it from serving: it shows and
                               confirms nothing more in this epoch, so a whole member is appointed
                               as if it were gone; without one it stays
    homeless    to  served     when a whole member that is present says that its copy is usable: the
                               first of them is appointed, at once
    homeless    to  served     when no whole member came for `whole_patience`, or none can come, and
                               the copies on disk have answered: the best is appointed
    homeless    to  served     when the last home registers anew and nobody else is in sync: the
                               state itself appoints it (``Groups.restarted``)

Takeover alone does not decide whom it may appoint. `AppointHome` is refused, when it is applied,
for a broker that is neither an in-sync member nor the last home, and if epoch or set have changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rhizome.cluster.consensus.settings import EXCUSES_MAX
from rhizome.cluster.state.broker_registry import BrokerRecord
from rhizome.cluster.state.cluster_commands import ROOT, WHOLE, AppointHome, Member, SetAway
from rhizome.cluster.state.cluster_state import ClusterState
from rhizome.cluster.state.groups_and_placement import Group, unavailable
from rhizome.cluster.takeover.copy_progress import NO_COPY, CopyProgress
from rhizome.cluster.takeover.lease_holders import LeaseHolders
from rhizome.cluster.takeover.planned_moves import PlannedMoves
from rhizome.cluster.takeover.root_port import RootPort, RootProposals, about_broker, about_group
from rhizome.cluster.takeover.settings import RootSettings

NEVER_MS: Final = 1 << 62

MANY: Final = 100
RUN_EVERY_MS: Final = 250
"""How often the root looks: each look is at all groups, which is too much for every tick if there
are many."""

ORDER_PATIENCE_MS: Final = 200
"""How long a new root lets a whole member wait for one that comes before it in the failover list
and has not shown itself yet."""

ANSWER_PATIENCE_MS: Final = 500
"""How long a copy has to say how far it is, before others are chosen without it; after the same
time it is asked again."""

RETURN_PATIENCE_MS: Final = 500
"""How long a home that answers the root has to get a lease again: one that was root until now, and
did not die, or one that was late. It goes on in its epoch, and its edges see next to nothing."""


@dataclass
class CopyQuestion:
    """A question to an incarnation of a broker: when it was first and last asked, and its
    answer."""

    incarnation: str
    first_ms: int
    last_ms: int
    copy_progress: CopyProgress | None = None

    def is_usable(self) -> bool:
        return self.copy_progress is not None and self.copy_progress.is_usable()


@dataclass
class HomelessGroup:
    """A group without a home, since when, and who was asked for its copy."""

    epoch: int
    since_ms: int
    asked: dict[str, CopyQuestion] = field(default_factory=dict)
    excuses: int = 0


class Takeover:
    """The root's decisions about groups whose home is gone.

    Invariant: while this broker is root, ``homeless_groups`` has exactly the groups whose home may
    be replaced or has failed, local ones never; otherwise nothing is proposed.

    There may be thousands of groups (each stream has one): while their homes live each costs one
    look, and no more.
    """

    state: ClusterState
    port: RootPort
    settings: RootSettings
    lease_holders: LeaseHolders
    moves: PlannedMoves
    is_root: bool
    now_ms: int
    homeless_groups: dict[int, HomelessGroup]

    def __init__(
        self,
        me: str,
        incarnation: str,
        state: ClusterState,
        port: RootPort,
        settings: RootSettings,
        now_ms: int,
    ) -> None:
        self.state = state
        self.port = port
        self.settings = settings
        self.lease_holders = LeaseHolders(me, incarnation, now_ms)
        self._tended_ms = now_ms
        self.is_root = False
        self.now_ms = now_ms
        self.homeless_groups = {}
        self._motions = RootProposals(state, port)
        self.moves = PlannedMoves(state, self._motions, self.lease_holders, settings)
        self._since_ms = now_ms

    # --- inputs

    def begin(self, now_ms: int) -> None:
        """The time at which the inputs that follow come."""
        self.now_ms = now_ms

    def stood_still(self, away_ms: int) -> None:
        """This broker stood still: brokers that have answered meanwhile aren't heard yet. Without
        this a copy that has only what is on disk would take over while the answer of a whole one
        waits to be read."""
        self._since_ms += away_ms
        self.moves.impaired_homes.stood_still(away_ms)
        for homeless in self.homeless_groups.values():
            if homeless.excuses < EXCUSES_MAX:
                homeless.excuses += 1
                homeless.since_ms += away_ms
                for asked in homeless.asked.values():
                    asked.first_ms += away_ms
                    asked.last_ms += away_ms

    def lease_live(self, name: str, incarnation: str) -> None:
        self.lease_holders.heard(name, incarnation, True, self.now_ms)
        self._run()

    def lease_over(self, name: str, incarnation: str) -> None:
        """May come before ``became_root``: a new root begins with what is known of the last one."""
        self.lease_holders.heard(name, incarnation, False, self.now_ms)
        self._run()

    def became_root(self) -> None:
        """The root's first entry is committed: the state has all that earlier roots committed."""
        self.is_root = True
        self._since_ms = self.now_ms
        self._run()

    def resigned(self) -> None:
        self.is_root = False
        self.lease_holders.clear()
        self.homeless_groups = {}
        self._motions.clear()
        self.moves.clear()

    def state_changed(self) -> None:
        """Entries were applied, or a snapshot."""
        for broker in self.state.registry.brokers.values():
            self.lease_holders.note(broker, self.now_ms)
        self._run()

    def copy_progresses(self, name: str, told: Mapping[int, CopyProgress]) -> None:
        """A broker's answer: how far its copies of groups are (`NO_COPY`: it can't be home)."""
        self.note_copy_progress(name, told)
        for number in told:
            group = self.state.groups.groups.get(number)
            if self.is_root and group is not None and number in self.homeless_groups:
                if self.lease_holders.has_lost_home(group, self.state.registry):
                    self._run_homeless(group)
                else:
                    self._run_failed(group)

    def note_copy_progress(self, name: str, told: Mapping[int, CopyProgress]) -> None:
        """An answer that is there as soon as it is asked for; the caller decides next."""
        for number, copy_progress in told.items():
            homeless = self.homeless_groups.get(number)
            if homeless is not None and name in homeless.asked:
                homeless.asked[name].copy_progress = copy_progress

    def tick(self, now_ms: int) -> None:
        self.now_ms = now_ms
        if len(self.state.groups.groups) < MANY or now_ms - self._tended_ms >= RUN_EVERY_MS:
            self._run()

    def deadline_ms(self) -> int:
        """When ``tick`` is due at the latest."""
        deadline = NEVER_MS
        for homeless in self.homeless_groups.values():
            for due_ms in (
                self._since_ms + ORDER_PATIENCE_MS,
                homeless.since_ms + RETURN_PATIENCE_MS,
                homeless.since_ms + self.settings.whole_patience_ms,
                *(asked.last_ms + ANSWER_PATIENCE_MS for asked in homeless.asked.values()),
            ):
                if self.now_ms < due_ms < deadline:
                    deadline = due_ms
        return min(deadline, self.moves.deadline_ms(self.now_ms)) if self.is_root else NEVER_MS

    # --- for people

    def reason(self, group_id: int) -> str:
        """Why a group is unavailable; empty if it isn't."""
        group = self.state.groups.groups.get(group_id)
        return "" if group is None else unavailable(group, self.state.registry)

    # --- deciding

    def _run(self) -> None:
        if not self.is_root:
            return
        self._tended_ms = self.now_ms
        self._note_absence()
        registry = self.state.registry
        failed = self.port.failed_homes()
        for group in self.state.groups.groups.values():
            if group.local:
                continue  # G9: nobody but its broker, which the state appoints when it is back
            if self.lease_holders.has_lost_home(group, registry):
                self._run_homeless(group)
            elif failed.get(group.id) == group.epoch:
                self._run_failed(group)
            elif group.id in self.homeless_groups:
                del self.homeless_groups[group.id]
        for number in [
            each for each in self.homeless_groups if each not in self.state.groups.groups
        ]:
            del self.homeless_groups[number]
        self.moves.run(self.now_ms, any(number not in failed for number in self.homeless_groups))

    def _note_absence(self) -> None:
        """Keep the state's record of who is away true: new queues go to brokers that are
        present."""
        for broker in self.state.registry.brokers.values():
            if not broker.votes():
                continue
            over = self.lease_holders.is_over(broker.name, broker.incarnation)
            if not over and not self.lease_holders.is_here(broker):
                continue
            gone_ms = self.lease_holders.over_for_ms(broker.name, broker.incarnation, self.now_ms)
            lost = broker.lost or gone_ms >= self.settings.replace_patience_ms
            if (broker.away, broker.lost) != (over, over and lost):
                command = SetAway(broker.name, broker.incarnation, over, over and lost)
                self._motions.propose(about_broker(broker.name), command)

    def _run_failed(self, group: Group) -> None:
        """The home lives and has failed: a broker that has all that it confirmed takes over."""
        homeless = self._homeless(group)
        if self._motions.is_open(about_group(group.id)):
            return
        chosen = self._choose_whole(group, homeless)
        if chosen is not None and chosen.name != group.home:
            self.port.report(
                f"the home of group {group.id} on {group.home} has failed: {chosen.name} takes over"
            )
            self._appoint(group, chosen)

    def _homeless(self, group: Group) -> HomelessGroup:
        homeless = self.homeless_groups.get(group.id)
        if homeless is None or homeless.epoch != group.epoch:
            homeless = HomelessGroup(group.epoch, self.now_ms)
            self.homeless_groups[group.id] = homeless
        return homeless

    def _appoint(self, group: Group, chosen: BrokerRecord) -> None:
        self._motions.propose(
            about_group(group.id),
            AppointHome(group.id, chosen.name, chosen.incarnation, group.epoch, group.version),
        )

    def _run_homeless(self, group: Group) -> None:
        homeless = self._homeless(group)
        if self._motions.is_open(about_group(group.id)) or self._may_return(group, homeless):
            return
        chosen = self._choose_whole(group, homeless) or self._choose_disk(group, homeless)
        if chosen is not None:
            self._appoint(group, chosen)

    def _may_return(self, group: Group, homeless: HomelessGroup) -> bool:
        """Whether the home itself is present, in the incarnation that was appointed (G1), and lacks
        nothing but a lease. It serves nobody without one (R9), so it isn't waited for long."""
        home = self.state.registry.brokers.get(group.home)
        if home is None or home.incarnation != group.incarnation or home.draining:
            return False
        return self.now_ms < homeless.since_ms + RETURN_PATIENCE_MS and self.port.hears(home.name)

    # --- whole members

    def _choose_whole(self, group: Group, homeless: HomelessGroup) -> BrokerRecord | None:
        """The first whole member that is present and has a usable copy, in the order of preference;
        None for now if one before it may still show itself, or has not answered yet."""
        waits = self.now_ms < self._since_ms + ORDER_PATIENCE_MS
        registry = self.state.registry
        whole = [each for each in self._in_order(group) if each.copy == WHOLE]
        here = [each for each in whole if self.lease_holders.has_member(each, registry)]
        self._ask(group, homeless, [registry.brokers[each.broker] for each in here])
        for member in whole:
            broker = registry.brokers[member.broker]
            if member in here:
                if homeless.asked[broker.name].is_usable():
                    return broker
                if self._may_answer(homeless, broker):
                    return None
            elif waits and not self.lease_holders.is_over(member.broker, member.incarnation):
                return None
        return None

    def _in_order(self, group: Group) -> list[Member]:
        """The order of preference: those that stay before those that are to stop; where the home
        follows the root, the root first (R14); then by the failover list, then by seniority."""
        brokers = self.state.registry.brokers
        follows = self.state.settings.placement == ROOT
        ranked = []
        for member in group.in_sync:
            broker = brokers.get(member.broker)
            if broker is None:
                continue
            name = broker.name
            place = group.failover.index(name) if name in group.failover else len(group.failover)
            first = follows and name == self.lease_holders.me
            ranked.append((broker.draining, not first, place, broker.seniority, member))
        return [member for *_, member in sorted(ranked, key=lambda each: each[:4])]

    # --- members that have only what was on disk

    def _choose_disk(self, group: Group, homeless: HomelessGroup) -> BrokerRecord | None:
        """The best of the copies on disk, the old home's included, if no whole one can be had.

        Each of them has everything that was confirmed as persistent; the best has most of the rest.
        """
        if not group.in_sync:
            return None
        able, complete = self._on_disk(group)
        if not able:
            return None
        if not complete and self.now_ms < homeless.since_ms + self.settings.whole_patience_ms:
            return None
        return self._best(group, homeless, able)

    def _on_disk(self, group: Group) -> tuple[list[BrokerRecord], bool]:
        """The brokers that have a copy on disk and are present; and whether these are all that
        there are."""
        registry = self.state.registry
        able: list[BrokerRecord] = []
        complete = True
        for member in self._in_order(group):
            if member.copy != WHOLE and self.lease_holders.has_member(member, registry):
                able.append(registry.brokers[member.broker])
            else:
                complete = False
        last = registry.brokers.get(group.home)
        if last is not None:
            if last.incarnation != group.incarnation and self.lease_holders.is_here(last):
                able.append(last)
            else:
                complete = False
        return able, complete

    def _best(
        self, group: Group, homeless: HomelessGroup, able: list[BrokerRecord]
    ) -> BrokerRecord | None:
        self._ask(group, homeless, able)
        if any(self._may_answer(homeless, each) for each in able):
            return None
        best: BrokerRecord | None = None
        most = CopyProgress(0, NO_COPY)
        for broker in able:
            copy_progress = homeless.asked[broker.name].copy_progress
            if copy_progress is not None and copy_progress.is_usable() and copy_progress > most:
                best, most = broker, copy_progress
        return best

    # --- asking

    def _ask(self, group: Group, homeless: HomelessGroup, brokers: list[BrokerRecord]) -> None:
        """Ask for copies. Brokers without a usable copy are asked again after a while."""
        due = []
        for broker in brokers:
            asked = homeless.asked.get(broker.name)
            if asked is None or asked.incarnation != broker.incarnation:
                homeless.asked[broker.name] = CopyQuestion(
                    broker.incarnation, self.now_ms, self.now_ms
                )
            elif asked.is_usable() or self.now_ms < asked.last_ms + ANSWER_PATIENCE_MS:
                continue
            else:
                asked.last_ms = self.now_ms
            due.append(broker.name)
        for name in due:
            self.port.ask_copy_progress(name, [group.id])

    def _may_answer(self, homeless: HomelessGroup, broker: BrokerRecord) -> bool:
        asked = homeless.asked[broker.name]
        return asked.copy_progress is None and self.now_ms < asked.first_ms + ANSWER_PATIENCE_MS


def preference(state: ClusterState, me: str, incarnation: str, root: str) -> int:
    """For how many groups of a root this broker is in sync, should that root be lost (R5)."""
    return sum(
        group.home == root and group.is_whole(me, incarnation)
        for group in state.groups.groups.values()
    )
