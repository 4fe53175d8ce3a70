"""Interests: the meta-bindings of this broker and of its peers (A3).

A broker whose private queues are bound to an exchange tells its peers so: they bind the eponymous
exchange here (`MetaExchange`) and send it what matches. Bindings are counted per (exchange, key,
arguments), and only the first and the last of a kind are told. All of this is soft state of a link:
told whole when a link comes up, dropped when it goes down, never in the cluster's log.

An x-consistent-hash exchange sends each message to one queue of all, so its bindings are told one
by one with their queues, and all brokers draw alike.

Secondaries have no links with each other. The root tells each secondary what the others are
interested in, as its own interest with ``relay``, and passes on what comes for it. A secondary
heeds that from the broker that it knows as root alone, so nothing is relayed twice.

A secondary without a root that has told it so knows nothing of what other secondaries want: what
is published there waits, unread, until there is one.

A binding is answered once every peer that is linked has it, and every primary that may hold a
lease (``absentees.py``). The root acknowledges what came from a secondary after the other
secondaries have acknowledged it to the root.

A broker that comes back to a lease admits no publish before it has heard what all of these want.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from rhizome.broker.blocking import suspend_publishing
from rhizome.broker.targets import MetaExchange, MetaQueue
from rhizome.cluster.absentees import PATIENCE_MS, Absentees
from rhizome.cluster.consensus.events import (
    BecameRoot,
    Event,
    LeaseGained,
    LeaseLost,
    Resigned,
    RootKnown,
    RootLost,
    RootReady,
)
from rhizome.cluster.interest import Interest, change_entry, read_change

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.outcome import Outcome
    from rhizome.broker.port import Waiter
    from rhizome.broker.routing.destination import Destination
    from rhizome.broker.routing.exchange import Exchange
    from rhizome.cluster.neighbour import Neighbour

INTEREST: Final = 44
"""Numbered changes of what the sender's private queues want; the first on a link is the whole."""
INTEREST_KNOWN: Final = 45
"""Everything up to a number is known here, and wherever the receiver would relay it."""

NAME_MARK: Final = "@"
"""Names that a broker gives to private queues and reply tokens end with this and its own name."""


NOT_HEARING: Final = -1

SERVER_NAMED: Final = "amq.gen-"
"""What names that brokers give to queues begin with."""


class Awaited:
    """Something that is due once some peers have acknowledged what they were told."""

    def __init__(self) -> None:
        self.left = 0

    def due(self) -> None:
        raise NotImplementedError


@dataclass
class Told:
    """What one peer was told and has acknowledged, and what it has told.

    Invariant: ``wanted`` is what the peer's messages about itself amount to, each with its
    arguments; ``known`` never passes ``sent``. ``awaiting`` is in the order of the numbers that
    the peer has to acknowledge, ``withheld`` in that of those that it waits for.
    """

    sent: int = 0
    known: int = 0
    heard: bool = False
    as_root: bool = False
    """Whether the peer told the whole as root: what other secondaries want is in it."""
    leased: tuple[str, ...] | None = None
    """The primaries that may hold a lease, as the peer has told them as root."""
    relayed: dict[Interest, None] = field(default_factory=dict)
    wanted: dict[Interest, dict[str, object]] = field(default_factory=dict)
    awaiting: deque[tuple[int, Awaited]] = field(default_factory=deque)
    withheld: deque[Withheld] = field(default_factory=deque)


class Pending(Awaited):
    """A client that waits until its binding is known."""

    def __init__(self, waiter: Waiter, outcome: Outcome) -> None:
        super().__init__()
        self.waiter = waiter
        self.outcome = outcome

    def due(self) -> None:
        self.waiter.resolved(self.outcome)


class Withheld(Awaited):
    """The acknowledgement of what a secondary told the root: the others have it first."""

    def __init__(self, interests: Interests, name: str, number: int) -> None:
        super().__init__()
        self.interests = interests
        self.name = name
        self.number = number

    def due(self) -> None:
        self.interests.acknowledge(self.name)


class Interests:
    """Invariant: ``own`` counts the private bindings of this broker by kind; ``wanters`` has for
    each kind, as it is relayed, the secondaries that want it; every peer with a link is in ``told``
    and was told all of ``own``, and if this broker is the root and the peer a secondary, all that
    other secondaries want. ``hearing_since_ms`` is set while publishes wait until all that they may
    concern is heard.
    """

    def __init__(self, broker: Broker, am_secondary: bool) -> None:
        self.broker = broker
        self.me = broker.settings.name
        self.am_secondary = am_secondary
        self.root = ""
        self.own: dict[Interest, int] = {}
        self.arguments: dict[Interest, dict[str, object]] = {}
        self.told: dict[str, Told] = {}
        self.peers: dict[str, Neighbour] = {}
        self.wanters: dict[Interest, dict[str, None]] = {}
        self.absentees = Absentees(self.me)
        self.leaseless = False
        self.hearing_since_ms = NOT_HEARING
        self.fresh = False
        self.unused: dict[Exchange, None] = {}
        self.is_root = False
        self.metas: dict[tuple[str, str, str, bool], Destination] = {}
        self.queues: dict[tuple[str, str, str, bool], Destination] = {}
        self.named: dict[tuple[str, str], Neighbour] = {}

    # ---- this broker's own ----------------------------------------------------------------------

    def add(self, interest: Interest, arguments: dict[str, object]) -> None:
        count = self.own.get(interest, 0)
        self.own[interest] = count + 1
        if count == 0:
            self.arguments[interest] = arguments
            self.fresh = True
            for peer in self.peers.values():
                self._tell(peer, [(True, interest, arguments)])

    def remove(self, interest: Interest) -> None:
        count = self.own.get(interest, 0)
        if count > 1:
            self.own[interest] = count - 1
        elif count == 1:
            del self.own[interest]
            arguments = self.arguments.pop(interest)
            for peer in self.peers.values():
                self._tell(peer, [(False, interest, arguments)])

    def when_known(self, outcome: Outcome, waiter: Waiter) -> None:
        """Tell the waiter when all that ``add`` was called for since the last time is known."""
        pending = Pending(waiter, outcome)
        if self.fresh:
            self.fresh = False
            for told in self.told.values():
                if told.sent > told.known:
                    _await(told, pending)
            for name in self.absentees.missing(self.peers):
                pending.left += 1
                self.absentees.await_(name, pending, self.broker.turn.now_ms)
        if pending.left == 0:
            pending.due()

    def _tell(
        self,
        peer: Neighbour,
        changes: list[tuple[bool, Interest, dict[str, object]]],
        whole: bool = False,
    ) -> None:
        told = self.told[peer.name]
        told.sent += 1
        entries: list[object] = [change_entry(*change) for change in changes]
        table: dict[str, object] = {"number": told.sent, "whole": whole, "changes": entries}
        table["root"] = self.is_root
        if self.is_root:
            table["leased"] = list(self.absentees.leased)
        peer.send(INTEREST, table)

    # ---- links ----------------------------------------------------------------------------------

    def connect(self, peer: Neighbour) -> None:
        self.peers[peer.name] = peer
        told = self.told[peer.name] = Told()
        self._tell_whole(peer)
        for awaited in self.absentees.came(peer.name):
            told.awaiting.append((told.sent, awaited))

    def _tell_whole(self, peer: Neighbour) -> None:
        told = self.told[peer.name]
        changes = [(True, interest, self.arguments[interest]) for interest in self.own]
        told.relayed = {}
        if self.is_root and peer.is_secondary():
            for interest, wanters in self.wanters.items():
                if any(name != peer.name for name in wanters):
                    told.relayed[interest] = None
                    changes.append((True, interest, self._arguments_of(interest, wanters)))
        self._tell(peer, changes, whole=True)

    def _arguments_of(self, relayed: Interest, wanters: dict[str, None]) -> dict[str, object]:
        interest = relayed.direct()
        for name in wanters:
            return self.told[name].wanted[interest]
        raise AssertionError(f"nobody wants {relayed}")

    def disconnect(self, peer: Neighbour) -> None:
        """Forget what the peer wanted; who waits for it waits for its return, or its end."""
        if self.peers.pop(peer.name, None) is None:
            return
        told = self.told.pop(peer.name)
        changed: dict[Interest, dict[str, object]] = {}
        for interest, arguments in told.wanted.items():
            self._unbind(peer, interest, arguments)
            if peer.is_secondary():
                changed[self._note_wanter(peer, interest, False)] = arguments
        if self.is_root and changed:
            self._relay(changed)
        for _, awaited in told.awaiting:
            if peer.name in self.absentees.leased:
                self.absentees.await_(peer.name, awaited, self.broker.turn.now_ms)
            else:
                _acknowledged(awaited)
        self._judge_publishing()

    def react(self, event: Event) -> None:
        if isinstance(event, RootReady):
            self.set_root(self.me)
        elif isinstance(event, RootKnown):
            self.set_root(event.name)
        elif isinstance(event, (RootLost, Resigned, BecameRoot)):
            self.set_root("")
        elif isinstance(event, (LeaseLost, LeaseGained)):
            self._set_leaseless(isinstance(event, LeaseLost))

    def set_root(self, name: str) -> None:
        """Another broker is root, or none ("")."""
        before = self.root
        self.root = name
        if self.am_secondary and name != before:
            self._heed(before, False)
            self._heed(name, True)
            self._judge_publishing()
        self._heed_leased()
        is_root = name == self.me
        if is_root == self.is_root:
            return
        self.is_root = is_root
        for peer in self.peers.values():
            if peer.is_secondary():
                self._tell_whole(peer)

    # ---- leases ---------------------------------------------------------------------------------

    def _set_leaseless(self, leaseless: bool) -> None:
        """Without a lease no publish is admitted, and with another one none before it is heard
        what others have come to want meanwhile."""
        self.leaseless = leaseless
        self.hearing_since_ms = NOT_HEARING if leaseless else self.broker.turn.now_ms
        self._judge_publishing()

    def tell_leased(self, names: tuple[str, ...]) -> None:
        """At the root: these primaries may hold a lease."""
        if names == self.absentees.leased:
            return
        self._set_leased(names)
        for peer in self.peers.values():
            self._tell(peer, [])

    def tick(self, now_ms: int) -> None:
        for awaited in self.absentees.give_up(now_ms):
            _acknowledged(awaited)
        if self.hearing_since_ms != NOT_HEARING:
            self._judge_publishing()

    def _heed_leased(self) -> None:
        """The root, or what it has told, has changed."""
        told = self.told.get(self.root)
        if told is not None and told.leased is not None:
            self._set_leased(told.leased)

    def _set_leased(self, names: tuple[str, ...]) -> None:
        for awaited in self.absentees.set_leased(names):
            _acknowledged(awaited)
        self._judge_publishing()

    def _has_heard_all(self) -> bool:
        """Whether everybody who may have private queues has told what they want."""
        told = self.told.get(self.root)
        if not self.is_root and (told is None or not told.heard):
            return False
        if not all(each.heard for each in self.told.values()):
            return False
        return not self.absentees.missing(self.peers)

    def _judge_publishing(self) -> None:
        """What is published here may concern private queues that nobody has told of yet (A3)."""
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
        """Send what others want through this broker, or no longer."""
        peer = self.peers.get(name)
        if peer is None:
            return
        for interest, arguments in self.told[name].wanted.items():
            if interest.relay and heeded:
                self._bind(peer, interest, arguments)
            elif interest.relay:
                self._unbind(peer, interest, arguments)

    def _relay(self, changed: dict[Interest, dict[str, object]]) -> None:
        """Tell secondaries what has changed in what the others want."""
        for name, peer in self.peers.items():
            if not peer.is_secondary():
                continue
            told = self.told[name]
            changes: list[tuple[bool, Interest, dict[str, object]]] = []
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

    def _note_wanter(self, peer: Neighbour, interest: Interest, wants: bool) -> Interest:
        """Count a secondary among those that want something; answers it as it is relayed."""
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

    def received(self, peer: Neighbour, table: dict[str, object]) -> None:
        """An INTEREST frame."""
        told = self.told[peer.name]
        number = _int(table, "number")
        changes = table["changes"]
        assert isinstance(changes, list)
        changed: dict[Interest, dict[str, object]] = {}
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
        withheld = Withheld(self, peer.name, number)
        told.withheld.append(withheld)
        if self.is_root and changed:
            self._relay(changed)
            for name, other in self.told.items():
                if name != peer.name and self.is_secondary(name) and other.sent > other.known:
                    _await(other, withheld)
        self.acknowledge(peer.name)
        self._judge_publishing()

    def _is_heeded(self, peer: Neighbour, interest: Interest) -> bool:
        return not interest.relay or peer.name == self.root

    def _unwant(
        self,
        peer: Neighbour,
        told: Told,
        interest: Interest,
        arguments: dict[str, object],
        changed: dict[Interest, dict[str, object]],
    ) -> None:
        if interest not in told.wanted:
            return
        del told.wanted[interest]
        if self._is_heeded(peer, interest):
            self._unbind(peer, interest, arguments)
        if peer.is_secondary():
            changed[self._note_wanter(peer, interest, False)] = arguments

    def known(self, peer: Neighbour, number: int) -> None:
        """An INTEREST_KNOWN frame."""
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
            self.peers[name].send(INTEREST_KNOWN, {"number": number})

    def is_secondary(self, name: str) -> bool:
        neighbour = self.peers.get(name)
        return neighbour is not None and neighbour.is_secondary()

    def private_elsewhere(self, vhost: str, name: str) -> MetaQueue | None:
        """What leads to a private queue or reply token of this name on another broker.

        A secondary reaches others of its kind through the root.
        """
        named = self.named.get((vhost, name))
        if named is not None:
            return MetaQueue(vhost, name, named.way, named.name == self.root)
        at = name.rfind(NAME_MARK)
        if at < 0 or name[at + 1 :] == self.me:
            return None
        owner = self.peers.get(name[at + 1 :])
        if owner is not None:
            return MetaQueue(vhost, name, owner.way, False)
        root = self.peers.get(self.root)
        if root is None or not self.am_secondary:
            return None
        return MetaQueue(vhost, name, root.way, True)

    def is_private_elsewhere(self, vhost: str, name: str) -> bool:
        """Whether a queue of this name is private on another broker. Of names that brokers give
        only the broker is known, and that it is linked."""
        if (vhost, name) in self.named:
            return True
        owner = name[name.rfind(NAME_MARK) + 1 :]
        return name.startswith(SERVER_NAMED) and owner in self.peers

    # ---- the router -----------------------------------------------------------------------------

    def _bind(self, peer: Neighbour, interest: Interest, arguments: dict[str, object]) -> None:
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

    def _unbind(self, peer: Neighbour, interest: Interest, arguments: dict[str, object]) -> None:
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

    def _destination(self, peer: Neighbour, interest: Interest) -> Destination:
        if interest.queue:
            return self._meta_queue(peer, interest.vhost, interest.queue, interest.relay)
        return self._meta(peer, interest)

    def _meta(self, peer: Neighbour, interest: Interest) -> Destination:
        """The exchange on the peer, one for each way in which it is reached."""
        key = (peer.name, interest.vhost, interest.exchange, interest.relay)
        meta = self.metas.get(key)
        if meta is None:
            meta = MetaExchange(interest.vhost, interest.exchange, peer.way, interest.relay)
            self.metas[key] = meta
        return meta

    def _meta_queue(self, peer: Neighbour, vhost: str, name: str, relay: bool) -> Destination:
        """The private queue behind a peer; one object as long as bindings lead to it."""
        key = (peer.name, vhost, name, relay)
        found = self.queues.get(key)
        if found is None:
            found = MetaQueue(vhost, name, peer.way, relay)
            self.queues[key] = found
        return found


def _await(told: Told, awaited: Awaited) -> None:
    """Let something wait until the peer knows all that it was told."""
    awaited.left += 1
    told.awaiting.append((told.sent, awaited))


def _acknowledged(awaited: Awaited) -> None:
    awaited.left -= 1
    if awaited.left == 0:
        awaited.due()


def _int(table: dict[str, object], name: str) -> int:
    value = table[name]
    assert isinstance(value, int)
    return value
