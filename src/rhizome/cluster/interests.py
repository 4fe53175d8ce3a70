"""Interests: the meta-bindings of this broker and of its peers (A3).

A broker whose private queues are bound to an exchange tells its peers so: they bind the eponymous
exchange here (`MetaExchange`) and send it what matches. Bindings are counted per (exchange, key,
arguments), and only the first and the last of a kind are told. All of this is soft state of a link:
told whole when a link comes up, dropped when it goes down, never in the cluster's log.

Secondaries have no links with each other. The root tells each secondary what the others are
interested in, as its own interest with ``relay``, and passes on what comes for it.

A binding is answered once every peer that is linked has it. The root acknowledges what came from a
secondary after the other secondaries have acknowledged it to the root.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from rhizome.amqp.values import encode_table, read_table
from rhizome.broker.routing.exchange import arguments_key
from rhizome.broker.targets import MetaExchange

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.outcome import Outcome
    from rhizome.broker.port import Waiter
    from rhizome.cluster.neighbour import Neighbour

INTEREST: Final = 48
"""Numbered changes of what the sender's private queues want; the first on a link is the whole."""
INTEREST_KNOWN: Final = 49
"""Everything up to a number is known here, and wherever the receiver would relay it."""

NAME_MARK: Final = "@"
"""Names that a broker gives to private queues and reply tokens end with this and its own name."""


@dataclass(frozen=True)
class Interest:
    """One kind of private binding. For the default exchange ``key`` is the name of a queue."""

    vhost: str
    exchange: str
    key: str
    arguments_key: bytes
    relay: bool = False

    def relayed(self) -> Interest:
        return Interest(self.vhost, self.exchange, self.key, self.arguments_key, True)

    def direct(self) -> Interest:
        return Interest(self.vhost, self.exchange, self.key, self.arguments_key, False)


@dataclass
class Told:
    """What one peer was told and has acknowledged, and what it has told.

    Invariant: ``wanted`` is what the peer's messages about itself amount to, each with its
    arguments; ``known`` never passes ``sent``.
    """

    sent: int = 0
    known: int = 0
    relayed: dict[Interest, None] = field(default_factory=dict)
    wanted: dict[Interest, dict[str, object]] = field(default_factory=dict)
    withheld: list[tuple[int, dict[str, int]]] = field(default_factory=list)


@dataclass
class Pending:
    """A client that waits until its binding is known."""

    waiter: Waiter
    outcome: Outcome
    awaited: dict[str, int]


class Interests:
    """Invariant: ``own`` counts the private bindings of this broker by kind; ``wanters`` has for
    each kind, as it is relayed, the secondaries that want it; every peer with a link is in ``told``
    and was told all of ``own``, and if this broker is the root and the peer a secondary, all that
    other secondaries want.
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
        self.pending: list[Pending] = []
        self.fresh = False
        self.is_root = False
        self.metas: dict[tuple[str, str, str, bool], MetaExchange] = {}
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
        awaited: dict[str, int] = {}
        if self.fresh:
            awaited = {
                name: told.sent for name, told in self.told.items() if told.sent > told.known
            }
        self.fresh = False
        if awaited:
            self.pending.append(Pending(waiter, outcome, awaited))
        else:
            waiter.resolved(outcome)

    def _tell(
        self,
        peer: Neighbour,
        changes: list[tuple[bool, Interest, dict[str, object]]],
        whole: bool = False,
    ) -> None:
        told = self.told[peer.name]
        told.sent += 1
        entries: list[object] = [
            {
                "add": added,
                "vhost": interest.vhost,
                "exchange": interest.exchange,
                "key": interest.key,
                "arguments": encode_table(arguments),
                "relay": interest.relay,
            }
            for added, interest, arguments in changes
        ]
        peer.send(INTEREST, {"number": told.sent, "whole": whole, "changes": entries})

    # ---- links ----------------------------------------------------------------------------------

    def connect(self, peer: Neighbour) -> None:
        self.peers[peer.name] = peer
        self.told[peer.name] = Told()
        self._tell_whole(peer)

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
        """Forget what the peer wanted, and wait for it no longer."""
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
        self._gone(peer.name)

    def set_root(self, name: str) -> None:
        """Another broker is root, or none ("")."""
        self.root = name
        is_root = name == self.me
        if is_root == self.is_root:
            return
        self.is_root = is_root
        for peer in self.peers.values():
            if peer.is_secondary():
                self._tell_whole(peer)

    def _relay(self, changed: dict[Interest, dict[str, object]]) -> dict[str, int]:
        """Tell secondaries what has changed in what the others want; whose answers to wait for."""
        awaited: dict[str, int] = {}
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
            if told.sent > told.known:
                awaited[name] = told.sent
        return awaited

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
            for interest, arguments in list(told.wanted.items()):
                self._unwant(peer, told, interest, arguments, changed)
        for change in changes:
            assert isinstance(change, dict)
            interest, arguments = _interest_of(change)
            if change["add"] is not True:
                self._unwant(peer, told, interest, arguments, changed)
            elif interest not in told.wanted:
                told.wanted[interest] = arguments
                self._bind(peer, interest, arguments)
                if peer.is_secondary():
                    changed[self._note_wanter(peer, interest, True)] = arguments
        awaited: dict[str, int] = {}
        if self.is_root and changed:
            awaited = self._relay(changed)
            awaited.pop(peer.name, None)
        told.withheld.append((number, awaited))
        self._answer(peer, told)

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
        self._unbind(peer, interest, arguments)
        if peer.is_secondary():
            changed[self._note_wanter(peer, interest, False)] = arguments

    def known(self, peer: Neighbour, number: int) -> None:
        """An INTEREST_KNOWN frame."""
        told = self.told[peer.name]
        told.known = max(told.known, number)
        self._check(peer.name, told.known)

    def _gone(self, name: str) -> None:
        self._check(name, -1)

    def _check(self, name: str, known: int) -> None:
        """A peer has acknowledged up to ``known``, or (-1) is gone: whoever waited is answered."""
        for told_name, told in self.told.items():
            for _, awaited in told.withheld:
                if name in awaited and (known < 0 or awaited[name] <= known):
                    del awaited[name]
            self._answer(self.peers[told_name], told)
        done: list[Pending] = []
        for pending in self.pending:
            awaited = pending.awaited
            if name in awaited and (known < 0 or awaited[name] <= known):
                del awaited[name]
                if not awaited:
                    done.append(pending)
        if done:
            self.pending = [pending for pending in self.pending if pending.awaited]
            for pending in done:
                pending.waiter.resolved(pending.outcome)

    def _answer(self, peer: Neighbour, told: Told) -> None:
        number = 0
        while told.withheld and not told.withheld[0][1]:
            number = told.withheld.pop(0)[0]
        if number > 0:
            peer.send(INTEREST_KNOWN, {"number": number})

    def is_secondary(self, name: str) -> bool:
        neighbour = self.peers.get(name)
        return neighbour is not None and neighbour.is_secondary()

    def private_elsewhere(self, vhost: str, name: str) -> MetaExchange | None:
        """The default exchange of the broker that has a private queue or reply token of this name.

        A secondary reaches others of its kind through the root.
        """
        named = self.named.get((vhost, name))
        if named is not None:
            return self._meta(named, Interest(vhost, "", name, b"", named.name == self.root))
        at = name.rfind(NAME_MARK)
        if at < 0 or name[at + 1 :] == self.me:
            return None
        owner = self.peers.get(name[at + 1 :])
        if owner is not None:
            return self._meta(owner, Interest(vhost, "", name, b""))
        root = self.peers.get(self.root)
        if root is None or not self.am_secondary:
            return None
        return self._meta(root, Interest(vhost, "", name, b"", True))

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
            vhost.router.bind(exchange, self._meta(peer, interest), interest.key, arguments)

    def _unbind(self, peer: Neighbour, interest: Interest, arguments: dict[str, object]) -> None:
        vhost = self.broker.state.vhosts.get(interest.vhost)
        if vhost is None:
            return
        if interest.exchange == "":
            self.named.pop((interest.vhost, interest.key), None)
            vhost.router.epoch += 1
            return
        exchange = vhost.router.exchanges.get(interest.exchange)
        if exchange is not None:
            vhost.router.unbind(exchange, self._meta(peer, interest), interest.key, arguments)

    def _meta(self, peer: Neighbour, interest: Interest) -> MetaExchange:
        """The exchange on the peer, one for each way in which it is reached."""
        key = (peer.name, interest.vhost, interest.exchange, interest.relay)
        meta = self.metas.get(key)
        if meta is None:
            meta = MetaExchange(interest.vhost, interest.exchange, peer.way, interest.relay)
            self.metas[key] = meta
        return meta


def interest_of(
    vhost: str, exchange: str, key: str, arguments: dict[str, object], relay: bool = False
) -> Interest:
    return Interest(vhost, exchange, key, arguments_key(arguments), relay)


def _interest_of(change: dict[str, object]) -> tuple[Interest, dict[str, object]]:
    encoded = change["arguments"]
    assert isinstance(encoded, bytes)
    arguments, _ = read_table(encoded, 0)
    interest = interest_of(
        str(change["vhost"]),
        str(change["exchange"]),
        str(change["key"]),
        arguments,
        change["relay"] is True,
    )
    return interest, arguments


def _int(table: dict[str, object], name: str) -> int:
    value = table[name]
    assert isinstance(value, int)
    return value
