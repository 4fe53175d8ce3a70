"""Takeover: at the root, who becomes the home of a group whose home is gone (G3).

Sans-IO. Whoever drives it tells it of leases (``lease_live``, ``lease_over``), of its own office
(``became_root`` once the root knows all that was committed, ``resigned``), of every change of the
cluster state, of the answers to what it asks, and of time; it proposes through ``RootPort``.

A group goes from

    served      to  bereft     when its home was removed, has restarted or has lost its lease
    bereft      to  served     when a whole member that is there says that its copy is usable: the
                               first of them is appointed, at once
    bereft      to  served     when no whole member came for `whole_patience`, or none can come, and
                               the copies on disk have answered: the best is appointed
    bereft      to  served     when the last home registers anew and nobody else is in sync: the
                               state itself appoints it (``Groups.restarted``)

Whom it may appoint at all is not decided here alone: `AppointHome` is refused, when it is applied,
for anybody who is neither an in-sync member nor the last home, and if epoch or set have changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rhizome.cluster.commands import ROOT, WHOLE, AppointHome, Member, SetAway
from rhizome.cluster.consensus.settings import EXCUSES_MAX
from rhizome.cluster.moves import Moves
from rhizome.cluster.placement import Group, unavailable
from rhizome.cluster.presence import Presence
from rhizome.cluster.registry import BrokerRecord
from rhizome.cluster.rootport import Motions, RootPort, about_broker, about_group
from rhizome.cluster.rootsettings import RootSettings
from rhizome.cluster.standings import NO_COPY, Standing
from rhizome.cluster.state import ClusterState

NEVER_MS: Final = 1 << 62

MANY: Final = 100
TEND_EVERY_MS: Final = 250
"""Each look is at all groups. If there are many, the root doesn't take one at every tick."""

ORDER_PATIENCE_MS: Final = 200
"""How long a new root lets a whole member wait for one that comes before it in the failover list
and has not shown itself yet."""

ANSWER_PATIENCE_MS: Final = 500
"""How long a copy has to say how far it is, before others are chosen without it; and after which
it is asked again."""

RETURN_PATIENCE_MS: Final = 500
"""How long a home that answers the root has to get a lease again: one that was root until now, and
did not die, or one that was late. It goes on in its epoch, and its edges see next to nothing."""


@dataclass
class Asked:
    """A question to an incarnation of a broker: when first, when last, and its answer."""

    incarnation: str
    first_ms: int
    last_ms: int
    standing: Standing | None = None

    def is_usable(self) -> bool:
        return self.standing is not None and self.standing.is_usable()


@dataclass
class Bereft:
    """A group without a home, since when, and who was asked for its copy."""

    epoch: int
    since_ms: int
    asked: dict[str, Asked] = field(default_factory=dict)
    excuses: int = 0


class Takeover:
    """Invariant: while this broker is root, ``bereft`` has exactly the groups whose home may be
    replaced, local ones never; otherwise nothing is proposed.

    There may be thousands of groups (each stream has one): while their homes live they cost a look,
    and no more.
    """

    state: ClusterState
    port: RootPort
    settings: RootSettings
    presence: Presence
    moves: Moves
    is_root: bool
    now_ms: int
    bereft: dict[int, Bereft]

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
        self.presence = Presence(me, incarnation, now_ms)
        self._tended_ms = now_ms
        self.is_root = False
        self.now_ms = now_ms
        self.bereft = {}
        self._motions = Motions(state, port)
        self.moves = Moves(state, self._motions, self.presence, settings)
        self._since_ms = now_ms

    # --- inputs

    def begin(self, now_ms: int) -> None:
        """The time at which the inputs that follow come."""
        self.now_ms = now_ms

    def stood_still(self, away_ms: int) -> None:
        """This broker did: who has answered meanwhile isn't heard yet. Without this a copy that has
        only what is on disk would take over while the answer of a whole one waits to be read."""
        self._since_ms += away_ms
        self.moves.relief.stood_still(away_ms)
        for case in self.bereft.values():
            if case.excuses < EXCUSES_MAX:
                case.excuses += 1
                case.since_ms += away_ms
                for asked in case.asked.values():
                    asked.first_ms += away_ms
                    asked.last_ms += away_ms

    def lease_live(self, name: str, incarnation: str) -> None:
        self.presence.heard(name, incarnation, True, self.now_ms)
        self._tend()

    def lease_over(self, name: str, incarnation: str) -> None:
        """May come before ``became_root``: the office began with what is known of the last one."""
        self.presence.heard(name, incarnation, False, self.now_ms)
        self._tend()

    def became_root(self) -> None:
        """The root's first entry is committed: the state has all that earlier roots committed."""
        self.is_root = True
        self._since_ms = self.now_ms
        self._tend()

    def resigned(self) -> None:
        self.is_root = False
        self.presence.clear()
        self.bereft = {}
        self._motions.clear()
        self.moves.clear()

    def state_changed(self) -> None:
        """Entries were applied, or a snapshot."""
        for broker in self.state.registry.brokers.values():
            self.presence.note(broker, self.now_ms)
        self._tend()

    def standings(self, name: str, told: Mapping[int, Standing]) -> None:
        """A broker's answer: how far its copies of groups are (`NO_COPY`: it can't be home)."""
        self.note_standings(name, told)
        for number in told:
            group = self.state.groups.groups.get(number)
            if self.is_root and group is not None and number in self.bereft:
                self._tend_bereft(group)

    def note_standings(self, name: str, told: Mapping[int, Standing]) -> None:
        """An answer that is there as soon as it is asked for, by whoever decides next."""
        for number, standing in told.items():
            case = self.bereft.get(number)
            if case is not None and name in case.asked:
                case.asked[name].standing = standing

    def tick(self, now_ms: int) -> None:
        self.now_ms = now_ms
        if len(self.state.groups.groups) < MANY or now_ms - self._tended_ms >= TEND_EVERY_MS:
            self._tend()

    def deadline_ms(self) -> int:
        """When ``tick`` is due at the latest."""
        deadline = NEVER_MS
        for case in self.bereft.values():
            for due_ms in (
                self._since_ms + ORDER_PATIENCE_MS,
                case.since_ms + RETURN_PATIENCE_MS,
                case.since_ms + self.settings.whole_patience_ms,
                *(asked.last_ms + ANSWER_PATIENCE_MS for asked in case.asked.values()),
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

    def _tend(self) -> None:
        if not self.is_root:
            return
        self._tended_ms = self.now_ms
        self._note_absence()
        registry = self.state.registry
        for group in self.state.groups.groups.values():
            if group.local:
                continue  # G9: nobody but its broker, which the state appoints when it is back
            if self.presence.has_lost_home(group, registry):
                self._tend_bereft(group)
            elif group.id in self.bereft:
                del self.bereft[group.id]
        for number in [each for each in self.bereft if each not in self.state.groups.groups]:
            del self.bereft[number]
        self.moves.tend(self.now_ms, bool(self.bereft))

    def _note_absence(self) -> None:
        """Keep the state's word for who is away true: new queues go to those who are there."""
        for broker in self.state.registry.brokers.values():
            if not broker.votes() or not broker.incarnation:
                continue
            over = self.presence.is_over(broker.name, broker.incarnation)
            if not over and not self.presence.is_here(broker):
                continue
            gone_ms = self.presence.over_for_ms(broker.name, broker.incarnation, self.now_ms)
            lost = broker.lost or gone_ms >= self.settings.replace_patience_ms
            if (broker.away, broker.lost) != (over, over and lost):
                command = SetAway(broker.name, broker.incarnation, over, over and lost)
                self._motions.propose(about_broker(broker.name), command)

    def _tend_bereft(self, group: Group) -> None:
        case = self.bereft.get(group.id)
        if case is None or case.epoch != group.epoch:
            case = Bereft(group.epoch, self.now_ms)
            self.bereft[group.id] = case
        if self._motions.is_open(about_group(group.id)) or self._may_return(group, case):
            return
        chosen = self._choose_whole(group, case) or self._choose_disk(group, case)
        if chosen is not None:
            self._motions.propose(
                about_group(group.id),
                AppointHome(group.id, chosen.name, chosen.incarnation, group.epoch, group.version),
            )

    def _may_return(self, group: Group, case: Bereft) -> bool:
        """Whether the home itself is there, in the incarnation that was appointed (G1), and lacks
        nothing but a lease. It serves nobody without one (R9), so it isn't waited for long."""
        home = self.state.registry.brokers.get(group.home)
        if home is None or home.incarnation != group.incarnation or home.draining:
            return False
        return self.now_ms < case.since_ms + RETURN_PATIENCE_MS and self.port.hears(home.name)

    # --- whole members

    def _choose_whole(self, group: Group, case: Bereft) -> BrokerRecord | None:
        """The first whole member that is there and has a usable copy, in the order of preference;
        None for now if one before it may still show itself, or has not answered yet."""
        waits = self.now_ms < self._since_ms + ORDER_PATIENCE_MS
        registry = self.state.registry
        whole = [each for each in self._in_order(group) if each.copy == WHOLE]
        here = [each for each in whole if self.presence.has_member(each, registry)]
        self._ask(group, case, [registry.brokers[each.broker] for each in here])
        for member in whole:
            broker = registry.brokers[member.broker]
            if member in here:
                if case.asked[broker.name].is_usable():
                    return broker
                if self._may_answer(case, broker):
                    return None
            elif waits and not self.presence.is_over(member.broker, member.incarnation):
                return None
        return None

    def _in_order(self, group: Group) -> list[Member]:
        """Those that stay before those that are to stop; where the home follows the root, the root
        first (R14); then by the failover list, then by seniority."""
        brokers = self.state.registry.brokers
        follows = self.state.settings.placement == ROOT
        ranked = []
        for member in group.in_sync:
            broker = brokers.get(member.broker)
            if broker is None:
                continue
            name = broker.name
            place = group.failover.index(name) if name in group.failover else len(group.failover)
            first = follows and name == self.presence.me
            ranked.append((broker.draining, not first, place, broker.seniority, member))
        return [member for *_, member in sorted(ranked, key=lambda each: each[:4])]

    # --- members that have only what was on disk

    def _choose_disk(self, group: Group, case: Bereft) -> BrokerRecord | None:
        """The best of the copies on disk, the old home's included, if no whole one can be had.

        Each of them has everything confirmed persistent; the best has most of the rest.
        """
        if not group.in_sync:
            return None
        able, complete = self._on_disk(group)
        if not able:
            return None
        if not complete and self.now_ms < case.since_ms + self.settings.whole_patience_ms:
            return None
        return self._best(group, case, able)

    def _on_disk(self, group: Group) -> tuple[list[BrokerRecord], bool]:
        """Who has a copy on disk and is there; and whether these are all that there are."""
        registry = self.state.registry
        able: list[BrokerRecord] = []
        complete = True
        for member in self._in_order(group):
            if member.copy != WHOLE and self.presence.has_member(member, registry):
                able.append(registry.brokers[member.broker])
            else:
                complete = False
        last = registry.brokers.get(group.home)
        if last is not None:
            if last.incarnation != group.incarnation and self.presence.is_here(last):
                able.append(last)
            else:
                complete = False
        return able, complete

    def _best(self, group: Group, case: Bereft, able: list[BrokerRecord]) -> BrokerRecord | None:
        self._ask(group, case, able)
        if any(self._may_answer(case, each) for each in able):
            return None
        best: BrokerRecord | None = None
        most = Standing(0, NO_COPY)
        for broker in able:
            standing = case.asked[broker.name].standing
            if standing is not None and standing.is_usable() and standing > most:
                best, most = broker, standing
        return best

    # --- asking

    def _ask(self, group: Group, case: Bereft, brokers: list[BrokerRecord]) -> None:
        """Ask for copies; again after a while those that have none that is usable."""
        due = []
        for broker in brokers:
            asked = case.asked.get(broker.name)
            if asked is None or asked.incarnation != broker.incarnation:
                case.asked[broker.name] = Asked(broker.incarnation, self.now_ms, self.now_ms)
            elif asked.is_usable() or self.now_ms < asked.last_ms + ANSWER_PATIENCE_MS:
                continue
            else:
                asked.last_ms = self.now_ms
            due.append(broker.name)
        for name in due:
            self.port.ask_standing(name, [group.id])

    def _may_answer(self, case: Bereft, broker: BrokerRecord) -> bool:
        asked = case.asked[broker.name]
        return asked.standing is None and self.now_ms < asked.first_ms + ANSWER_PATIENCE_MS


def preference(state: ClusterState, me: str, incarnation: str, root: str) -> int:
    """For how many groups of a root this broker is in sync, should that root be lost (R5)."""
    return sum(
        group.home == root and group.is_whole(me, incarnation)
        for group in state.groups.groups.values()
    )
