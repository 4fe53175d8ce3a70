"""Meta-bindings of this broker and of its peers (A3).

A broker whose private queues are bound to an exchange tells its peers so. They bind the exchange of
the same name on that broker (`MetaExchange`) to their own, and send it what matches. Bindings are
counted per (exchange, key, arguments), and only the first and the last of a kind are told. All of
this is soft state of a link: told whole when a link comes up, dropped when it goes down, never in
the cluster's log.

An x-consistent-hash exchange sends each message to one queue of all, so its bindings are told one
by one with their queues, and all brokers choose alike.

Secondaries have no links with each other. The root tells each secondary the meta-bindings of the
others, as its own with ``relay``, and passes on the messages that match them. A secondary accepts
that only from the broker that it knows as root, so nothing is relayed twice.

A secondary whose root has not told it so knows nothing of the meta-bindings of other secondaries:
messages published there wait, unread, until a root has.

A binding is answered once every linked peer has it, and every primary that may hold a lease
(``unlinked_leaseholders.py``). The root acknowledges what came from a secondary after the other
secondaries have acknowledged it to the root.

A broker that gets a lease again admits no publish before it has heard the meta-bindings of all of
these.

With its meta-bindings a broker tells how many private queues it has where `max-queues` limits them,
and a declare is answered when that is known. So of brokers that declare at once, each knows what
the others have when it answers. Those that come later by name take their queues back if there are
too many.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from rhizome.broker.publishing.blocked_publishers import suspend_publishing
from rhizome.broker.publishing.remote_targets import MetaExchange, MetaQueue
from rhizome.cluster.consensus.consensus_events import (
    BecameRoot,
    Event,
    LeaseGained,
    LeaseLost,
    Resigned,
    RootKnown,
    RootLost,
    RootReady,
)
from rhizome.cluster.private_queues.broker_generated_names import SERVER_NAMED, owner_of
from rhizome.cluster.private_queues.meta_binding_entry import MetaBinding, change_entry, read_change
from rhizome.cluster.private_queues.unlinked_leaseholders import PATIENCE_MS, UnlinkedLeaseholders
from rhizome.cluster.protocol.catalogue import META_BINDINGS, META_BINDINGS_KNOWN

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.cluster_port import Waiter
    from rhizome.broker.metadata.metadata_changes import Outcome
    from rhizome.broker.routing.bindings_and_destinations import Destination
    from rhizome.broker.routing.exchange import Exchange
    from rhizome.cluster.linked_peer import LinkedPeer

NOT_HEARING: Final = -1

RECOUNT_EVERY_MS: Final = 1_000


Counts = dict[str, dict[str, int]]
"""Numbers of private queues, by kind of limit and name."""


class AwaitedAcknowledgement:
    """Something that is due once some peers have acknowledged what they were told."""

    def __init__(self) -> None:
        self.left = 0

    def due(self) -> None:
        raise NotImplementedError


@dataclass
class PeerBindings:
    """What one peer was told and has acknowledged, and what it has told.

    Invariant: ``wanted`` is the sum of the peer's messages about itself, each meta-binding with its
    arguments; ``known`` never passes ``sent``. ``awaiting`` is in the order of the numbers that the
    peer has to acknowledge, ``withheld`` in the order of those that it waits for.
    """

    sent: int = 0
    known: int = 0
    heard: bool = False
    as_root: bool = False
    """Whether the peer told everything as root: then it includes the meta-bindings of other
    secondaries."""
    leased: tuple[str, ...] | None = None
    """The primaries that may hold a lease, as the peer has told as root."""
    private: Counts = field(default_factory=dict)
    """How many private queues the peer has where they are limited."""
    private_behind: Counts = field(default_factory=dict)
    """The same for the other secondaries, as the peer has told as root."""
    relayed: dict[MetaBinding, None] = field(default_factory=dict)
    wanted: dict[MetaBinding, dict[str, object]] = field(default_factory=dict)
    awaiting: deque[tuple[int, AwaitedAcknowledgement]] = field(default_factory=deque)
    withheld: deque[WithheldAcknowledgement] = field(default_factory=deque)


class PendingBinding(AwaitedAcknowledgement):
    """A client that waits until its binding is known."""

    def __init__(self, waiter: Waiter, outcome: Outcome) -> None:
        super().__init__()
        self.waiter = waiter
        self.outcome = outcome

    def due(self) -> None:
        self.waiter.resolved(self.outcome)


class WithheldAcknowledgement(AwaitedAcknowledgement):
    """The acknowledgement of what a secondary told the root, withheld until the others have it."""

    def __init__(self, meta_bindings: MetaBindings, name: str, number: int) -> None:
        super().__init__()
        self.meta_bindings = meta_bindings
        self.name = name
        self.number = number

    def due(self) -> None:
        self.meta_bindings.acknowledge(self.name)


class MetaBindings:
    """The meta-bindings that this broker tells, and those that it has heard.

    Invariant: ``own`` counts the private bindings of this broker by kind; ``wanters`` has for each
    kind, as it is relayed, the secondaries that want it. Every peer with a link is in ``told`` and
    was told all of ``own``; if this broker is the root and the peer a secondary, it was also told
    all that other secondaries want. ``hearing_since_ms`` is set while publishes wait until every
    meta-binding that may concern them is heard.
    """

    def __init__(self, broker: Broker, am_secondary: bool) -> None:
        self.broker = broker
        self.me = broker.settings.name
        self.am_secondary = am_secondary
        self.root = ""
        self.own: dict[MetaBinding, int] = {}
        self.arguments: dict[MetaBinding, dict[str, object]] = {}
        self.told: dict[str, PeerBindings] = {}
        self.peers: dict[str, LinkedPeer] = {}
        self.wanters: dict[MetaBinding, dict[str, None]] = {}
        self.unlinked_leaseholders = UnlinkedLeaseholders(self.me)
        self.leaseless = False
        self.hearing_since_ms = NOT_HEARING
        self.fresh = False
        self.unused: dict[Exchange, None] = {}
        self.is_root = False
        self.metas: dict[tuple[str, str, str, bool], Destination] = {}
        self.queues: dict[tuple[str, str, str, bool], Destination] = {}
        self.named: dict[tuple[str, str], LinkedPeer] = {}
        self.private: Counts = {}
        self._recounted_ms = NOT_HEARING

    # ---- this broker's own ----------------------------------------------------------------------

    def add(self, interest: MetaBinding, arguments: dict[str, object]) -> None:
        count = self.own.get(interest, 0)
        self.own[interest] = count + 1
        if count == 0:
            self.arguments[interest] = arguments
            self.fresh = True
            for peer in self.peers.values():
                self._tell(peer, [(True, interest, arguments)])

    def remove(self, interest: MetaBinding) -> None:
        count = self.own.get(interest, 0)
        if count > 1:
            self.own[interest] = count - 1
        elif count == 1:
            del self.own[interest]
            arguments = self.arguments.pop(interest)
            for peer in self.peers.values():
                self._tell(peer, [(False, interest, arguments)])

    def recount(self) -> None:
        """Tell how many private queues there are now, where their number is limited."""
        counts = self.broker.limits.private_queues()
        if counts != self.private:
            self.private = counts
            self.fresh = True
            for peer in self.peers.values():
                self._tell(peer, [])

    def queues_elsewhere(self, kind: str, name: str, rivals: bool) -> int:
        """How many private queues the others have, of a limited kind. As ``rivals`` count those of
        brokers before this one by name, and all that are known as a sum only."""
        found = 0
        for peer, told in self.told.items():
            if not rivals or peer < self.me:
                found += told.private.get(kind, {}).get(name, 0)
            if self.am_secondary and peer == self.root:
                found += told.private_behind.get(kind, {}).get(name, 0)
        return found

    def _private_behind(self, peer: LinkedPeer) -> Counts:
        """The private queues of the secondaries with which a secondary has no links."""
        found: Counts = {}
        for name, told in self.told.items():
            if name == peer.name or not self.is_secondary(name):
                continue
            for kind, counts in told.private.items():
                sums = found.setdefault(kind, {})
                for each, count in counts.items():
                    sums[each] = sums.get(each, 0) + count
        return found

    def when_known(self, outcome: Outcome, waiter: Waiter) -> None:
        """Tell the waiter when all that ``add`` was called for since the last time is known."""
        pending = PendingBinding(waiter, outcome)
        if self.fresh:
            self.fresh = False
            for told in self.told.values():
                if told.sent > told.known:
                    _await(told, pending)
            for name in self.unlinked_leaseholders.missing(self.peers):
                pending.left += 1
                self.unlinked_leaseholders.await_(name, pending, self.broker.turn.now_ms)
        if pending.left == 0:
            pending.due()

    def _tell(
        self,
        peer: LinkedPeer,
        changes: list[tuple[bool, MetaBinding, dict[str, object]]],
        whole: bool = False,
    ) -> None:
        told = self.told[peer.name]
        told.sent += 1
        entries: list[object] = [change_entry(*change) for change in changes]
        table: dict[str, object] = {"number": told.sent, "whole": whole, "changes": entries}
        table["root"] = self.is_root
        if self.private:  # none told are none
            table["private"] = self.private
        if self.is_root:
            table["leased"] = list(self.unlinked_leaseholders.leased)
            behind = self._private_behind(peer) if peer.is_secondary() else {}
            if behind:
                table["private_behind"] = behind
        peer.send(META_BINDINGS, table)

    # ---- links ----------------------------------------------------------------------------------

    def connect(self, peer: LinkedPeer) -> None:
        self.peers[peer.name] = peer
        told = self.told[peer.name] = PeerBindings()
        self._tell_whole(peer)
        for awaited in self.unlinked_leaseholders.came(peer.name):
            told.awaiting.append((told.sent, awaited))

    def _tell_whole(self, peer: LinkedPeer) -> None:
        told = self.told[peer.name]
        changes = [(True, interest, self.arguments[interest]) for interest in self.own]
        told.relayed = {}
        if self.is_root and peer.is_secondary():
            for interest, wanters in self.wanters.items():
                if any(name != peer.name for name in wanters):
                    told.relayed[interest] = None
                    changes.append((True, interest, self._arguments_of(interest, wanters)))
        self._tell(peer, changes, whole=True)

    def _arguments_of(self, relayed: MetaBinding, wanters: dict[str, None]) -> dict[str, object]:
        interest = relayed.direct()
        for name in wanters:
            return self.told[name].wanted[interest]
        raise AssertionError(f"nobody wants {relayed}")

    def disconnect(self, peer: LinkedPeer) -> None:
        """Forget what the peer wanted; those who wait for the peer wait for its return, or its
        end."""
        if self.peers.pop(peer.name, None) is None:
            return
        told = self.told.pop(peer.name)
        changed: dict[MetaBinding, dict[str, object]] = {}
        for interest, arguments in told.wanted.items():
            self._unbind(peer, interest, arguments)
            if peer.is_secondary():
                changed[self._note_wanter(peer, interest, False)] = arguments
        if self.is_root and changed:
            self._relay(changed)
        if peer.is_secondary() and told.private:
            self._relay_private(peer)
        for _, awaited in told.awaiting:
            if peer.name in self.unlinked_leaseholders.leased:
                self.unlinked_leaseholders.await_(peer.name, awaited, self.broker.turn.now_ms)
            else:
                _acknowledged(awaited)
        self._update_publishing()

    def react(self, event: Event) -> None:
        if isinstance(event, RootReady):
            self.set_root(self.me)
        elif isinstance(event, RootKnown):
            self.set_root(event.name)
        elif isinstance(event, (RootLost, Resigned, BecameRoot)):
            self.set_root("")
        elif isinstance(event, (LeaseLost, LeaseGained)):
            self.set_leaseless(isinstance(event, LeaseLost))

    def set_root(self, name: str) -> None:
        """Another broker is root, or none ("")."""
        before = self.root
        self.root = name
        if self.am_secondary and name != before:
            self._heed(before, False)
            self._heed(name, True)
            self._update_publishing()
        self._heed_leased()
        is_root = name == self.me
        if is_root == self.is_root:
            return
        self.is_root = is_root
        for peer in self.peers.values():
            if peer.is_secondary():
                self._tell_whole(peer)

    # ---- leases ---------------------------------------------------------------------------------

    def set_leaseless(self, leaseless: bool) -> None:
        """Without a lease no publish is admitted. With a new lease none is admitted before this
        broker has heard which meta-bindings were added meanwhile."""
        self.leaseless = leaseless
        self.hearing_since_ms = NOT_HEARING if leaseless else self.broker.turn.now_ms
        self._update_publishing()

    def tell_leased(self, names: tuple[str, ...]) -> None:
        """At the root: these primaries may hold a lease."""
        if names == self.unlinked_leaseholders.leased:
            return
        self._set_leased(names)
        for peer in self.peers.values():
            self._tell(peer, [])

    def tick(self, now_ms: int) -> None:
        if now_ms - self._recounted_ms >= RECOUNT_EVERY_MS:
            self._recounted_ms = now_ms
            self.recount()  # queues go with their connections, and limits are set and deleted
        for awaited in self.unlinked_leaseholders.give_up(now_ms):
            _acknowledged(awaited)
        if self.hearing_since_ms != NOT_HEARING:
            self._update_publishing()

    def _heed_leased(self) -> None:
        """The root, or what it has told, has changed."""
        told = self.told.get(self.root)
        if told is not None and told.leased is not None:
            self._set_leased(told.leased)

    def _set_leased(self, names: tuple[str, ...]) -> None:
        for awaited in self.unlinked_leaseholders.set_leased(names):
            _acknowledged(awaited)
        self._update_publishing()

    def _has_heard_all(self) -> bool:
        """Whether everybody who may have private queues has told its meta-bindings."""
        told = self.told.get(self.root)
        if not self.is_root and (told is None or not told.heard):
            return False
        if not all(each.heard for each in self.told.values()):
            return False
        return not self.unlinked_leaseholders.missing(self.peers)

    def _update_publishing(self) -> None:
        """Hold or admit publishes: they may concern private queues that nobody has told of yet
        (A3)."""
        if self.hearing_since_ms != NOT_HEARING:
            waited_ms = self.broker.turn.now_ms - self.hearing_since_ms
            if self._has_heard_all() or waited_ms >= PATIENCE_MS:
                self.hearing_since_ms = NOT_HEARING
        unheard = self.leaseless or self.hearing_since_ms != NOT_HEARING
        if self.am_secondary:
            told = self.told.get(self.root)
            unheard = unheard or told is None or not told.as_root
        if unheard != self.broker.suspended:
            suspend_publishing(self.broker, unheard)

    def _heed(self, name: str, heeded: bool) -> None:
        """Send messages for other secondaries through the named broker, or stop doing so."""
        peer = self.peers.get(name)
        if peer is None:
            return
        for interest, arguments in self.told[name].wanted.items():
            if interest.relay and heeded:
                self._bind(peer, interest, arguments)
            elif interest.relay:
                self._unbind(peer, interest, arguments)

    def _relay(self, changed: dict[MetaBinding, dict[str, object]]) -> None:
        """Tell secondaries which meta-bindings of the others have changed."""
        for name, peer in self.peers.items():
            if not peer.is_secondary():
                continue
            told = self.told[name]
            changes: list[tuple[bool, MetaBinding, dict[str, object]]] = []
            for interest, arguments in changed.items():
                wanted = any(other != name for other in self.wanters.get(interest, ()))
                if wanted and interest not in told.relayed:
                    told.relayed[interest] = None
                    changes.append((True, interest, arguments))
                elif not wanted and interest in told.relayed:
                    del told.relayed[interest]
                    changes.append((False, interest, arguments))
            if changes:
                self._tell(peer, changes)

    def _relay_private(self, of: LinkedPeer) -> None:
        """Tell other secondaries that one of them has more private queues now, or fewer."""
        for peer in self.peers.values():
            if self.is_root and peer.is_secondary() and peer is not of:
                self._tell(peer, [])

    def _note_wanter(self, peer: LinkedPeer, interest: MetaBinding, wants: bool) -> MetaBinding:
        """Count a secondary among those that want something; returns the meta-binding as it is
        relayed."""
        relayed = interest.relayed()
        wanters = self.wanters.setdefault(relayed, {})
        if wants:
            wanters[peer.name] = None
        else:
            wanters.pop(peer.name, None)
            if not wanters:
                del self.wanters[relayed]
        return relayed

    # ---- frames ---------------------------------------------------------------------------------

    def received(self, peer: LinkedPeer, table: dict[str, object]) -> None:
        """A META_BINDINGS frame."""
        told = self.told[peer.name]
        number = _int(table, "number")
        changes = table["changes"]
        assert isinstance(changes, list)
        changed: dict[MetaBinding, dict[str, object]] = {}
        if table["whole"] is True:
            told.as_root = table.get("root") is not False  # the release before doesn't say
            for interest, arguments in list(told.wanted.items()):
                self._unwant(peer, told, interest, arguments, changed)
        for change in changes:
            assert isinstance(change, dict)
            interest, arguments = read_change(change)
            if change["add"] is not True:
                self._unwant(peer, told, interest, arguments, changed)
            elif interest not in told.wanted:
                told.wanted[interest] = arguments
                if self._is_heeded(peer, interest):
                    self._bind(peer, interest, arguments)
                if peer.is_secondary():
                    changed[self._note_wanter(peer, interest, True)] = arguments
        told.heard = True
        leased = table.get("leased")
        if isinstance(leased, list):
            told.leased = tuple(str(name) for name in leased)
            if peer.name == self.root:
                self._heed_leased()
        recounted = self._hear_private(peer, table)
        withheld = WithheldAcknowledgement(self, peer.name, number)
        told.withheld.append(withheld)
        if self.is_root and (changed or recounted):
            self._relay(changed)
            if recounted:
                self._relay_private(peer)
            for name, other in self.told.items():
                if name != peer.name and self.is_secondary(name) and other.sent > other.known:
                    _await(other, withheld)
        self.acknowledge(peer.name)
        self._update_publishing()

    def _hear_private(self, peer: LinkedPeer, table: dict[str, object]) -> bool:
        """Note how many private queues a peer has; returns whether a secondary's numbers
        changed."""
        told = self.told[peer.name]
        before = told.private
        told.private = _counts(table.get("private"))
        told.private_behind = _counts(table.get("private_behind"))
        return peer.is_secondary() and told.private != before

    def _is_heeded(self, peer: LinkedPeer, interest: MetaBinding) -> bool:
        return not interest.relay or peer.name == self.root

    def _unwant(
        self,
        peer: LinkedPeer,
        told: PeerBindings,
        interest: MetaBinding,
        arguments: dict[str, object],
        changed: dict[MetaBinding, dict[str, object]],
    ) -> None:
        if interest not in told.wanted:
            return
        del told.wanted[interest]
        if self._is_heeded(peer, interest):
            self._unbind(peer, interest, arguments)
        if peer.is_secondary():
            changed[self._note_wanter(peer, interest, False)] = arguments

    def known(self, peer: LinkedPeer, number: int) -> None:
        """A META_BINDINGS_KNOWN frame."""
        told = self.told[peer.name]
        told.known = max(told.known, number)
        awaiting = told.awaiting
        while awaiting and awaiting[0][0] <= told.known:
            _acknowledged(awaiting.popleft()[1])

    def acknowledge(self, name: str) -> None:
        """Tell a peer how much of what it told is known wherever it must be."""
        told = self.told.get(name)
        if told is None:
            return
        number = 0
        while told.withheld and told.withheld[0].left == 0:
            number = told.withheld.popleft().number
        if number > 0:
            self.peers[name].send(META_BINDINGS_KNOWN, {"number": number})

    def is_secondary(self, name: str) -> bool:
        peer_broker = self.peers.get(name)
        return peer_broker is not None and peer_broker.is_secondary()

    def private_elsewhere(self, vhost: str, name: str) -> MetaQueue | None:
        """What leads to a private queue or reply token of this name on another broker.

        A secondary reaches others of its kind through the root.
        """
        named = self.named.get((vhost, name))
        if named is not None:
            return MetaQueue(vhost, name, named.way, named.name == self.root)
        maker = owner_of(name)
        if maker in ("", self.me):
            return None
        owner = self.peers.get(maker)
        if owner is not None:
            return MetaQueue(vhost, name, owner.way, False)
        root = self.peers.get(self.root)
        if root is None or not self.am_secondary:
            return None
        return MetaQueue(vhost, name, root.way, True)

    def is_private_elsewhere(self, vhost: str, name: str) -> bool:
        """Whether a queue of this name is private on another broker. Of names that brokers give,
        only the broker is known, and that it is linked."""
        if (vhost, name) in self.named:
            return True
        return name.startswith(SERVER_NAMED) and owner_of(name) in self.peers

    # ---- the router -----------------------------------------------------------------------------

    def _bind(self, peer: LinkedPeer, interest: MetaBinding, arguments: dict[str, object]) -> None:
        vhost = self.broker.state.vhosts.get(interest.vhost)
        if vhost is None:
            return
        if interest.exchange == "":
            self.named[(interest.vhost, interest.key)] = peer
            vhost.router.epoch += 1
            return
        exchange = vhost.router.exchanges.get(interest.exchange)
        if exchange is not None:
            destination = self._destination(peer, interest)
            vhost.router.bind(exchange, destination, interest.key, arguments)

    def _unbind(
        self, peer: LinkedPeer, interest: MetaBinding, arguments: dict[str, object]
    ) -> None:
        if interest.exchange == "" and self.named.get((interest.vhost, interest.key)) is peer:
            del self.named[(interest.vhost, interest.key)]
        vhost = self.broker.state.vhosts.get(interest.vhost)
        if vhost is None:
            return
        if interest.exchange == "":
            vhost.router.epoch += 1
            return
        exchange = vhost.router.exchanges.get(interest.exchange)
        destination = self._destination(peer, interest)
        if exchange is not None:
            vhost.router.unbind(exchange, destination, interest.key, arguments)
            if exchange.auto_delete and exchange.is_unused():
                self.unused[exchange] = None
        if not destination.incoming:
            # Exchanges and private queues come and go, and their names with them.
            name = interest.queue or interest.exchange
            made = self.queues if interest.queue else self.metas
            made.pop((peer.name, interest.vhost, name, interest.relay), None)

    def _destination(self, peer: LinkedPeer, interest: MetaBinding) -> Destination:
        if interest.queue:
            return self._meta_queue(peer, interest.vhost, interest.queue, interest.relay)
        return self._meta(peer, interest)

    def _meta(self, peer: LinkedPeer, interest: MetaBinding) -> Destination:
        """The exchange on the peer, one for each way of reaching it."""
        key = (peer.name, interest.vhost, interest.exchange, interest.relay)
        meta = self.metas.get(key)
        if meta is None:
            meta = MetaExchange(interest.vhost, interest.exchange, peer.way, interest.relay)
            self.metas[key] = meta
        return meta

    def _meta_queue(self, peer: LinkedPeer, vhost: str, name: str, relay: bool) -> Destination:
        """The private queue behind a peer; one object as long as bindings lead to it."""
        key = (peer.name, vhost, name, relay)
        found = self.queues.get(key)
        if found is None:
            found = MetaQueue(vhost, name, peer.way, relay)
            self.queues[key] = found
        return found


def _await(told: PeerBindings, awaited: AwaitedAcknowledgement) -> None:
    """Let something wait until the peer knows all that it was told."""
    awaited.left += 1
    told.awaiting.append((told.sent, awaited))


def _acknowledged(awaited: AwaitedAcknowledgement) -> None:
    awaited.left -= 1
    if awaited.left == 0:
        awaited.due()


def _counts(told: object) -> Counts:
    """The numbers of private queues that a broker tells; one of an earlier release tells none."""
    kinds = told if isinstance(told, dict) else {}
    return {
        kind: {name: count for name, count in counts.items() if isinstance(count, int)}
        for kind, counts in kinds.items()
        if isinstance(counts, dict)
    }


def _int(table: dict[str, object], name: str) -> int:
    value = table[name]
    assert isinstance(value, int)
    return value
