"""Broker leases (R9), from both sides.

The holder counts a lease on its own clock from the sending of the request that was answered. The
grantor keeps to it for longer, on its own clock, from the answer. So however late the answer comes
and however the clocks drift within ``max_drift``, the holder stops first.

    RootLease      the root's own: C primaries have answered heartbeats that were sent not longer
                   ago than the lease, and so has the root's disk
    GivenLeases    at the root: what it granted to the other brokers, or a root before it may have
    HeldLease      at any other broker: what it was granted
"""

from __future__ import annotations

from dataclasses import dataclass

from rhizome.cluster.consensus.consensus_events import BrokerLeaseLive, BrokerLeaseOver
from rhizome.cluster.consensus.consensus_messages import NO_STAMP
from rhizome.cluster.consensus.consensus_registry import Registry
from rhizome.cluster.consensus.dataclass_codec import decode
from rhizome.cluster.consensus.log.log_entry_payloads import EMPTY, Tenure
from rhizome.cluster.consensus.node_state import NodeState
from rhizome.cluster.consensus.settings import EXCUSES_MAX, NEVER_MS


class RootLease:
    """The root's own lease. Invariant: until ``until_ms`` no other root can be elected."""

    def __init__(self, state: NodeState) -> None:
        self.state = state
        self.until_ms = 0
        self.resigns_ms = state.now_ms + state.settings.root_lease_ms
        """When the root resigns without further answers; it must win the first lease by then."""
        self._answered: dict[str, int] = {}
        self._excused = False

    def is_held(self) -> bool:
        return self.state.now_ms < self.until_ms

    def is_lost(self) -> bool:
        return self.state.now_ms >= self.resigns_ms

    def excuse(self) -> None:
        """This broker stood still: the lease may be over, but the root does not resign before the
        others had time to answer. Once, until the lease is there again."""
        if not self._excused:
            self._excused = True
            lease_ms = self.state.settings.root_lease_ms
            self.resigns_ms = max(self.resigns_ms, self.state.now_ms + lease_ms)

    def answered(self, name: str, stamp_ms: int) -> None:
        """A peer has answered the heartbeat of that time."""
        if stamp_ms != NO_STAMP:
            counted_ms = stamp_ms if self.state.rules.lease_from_sending else self.state.now_ms
            self._answered[name] = max(counted_ms, self._answered.get(name, 0))
            self.renew()

    def forget(self, name: str) -> None:
        """A broker linked under a new identity or incarnation: it has promised nothing."""
        self._answered.pop(name, None)

    def renew(self) -> None:
        state = self.state
        stamps = {**self._answered, state.me.name: state.now_ms}
        since_ms = state.electorate.reached(stamps, state.counts, state.rules)
        if state.rules.disk_in_root_lease:
            since_ms = min(since_ms, state.persistent.disk_ms)
        if since_ms >= 0:
            self.until_ms = max(self.until_ms, since_ms + state.settings.root_lease_ms)
            self.resigns_ms = max(self.resigns_ms, self.until_ms)
            self._excused = self._excused and not self.is_held()


@dataclass(slots=True)
class Given:
    """One broker's lease. ``applied`` is -1 until the broker has said how far it is."""

    incarnation: str
    until_ms: int
    applied: int
    renews: bool
    lagging_since_ms: int = NEVER_MS
    excuses: int = 0


class GivenLeases:
    """The leases that the root has granted.

    Invariant: a broker that may hold a lease, from this root or one before it, is in ``leases``
    with ``until_ms`` after the lease's end on the broker's own clock.
    """

    def __init__(self, state: NodeState, floor: int) -> None:
        self.state = state
        self.floor = floor
        """The root's first entry: whatever was settled before is at or below it."""
        self.leases: dict[str, Given] = {}
        self.settled = 0
        self._first_end_ms = 0
        """No lease ends before that; it may be long before the first one does."""
        self._needed: dict[str, int] = {}
        """What a broker without a lease must have applied to get one, beyond what all must."""
        self._presume_leases_of_earlier_roots()

    def _presume_leases_of_earlier_roots(self) -> None:
        """The root before held only its own lease, which is over. Every other broker may hold a
        lease that was granted the moment before."""
        state = self.state
        tenure = last_tenure(state)
        until_ms = self._honoured_until_ms()
        for broker in _registry_of_whole_log(state).brokers:
            name, incarnation = broker.registration.name, broker.registration.incarnation
            if name == state.me.name:
                continue
            was_root = tenure == (name, incarnation)
            if was_root or not state.rules.takeover_delay:
                state.emit(BrokerLeaseOver(name, incarnation))
            else:
                self.leases[name] = Given(incarnation, until_ms, -1, renews=False)

    def asked(self, name: str, asked_ms: int, applied: int, root_lease_held: bool) -> bool:
        """A registered broker asks for its lease; whether it is granted."""
        state = self.state
        incarnation = state.peers[name].hello.incarnation
        lease = self.leases.get(name)
        if lease is not None and lease.incarnation == incarnation:
            self._note_applied(lease, applied)
        if asked_ms == NO_STAMP or not root_lease_held:
            return False
        if not state.is_registered(name, incarnation):
            return False
        if lease is None or not lease.renews:
            return self._grant_first(name, incarnation, applied)
        if state.now_ms - lease.lagging_since_ms > state.settings.home_lease_ms:
            return False
        lease.until_ms = self._honoured_until_ms()
        lease.excuses = 0
        return True

    def excuse(self, away_ms: int) -> None:
        """This broker stood still.

        Others may have asked in time and aren't heard yet; or they could not ask, since they do so
        when they answer heartbeats. So that time doesn't count against them: they have what was
        left to them before, and time enough to be heard. There is a limit: until it asks again, a
        broker that is dead is excused only a few times.
        """
        left_by_ms = self.state.now_ms - away_ms
        for lease in self.leases.values():
            if lease.excuses < EXCUSES_MAX:
                lease.excuses += 1
                left_ms = self.state.now_ms + max(0, lease.until_ms - left_by_ms)
                lease.until_ms = max(left_ms, self.state.heard_by_ms())

    def _grant_first(self, name: str, incarnation: str, applied: int) -> bool:
        """Grant a lease to a broker without one of this root: it must know all that has been
        settled (R10)."""
        state = self.state
        needed = max(self.floor, self.settled, self._needed.get(name, 0))
        if applied < needed and state.rules.current_before_lease:
            return False
        self._needed.pop(name, None)
        until_ms = self._honoured_until_ms()
        self.leases[name] = Given(incarnation, until_ms, applied, renews=True)
        self._first_end_ms = min(self._first_end_ms, until_ms)
        state.emit(BrokerLeaseLive(name, incarnation))
        return True

    def need(self, name: str, index: int) -> None:
        """A broker whose lease is over must know this entry before it gets another: the entry takes
        something from it that a lease would allow, such as a home (R9)."""
        self._needed[name] = max(index, self._needed.get(name, 0))

    def _honoured_until_ms(self) -> int:
        settings = self.state.settings
        return self.state.now_ms + settings.honoured_ms(settings.home_lease_ms)

    def _note_applied(self, lease: Given, applied: int) -> None:
        """A broker that hangs while others wait for it loses its lease in the end."""
        if applied > lease.applied or applied >= self.state.persistent.commit:
            lease.lagging_since_ms = NEVER_MS
        lease.applied = max(lease.applied, applied)
        if lease.applied < self.state.persistent.commit and lease.lagging_since_ms == NEVER_MS:
            lease.lagging_since_ms = self.state.now_ms

    def end(self, name: str, incarnation: str) -> None:
        """The broker gave the lease up, or was replaced by a new incarnation: that incarnation is
        dead."""
        lease = self.leases.get(name)
        if lease is not None and lease.incarnation == incarnation:
            del self.leases[name]
            self.state.emit(BrokerLeaseOver(name, incarnation))

    def expire(self) -> None:
        if self.state.now_ms < self._first_end_ms:
            return
        for name, lease in list(self.leases.items()):
            if self.state.now_ms >= lease.until_ms:
                self.end(name, lease.incarnation)
        self._first_end_ms = min((each.until_ms for each in self.leases.values()), default=NEVER_MS)

    def settle(self) -> None:
        """Raise ``settled`` to what every broker with a live lease has applied (R10)."""
        state = self.state
        settled = min(state.applied, state.persistent.commit)
        if not state.rules.settled_before_ok:
            settled = state.persistent.commit
        elif settled > self.settled:
            for lease in self.leases.values():
                settled = min(settled, lease.applied)
        self.settled = max(self.settled, settled)

    def deadline_ms(self) -> int:
        return self._first_end_ms


def _registry_of_whole_log(state: NodeState) -> Registry:
    """The registry with the entries that this broker doesn't know to be committed yet: the root
    before may have known it, and granted leases to those registered there."""
    registry = state.registry
    for entry in state.persistent.log.between(
        state.persistent.commit + 1, state.persistent.log.last_index
    ):
        registry = registry.applied(entry)
    return registry


def last_tenure(state: NodeState) -> tuple[str, str]:
    """Name and incarnation of the root before this one, as the log has it.

    A root grants leases only when its first entry is committed. So every root that may have granted
    one is in the log of every later root. A broker that becomes root gives up the lease it held
    before.
    """
    log = state.persistent.log
    for index in range(log.last_index, max(log.start.index, state.persistent.commit), -1):
        entry = log.entry(index)
        if entry.kind == EMPTY and entry.term < state.term:
            tenure = decode(Tenure, entry.payload)
            return tenure.root, tenure.incarnation
    return state.registry.tenure.root, state.registry.tenure.incarnation


class HeldLease:
    """The lease of a broker that isn't root. It outlives its root: homes go on through
    elections."""

    def __init__(self, state: NodeState) -> None:
        self.state = state
        self.until_ms = 0

    def granted(self, asked_ms: int, lease_ms: int) -> None:
        counted_ms = asked_ms if self.state.rules.lease_from_sending else self.state.now_ms
        self.until_ms = max(self.until_ms, counted_ms + lease_ms)

    def give_up(self) -> None:
        self.until_ms = 0

    def is_held(self) -> bool:
        return self.state.now_ms < self.until_ms
