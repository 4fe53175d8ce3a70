"""Impaired homes: at the root, groups whose home lives and can't serve everybody.

Two kinds of trouble are seen here, from what brokers tell the root every second (``gossip.py``):

- two brokers have no link with each other though both hold a lease: whatever applications of the
  one want of groups of the other waits as long as the network is like that;
- the disk of a broker is full: publishes to its groups wait.

When the trouble has lasted for its patience, the groups of such a home move (G11,
``planned_moves.py``) to a broker that has neither. Safety doesn't depend on what is seen here: a
move loses and doubles nothing, whatever the reason for it.

Edges that lack links with more than half of the homes are left as they are: the trouble is theirs,
and homes would all go to the few brokers that they still reach. Nothing moves either where no
broker reaches all others. ``notices`` says so, for people.

A live broker that has no link with the root has no lease, so it is nobody's edge. If another
primary reaches it and all others, that one should be root.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from rhizome.cluster.link.broker_hello import WITNESS
from rhizome.cluster.state.broker_registry import BrokerRecord
from rhizome.cluster.state.cluster_commands import ROOT
from rhizome.cluster.state.cluster_state import ClusterState
from rhizome.cluster.state.groups_and_placement import Group
from rhizome.cluster.takeover.lease_holders import LeaseHolders
from rhizome.cluster.takeover.root_port import RootPort
from rhizome.cluster.takeover.settings import RootSettings

LOOK_EVERY_MS: Final = 200
"""How often the root compares what brokers tell. They tell every second."""

COPY_PATIENCE_TIMES: Final = 3
"""A group whose copies are all at the wrong places must be copied before it moves. That is worth it
only if the trouble lasts for this many times the patience."""

OFFICE_PATIENCE_TIMES: Final = 2
"""A root that a live broker can't reach waits for this many times the patience before it hands over
the role of root: everybody notices an election."""

GROUPS_NAMED_MAX: Final = 10


class ImpairedHomes:
    """The homes that can't serve everybody, as the root sees them.

    Invariant: ``apart``, ``full`` and ``unheard`` have what was so at the last look, and since when
    it has been so without a break. Pairs are in alphabetical order.
    """

    def __init__(
        self,
        state: ClusterState,
        port: RootPort,
        lease_holders: LeaseHolders,
        settings: RootSettings,
    ) -> None:
        self.state = state
        self.port = port
        self.lease_holders = lease_holders
        self.settings = settings
        self.clear()

    def clear(self) -> None:
        """This broker is no longer root."""
        self.apart: dict[tuple[str, str], int] = {}
        self.full: dict[str, int] = {}
        self.unheard: dict[str, int] = {}
        self._links: dict[str, Collection[str] | None] = {}
        self.troubled: dict[str, str] = {}
        """Homes that could not serve everybody at the last look, and why."""
        self._able: list[BrokerRecord] = []
        """Brokers that could take groups from homes in trouble; kept because there may be thousands
        of groups."""
        self._ended_ms: dict[str, int] = {}
        self._looked_ms = -LOOK_EVERY_MS

    def stood_still(self, away_ms: int) -> None:
        """This broker stood still: what others have told meanwhile isn't heard yet."""
        for known in (self.full, self.unheard):
            for name in known:
                known[name] += away_ms
        for pair in self.apart:
            self.apart[pair] += away_ms

    # --- looking

    def look(self, now_ms: int) -> None:
        if now_ms - self._looked_ms < LOOK_EVERY_MS:
            return
        self._looked_ms = now_ms
        brokers = self.state.registry.view()
        here = [each for each in brokers if self.lease_holders.is_here(each)]
        self._links = {each.name: self.port.links_of(each.name) for each in here}
        self.apart = {pair: self.apart.get(pair, now_ms) for pair in self._pairs_apart(here)}
        full = [each.name for each in here if self.port.has_full_disk(each.name)]
        self.full = {name: self.full.get(name, now_ms) for name in full}
        unheard = [each.name for each in brokers if self._is_unheard(each, here)]
        self.unheard = {name: self.unheard.get(name, now_ms) for name in unheard}
        self._note_trouble(now_ms)
        patience_ms = self.settings.unlinked_patience_ms
        self._able = [
            each
            for each in here
            if each.holds_queues() and not each.draining
            if self.was_sound_for(each.name, patience_ms, now_ms)
        ]

    def _pairs_apart(self, here: list[BrokerRecord]) -> list[tuple[str, str]]:
        """Homes and edges that hold leases, and have no link according to either of them."""
        pairs = []
        for home in here:
            for edge in here:
                if home.name == edge.name or not home.holds_queues() or edge.role == WITNESS:
                    continue
                if self._lacks(home.name, edge.name) or self._lacks(edge.name, home.name):
                    pairs.append((min(home.name, edge.name), max(home.name, edge.name)))
        return list(dict.fromkeys(pairs))

    def _lacks(self, name: str, other: str) -> bool:
        """Whether a broker says that it has no link with another. One of an earlier release doesn't
        tell."""
        links = self._links.get(name)
        return links is not None and other not in links

    def _is_unheard(self, broker: BrokerRecord, here: list[BrokerRecord]) -> bool:
        """Whether a broker has no lease because it has no link with this one, though more than half
        of the other homes have a link with it."""
        me = self.lease_holders.me
        if not broker.incarnation or broker.role == WITNESS or broker in here:
            return False
        if not self._lacks(me, broker.name):
            return False
        others = [each.name for each in here if each.holds_queues() and each.name != me]
        return 2 * sum(broker.name in (self._links[each] or ()) for each in others) > len(others)

    def _note_trouble(self, now_ms: int) -> None:
        """Remember who was in trouble: groups go back to it later, each time later than before."""
        was = self.troubled
        self.troubled = {}
        for broker in self.state.registry.view():
            why = self.trouble(broker.name, now_ms) if broker.holds_queues() else ""
            if why:
                if why not in [*was.values(), *self.troubled.values()]:
                    self.port.report(why)
                self.troubled[broker.name] = why
            elif broker.name in was and self.lease_holders.is_here(broker):
                self._ended_ms[broker.name] = now_ms
                self.lease_holders.count_lapse(broker.name, now_ms)
                self.port.report(f"{broker.name} can serve everybody again")

    # --- what was seen

    def trouble(self, name: str, now_ms: int) -> str:
        """Why a broker should not be a home now, in words; empty if it may be."""
        patience_ms = self.settings.full_disk_patience_ms
        if patience_ms and name in self.full and now_ms - self.full[name] >= patience_ms:
            return f"the disk of {name} is full"
        cut_off = self._cut_off(name, now_ms)
        if len(cut_off) == 1:
            first, second = sorted((name, cut_off[0]))
            return f"{first} and {second} can't reach each other"
        return f"{name} can't reach {', '.join(cut_off)}" if cut_off else ""

    def _cut_off(self, name: str, now_ms: int) -> list[str]:
        """The edges that this home has not reached for the patience, except those that reach hardly
        anybody."""
        patience_ms = self.settings.unlinked_patience_ms
        return [
            other
            for other in self._apart_from(name)
            if patience_ms
            and now_ms - self.apart[min(name, other), max(name, other)] >= patience_ms
            and not self._is_alone(other)
        ]

    def _apart_from(self, name: str) -> list[str]:
        return [pair[0] if pair[1] == name else pair[1] for pair in self.apart if name in pair]

    def _is_alone(self, name: str) -> bool:
        """Whether a broker lacks links with more than half of the homes that there are."""
        brokers = self.state.registry.brokers
        homes = [each for each in self._links if brokers[each].holds_queues() and each != name]
        missed = [each for each in self._apart_from(name) if each in homes]
        return 2 * len(missed) > len(homes)

    def is_sound(self, name: str) -> bool:
        """Whether a broker has no trouble at all, not even of the last moment."""
        return name not in self.full and all(self._is_alone(x) for x in self._apart_from(name))

    def was_sound_for(self, name: str, ms: int, now_ms: int) -> bool:
        ended_ms = self._ended_ms.get(name)
        return self.is_sound(name) and (ended_ms is None or now_ms - ended_ms >= ms)

    # --- who should have a group, or the role of root

    def successor(self, group: Group, now_ms: int) -> BrokerRecord | None:
        """Who takes a group from a home in trouble: a whole member, by the failover list. If there
        is none and a link is what is missing, another broker, which is sent a copy first."""
        able = [each for each in self._able if each.name != group.home]
        whole = [each for each in able if group.is_whole(each.name, each.incarnation)]
        if not whole and not self._is_worth_a_copy(group.home, now_ms):
            return None
        listed = list(group.failover)

        def rank(broker: BrokerRecord) -> tuple[int, int]:
            place = listed.index(broker.name) if broker.name in listed else len(listed)
            return (place, broker.seniority)

        return min(whole or able, key=rank, default=None)

    def _is_worth_a_copy(self, home: str, now_ms: int) -> bool:
        """Whether links have been down for so long that a group should be copied to move. Never
        from a full disk: a broker without a copy of it may have been left out for a reason."""
        patience_ms = self.settings.unlinked_patience_ms * (COPY_PATIENCE_TIMES - 1)
        return home not in self.full and bool(self._cut_off(home, now_ms - patience_ms))

    def heir(self, now_ms: int) -> str:
        """Who should be root because live brokers don't reach this one; empty if nobody should."""
        patience_ms = self.settings.unlinked_patience_ms * OFFICE_PATIENCE_TIMES
        lost = [name for name, since_ms in self.unheard.items() if now_ms - since_ms >= patience_ms]
        if not lost or not patience_ms:
            return ""
        able = [each for each in self.state.registry.view() if self._could_reach(each, lost)]
        chosen = min(able, key=lambda each: not each.holds_queues(), default=None)
        return "" if chosen is None else chosen.name

    def _could_reach(self, broker: BrokerRecord, lost: list[str]) -> bool:
        """Whether a primary has links with every broker that is present, and with those that this
        root has lost. Where homes follow the root it must have them all."""
        links = self._links.get(broker.name)
        if links is None or not broker.votes() or broker.draining:
            return False
        if broker.name == self.lease_holders.me or broker.name in self.full:
            return False
        if self.state.settings.placement == ROOT:
            groups = [each for each in self.state.groups.groups.values() if not each.local]
            if not all(each.is_whole(broker.name, broker.incarnation) for each in groups):
                return False
        return all(name in links or name == broker.name for name in [*self._links, *lost])

    # --- for people

    def notices(self, now_ms: int) -> list[str]:
        """What is in trouble, and what becomes of the groups there."""
        told = []
        for name, why in self.troubled.items():
            at_home = [
                each
                for each in self.state.groups.groups.values()
                if each.home == name and not each.local
            ]
            moving = [each.id for each in at_home if each.moving_to]
            staying = [each.id for each in at_home if not each.moving_to]
            if moving:
                to = ", ".join(sorted({each.moving_to for each in at_home if each.moving_to}))
                told.append(f"{why}: {_named(moving)} {_verb(moving, 'move')} to {to}")
            if staying:
                told.append(
                    f"{why}: {_named(staying)} {_verb(staying, 'stay')} on {name}, since no broker"
                    " that has a whole copy also has room on its disk and links with all others"
                )
            if not at_home:
                told.append(f"{why}: {name} is the home of no group until that is over")
        return [*told, *self._lone_edges(now_ms)]

    def _lone_edges(self, now_ms: int) -> list[str]:
        """Edges that lack most links, and have lacked them for the patience."""
        told = []
        patience_ms = self.settings.unlinked_patience_ms
        for name in self._links:
            missed = [
                other
                for other in self._apart_from(name)
                if now_ms - self.apart[min(name, other), max(name, other)] >= patience_ms
            ]
            if missed and self._is_alone(name):
                told.append(
                    f"{name} can't reach {', '.join(missed)}: its clients wait for queues there,"
                    " and no group moves for a broker that lacks most links"
                )
        return told


def _named(groups: list[int]) -> str:
    if len(groups) > GROUPS_NAMED_MAX:
        return f"{len(groups)} groups"
    return f"group{'s' * (len(groups) > 1)} {', '.join(str(each) for each in groups)}"


def _verb(groups: list[int], verb: str) -> str:
    return verb if len(groups) > 1 else f"{verb}s"
