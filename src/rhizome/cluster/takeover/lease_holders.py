"""Lease holders: who holds a lease, as the root hears it from consensus (R9).

An incarnation is live, over, or unknown. An unknown one may hold a lease of the root before, and
counts as neither present nor gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rhizome.cluster.state.broker_registry import BrokerRecord, Registry
from rhizome.cluster.state.cluster_commands import Member
from rhizome.cluster.state.groups_and_placement import Group

LAPSES_FORGOTTEN_MS: Final = 600_000
"""Lapses of a broker's lease are forgotten when there was none for this long."""


@dataclass(frozen=True)
class LeaseState:
    """The last that was heard of a broker's lease."""

    incarnation: str
    live: bool
    since_ms: int


@dataclass
class LeaseLapses:
    """How often a broker was away and came back as it was, and when it did so last."""

    count: int
    last_ms: int


class LeaseHolders:
    """The state of every broker's lease, as the root knows it.

    Invariant: this broker itself is live; the others are what ``lease_states`` says of them.

    The cluster state notes brokers that were away and lived on (their machine is too slow, or its
    network bad). It keeps that from root to root, because it says how far one may rely on them.
    """

    me: str
    incarnation: str
    lease_states: dict[str, LeaseState]

    def __init__(self, me: str, incarnation: str, now_ms: int) -> None:
        self.me = me
        self.incarnation = incarnation
        self.lease_states = {}
        self._mine = LeaseState(incarnation, True, now_ms)
        self._lapses: dict[str, LeaseLapses] = {}
        self._away: dict[str, str] = {}

    def clear(self) -> None:
        """This broker is no longer root: another root knows better."""
        self.lease_states = {}

    def heard(self, name: str, incarnation: str, live: bool, now_ms: int) -> None:
        known = self.lease_states.get(name)
        if known is None or (known.incarnation, known.live) != (incarnation, live):
            self.lease_states[name] = LeaseState(incarnation, live, now_ms)

    def _sign(self, name: str, incarnation: str) -> LeaseState | None:
        sign = self._mine if name == self.me else self.lease_states.get(name)
        return sign if sign is not None and sign.incarnation == incarnation else None

    def is_live(self, name: str, incarnation: str) -> bool:
        sign = self._sign(name, incarnation)
        return sign is not None and sign.live

    def is_over(self, name: str, incarnation: str) -> bool:
        sign = self._sign(name, incarnation)
        return sign is not None and not sign.live

    def live_for_ms(self, name: str, incarnation: str, now_ms: int) -> int:
        """How long it has been live; 0 if it isn't."""
        sign = self._sign(name, incarnation)
        return now_ms - sign.since_ms if sign is not None and sign.live else 0

    def over_for_ms(self, name: str, incarnation: str, now_ms: int) -> int:
        """How long it has been known to be gone; 0 if it isn't."""
        sign = self._sign(name, incarnation)
        return now_ms - sign.since_ms if sign is not None and not sign.live else 0

    # --- who comes and goes

    def note(self, broker: BrokerRecord, now_ms: int) -> None:
        """Note what the cluster state says of a broker now. A restart is no lapse. A broker whose
        incarnation was retired (R15) has none, and no lease."""
        if not broker.incarnation:
            self.heard(broker.name, "", False, now_ms)
        if broker.away:
            self._away[broker.name] = broker.incarnation
        elif self._away.pop(broker.name, "") == broker.incarnation != "":
            self.count_lapse(broker.name, now_ms)

    def count_lapse(self, name: str, now_ms: int) -> None:
        self._lapses[name] = LeaseLapses(self.lapses(name, now_ms) + 1, now_ms)

    def lapses(self, name: str, now_ms: int) -> int:
        """How often a broker was away lately and came back in the same incarnation."""
        known = self._lapses.get(name)
        if known is None or now_ms - known.last_ms >= LAPSES_FORGOTTEN_MS:
            return 0
        return known.count

    # --- in terms of the cluster state

    def is_here(self, broker: BrokerRecord) -> bool:
        return broker.incarnation != "" and self.is_live(broker.name, broker.incarnation)

    def has_member(self, member: Member, registry: Registry) -> bool:
        """Whether a member could be appointed now: that incarnation is registered and live."""
        broker = registry.brokers.get(member.broker)
        if broker is None or broker.incarnation != member.incarnation:
            return False
        return self.is_here(broker)

    def has_home(self, group: Group, registry: Registry) -> bool:
        """Whether the home of a group is known to be live."""
        home = registry.brokers.get(group.home)
        return home is not None and home.incarnation == group.incarnation and self.is_here(home)

    def has_lost_home(self, group: Group, registry: Registry) -> bool:
        """Whether the home may be replaced: it was removed, is another incarnation than the one
        that was appointed (G1), or its lease is over (R9)."""
        home = registry.brokers.get(group.home)
        if home is None or home.incarnation != group.incarnation:
            return True
        return self.is_over(home.name, home.incarnation)
