"""Link manager: all links of a broker, exactly one per pair (R13).

A broker that knows an address dials. So two brokers may dial each other at the same time, and both
ends must keep the same one of the two links, whatever arrives in whatever order:

- A dialler that finds, when its peer has proved who it is, that they are linked already, doesn't
  ask for another link. So there can be two links only if both ask.
- Of two links both ends keep the one dialled by the lower UUID. The broker with the lower UUID
  refuses a link that it is asked for if it has dialled one, or asks for one itself. The other gives
  up what it has dialled when it is asked. So crossing dials open one link, and none goes down.
- A second link of the same dialler replaces the first: the dialler has lost that, or it would not
  have asked. So does a link with another incarnation: the old one is dead.

Primaries and witnesses are linked with everybody, secondaries never with each other.
"""

from __future__ import annotations

from typing import Final

from rhizome.cluster.link.accepted_link_port import ConnectionAdopter
from rhizome.cluster.link.broker_hello import (
    SECONDARY,
    Hello,
    HelloError,
    decode_hello,
    negotiated_version,
)
from rhizome.cluster.link.cluster_key_proof import (
    NO_WISH,
    Chance,
    Dialler,
    LinkKeys,
    Protection,
    Wish,
)
from rhizome.cluster.link.dial_handshake import DialHandshake
from rhizome.cluster.link.link import DIALLING, OPEN, Link, LinkHandler, LinkOwner
from rhizome.cluster.link.link_statistics import LinkStatistics
from rhizome.cluster.link.peer_checks import another_answers, is_itself, name_taken, refusal
from rhizome.cluster.link.peers import LinkSettings, Peer
from rhizome.cluster.protocol.catalogue import HELLO
from rhizome.errors import (
    AccessRefused,
    AmqpError,
    ConnectionForced,
    InternalFault,
    NotAllowed,
    SyntaxErrorFault,
)

LINKED_ALREADY: Final = "these brokers are linked already"
UNIX_PREFIX: Final = "unix:"
RENEWAL_MS: Final = 1_000
"""The least time between ending two links that couldn't be made any more: never all links of a
broker at once."""

NOBODY: Final = Hello("", "0" * 32, "0")
REFUSALS_REMEMBERED_MAX: Final = 1024


class LinkTable(LinkOwner):
    """All links of a broker.

    Invariant: at most one open link per peer, and it is the peer's ``link``; the handler has heard
    of exactly those.
    """

    def __init__(
        self,
        me: Hello,
        keys: LinkKeys,
        settings: LinkSettings,
        handler: LinkHandler,
        chance: Chance,
        now_ms: int,
    ) -> None:
        super().__init__(handler, now_ms)
        self.me = me
        self.keys = keys
        self.settings = settings
        self.chance = chance
        self.adopter = ConnectionAdopter()
        self.peers: dict[str, Peer] = {}
        self._numbers = 0
        self._ticked_ms = now_ms
        self._renewed_ms = now_ms
        self._refused: dict[str, str] = {}
        self._stopped = ""

    # ---- what the handler uses ------------------------------------------------------------------

    def link_to(self, name: str) -> Link | None:
        """The open link with a broker."""
        peer = self.peers.get(name)
        return peer.link if peer is not None else None

    def open_links(self) -> list[Link]:
        """All open links, in the order in which their peers became known."""
        return [peer.link for peer in self.peers.values() if peer.link is not None]

    def configure(self, name: str, addresses: tuple[str, ...], role: str) -> None:
        """A broker that the configuration names."""
        if name != self.me.name:
            peer = self._peer(name)
            peer.configured = addresses
            peer.role = role

    def learn(self, name: str, addresses: tuple[str, ...], role: str) -> None:
        """A broker that the registry names; its addresses replace those learned before."""
        if name != self.me.name:
            peer = self._peer(name)
            peer.told = addresses
            peer.role = role

    def forget(self, name: str) -> None:
        """A broker is no longer in the cluster: don't dial it, end the link with it."""
        peer = self.peers.pop(name, None)
        if peer is not None:
            for link in (peer.dial, peer.link):
                if link is not None:
                    self._end(peer, link, f"broker {name!r} was removed from the cluster")

    def set_me(self, me: Hello) -> None:
        """This broker's hello has changed: tell everybody, and end links that aren't allowed any
        more."""
        self.me = me
        for link in self.open_links():
            self._tell(link)
            self._check_open(link, link.peer)

    def close_all(self, reason: str) -> None:
        """This broker stops: dial nobody and admit nobody any more."""
        self._stopped = reason
        for name in list(self.peers):
            peer = self.peers.pop(name)
            for link in (peer.dial, peer.link):
                if link is not None:
                    self._end(peer, link, reason)

    def statistics(self) -> list[LinkStatistics]:
        return [self._statistics_of(link) for link in self.open_links()]

    def _statistics_of(self, link: Link) -> LinkStatistics:
        return LinkStatistics(
            name=link.name,
            address=link.address,
            dialled=link.dialled,
            version=int(link.version),
            open_ms=int(self.now_ms - link.opened_ms),
            silent_ms=int(self.now_ms - link.last_received_ms),
            backlog_bytes=int(link.backlog()),
            congested=link.congested,
            sent_frames=int(link.sent_frames),
            sent_bytes=int(link.sent_bytes),
            received_frames=int(link.received_frames),
            received_bytes=int(link.received_bytes),
            sent_by_method=_counted(link.sent_kinds),
            received_by_method=_counted(link.received_kinds),
        )

    # ---- what the driver uses -------------------------------------------------------------------

    def take_touched(self) -> list[Link]:
        """The links that want to be flushed."""
        touched = self.touched
        self.touched = []
        return touched

    def wants_dial(self) -> list[Link]:
        """Links to be dialled now."""
        due = [peer for peer in self.peers.values() if self._is_due(peer)]
        return [self._dial(peer) for peer in due]

    def tick(self, now_ms: int) -> None:
        """Time has passed."""
        slept = now_ms - self._ticked_ms > self.settings.timeout_ms // 2
        self.now_ms = now_ms
        self._ticked_ms = now_ms
        for peer in list(self.peers.values()):
            if peer.link is not None:
                if slept:
                    # While this broker didn't listen it could hear nobody: its peers weren't
                    # silent.
                    peer.link.last_received_ms = now_ms
                self._check_silence(peer.link)
            if peer.dial is not None:
                self._check_patience(peer.dial)
        if now_ms - self._renewed_ms >= RENEWAL_MS:
            self._renew()

    def _renew(self) -> None:
        """End a link that rests on a key or a permission that doesn't count any more. If its peer
        can make a better one, it is back at once."""
        for link in self.open_links():
            guard = link.guard
            if guard.fingerprint not in self.keys.fingerprints:
                reason = "it was made with a cluster key that this broker doesn't take any more"
            elif self._exposure(link.peer, guard.is_lacking, guard.is_local) is not None:
                reason = "it has no MACs, and cluster.insecure_links doesn't allow that any more"
            else:
                continue
            self._renewed_ms = self.now_ms
            link.close(reason)
            return

    def next_deadline_ms(self) -> int:
        """When ``tick`` and ``wants_dial`` have something to do at the latest."""
        settings = self.settings
        sent, received = self.now_ms, self.now_ms
        soonest = self.now_ms + settings.heartbeat_ms
        for peer in self.peers.values():
            link = peer.link
            if link is not None:
                if link.last_sent_ms < sent:
                    sent = link.last_sent_ms
                if link.last_received_ms < received:
                    received = link.last_received_ms
            if peer.dial is not None:
                soonest = min(soonest, peer.dial.begun_ms + settings.dial_timeout_ms)
            elif peer.wants_dial() and not self._is_out_of_reach(peer):
                soonest = min(soonest, peer.next_dial_ms)
        soonest = min(soonest, sent + settings.heartbeat_ms, received + settings.timeout_ms)
        return max(soonest, self.now_ms)

    # ---- accepting ------------------------------------------------------------------------------

    def admit(
        self, hello: Hello, told: Hello, address: str, protection: Protection, is_local: bool
    ) -> Link:
        """A peer has proved itself and asks for a link; raises the error with which it is refused.

        ``told``: what it was told about this broker. The link isn't open before ``admitted``.
        """
        fault = (
            self._refusal(hello)
            or self._exposure(hello, protection.is_lacking, is_local)
            or self._rivalry(hello)
        )
        if fault is not None:
            if fault.text != LINKED_ALREADY:
                self._report_refused(hello, address, fault.text)
            raise fault
        self._refused.pop(hello.name, None)
        link = self._make(hello.name, address, False, hello, told)
        link.guard.agreed(protection)
        link.guard.is_local = is_local
        return link

    def admitted(self, link: Link) -> None:
        """The driver has the connection of an admitted link."""
        try:
            self._open(link, link.peer)
        except Exception as bug:
            # The connection's core has let go of it already and couldn't end it.
            self.handler.bug(bug, f"link with {link.name}")
            link.fail(InternalFault("the broker made a mistake; its log has the details"))

    def _rivalry(self, hello: Hello) -> AmqpError | None:
        """Whether another link, open or asked for, is to be kept instead (R13)."""
        peer = self.peers.get(hello.name)
        if peer is None:
            return None
        for other in (peer.link, peer.dial):
            if other is None:
                continue
            if other.stage == OPEN and other.peer.uuid != hello.uuid:
                return NotAllowed(name_taken(other.peer, hello))
            if other.dialled and _is_same(other.peer, hello) and self.me.uuid < hello.uuid:
                return ConnectionForced(LINKED_ALREADY)
        return None

    # ---- dialling -------------------------------------------------------------------------------

    def _is_due(self, peer: Peer) -> bool:
        return (
            peer.wants_dial()
            and peer.next_dial_ms <= self.now_ms
            and not self._is_out_of_reach(peer)
        )

    def _is_out_of_reach(self, peer: Peer) -> bool:
        return self.me.role == SECONDARY and peer.role == SECONDARY

    def _dial(self, peer: Peer) -> Link:
        link = self._make(peer.name, peer.next_address(), True, NOBODY, self.me)
        link.opener = DialHandshake(self, Dialler(self.keys, self.me, self.chance))
        peer.dial = link
        return link

    def wish(self, link: Link) -> Wish:
        """Called by ``DialHandshake``."""
        protected = self.settings.needs_certificate or link.address.startswith(UNIX_PREFIX)
        return self.wish_for(protected, link.guard.is_local)

    def wish_for(self, protected: bool, is_local: bool) -> Wish:
        """The wish for a connection that TLS or a Unix socket protects, or that has a loopback
        address."""
        if not self.settings.has_macs:
            return NO_WISH
        return Wish(not protected, self.settings.host if is_local else "")

    def may_ask(self, link: Link, peer: Hello) -> AmqpError | None:
        """Called by ``DialHandshake``: None if the proved peer is to be asked for a link."""
        if peer.name != link.name and not is_itself(self.me, peer):
            listed = link.address in self._peer(link.name).configured
            return NotAllowed(another_answers(link.name, link.address, listed, peer))
        guard = link.guard
        fault = self._refusal(peer) or self._exposure(peer, guard.is_lacking, guard.is_local)
        if fault is not None:
            return fault
        known = self.link_to(peer.name)
        if known is not None:
            if known.peer.uuid != peer.uuid:
                return NotAllowed(name_taken(known.peer, peer))
            if _is_same(known.peer, peer):
                return ConnectionForced(LINKED_ALREADY)
        link.peer = peer
        return None

    def answered(self, link: Link, peer: Hello) -> None:
        """Called by ``DialHandshake``: the peer has said open-ok."""
        known = self.link_to(peer.name)
        is_rival = known is not None and not known.dialled and _is_same(known.peer, peer)
        if is_rival and peer.uuid < self.me.uuid:
            link.begin_macs()
            link.close(LINKED_ALREADY)
        else:
            self._open(link, peer)

    def refused(self, link: Link, code: int, reason: str) -> None:
        """Called by ``DialHandshake``: the peer has closed the connection instead."""
        if code == ConnectionForced.code:
            link.lost(LINKED_ALREADY)
        elif code == AccessRefused.code:
            link.lost(
                f"refused by {link.name} at {link.address}, which has another cluster key or "
                f"doesn't take this broker; its log says more: {reason}"
            )
        else:
            link.lost(f"refused by {link.name} at {link.address}: {reason}")

    # ---- the life of a link ---------------------------------------------------------------------

    def _make(self, name: str, address: str, dialled: bool, peer: Hello, told: Hello) -> Link:
        self._numbers += 1
        settings = self.settings
        return Link(
            self,
            self._numbers,
            name,
            address,
            dialled,
            peer,
            told,
            settings.buffer_bytes,
            settings.backlog_bytes_max,
        )

    def _open(self, link: Link, hello: Hello) -> None:
        """A handshake is over: this link takes the place of any other with the peer."""
        version = negotiated_version(self.me.versions, hello.versions)
        link.opened(hello, version, self.settings.frame_bytes_max)
        peer = self._peer(hello.name)
        self._note_hello(peer, hello)
        if peer.dial is link:
            peer.dial = None
        old = peer.link
        peer.link = None
        if old is not None:
            self._end(peer, old, f"another link with {hello.name!r} has taken its place")
        peer.link = link
        peer.problem = ""
        self.handler.link_up(link)
        if link.told is not self.me:
            self._tell(link)
        self._check_open(link, hello)

    def _note_hello(self, peer: Peer, hello: Hello) -> None:
        if peer.uuid not in ("", hello.uuid):
            self._report(
                peer,
                hello.name,
                f"broker {hello.name!r} has another identity than before: {hello.uuid}, not "
                f"{peer.uuid}",
            )
        peer.uuid = hello.uuid
        peer.role = hello.role
        peer.told = hello.addresses

    def _tell(self, link: Link) -> None:
        link.told = self.me
        link.send_urgent(HELLO, self.me.encode())

    def _check_open(self, link: Link, hello: Hello) -> None:
        fault = self._refusal(hello)
        if fault is not None and link.stage == OPEN:
            link.fail(fault)

    def hello_came(self, link: Link, payload: bytes) -> None:
        try:
            hello = decode_hello(payload)
        except HelloError as error:
            raise SyntaxErrorFault(str(error)) from None
        if hello.name != link.name or not _is_same(hello, link.peer):
            raise NotAllowed(f"broker {link.name!r} can't become {hello.name!r} on an open link")
        link.peer = hello
        peer = self.peers.get(hello.name)
        if peer is not None:
            self._note_hello(peer, hello)
        self._check_open(link, hello)
        if link.stage == OPEN:
            self.handler.peer_changed(link)

    def closed(self, link: Link, reason: str) -> None:
        peer = self.peers.get(link.name)
        if peer is None or link not in (peer.link, peer.dial):
            return
        was_open = peer.link is link
        if was_open:
            peer.link = None
        else:
            peer.dial = None
        self._schedule(peer, link, was_open, reason)
        if was_open:
            self.handler.link_down(link, reason)

    def _schedule(self, peer: Peer, link: Link, was_open: bool, reason: str) -> None:
        lasted = was_open and self.now_ms - link.opened_ms >= self.settings.stable_ms
        if lasted or reason == LINKED_ALREADY:
            peer.ended(self.settings, self.chance, self.now_ms)
            return
        peer.failed(self.settings, self.chance, self.now_ms)
        if not was_open:
            self._report(peer, link.address, reason)

    def _end(self, peer: Peer, link: Link, reason: str) -> None:
        """Take a link away from its peer, close it, and tell the handler."""
        was_open = link.stage == OPEN
        peer.link = None if peer.link is link else peer.link
        peer.dial = None if peer.dial is link else peer.dial
        link.close(reason)
        if was_open:
            self.handler.link_down(link, reason)

    def _check_silence(self, link: Link) -> None:
        silent_ms = self.now_ms - link.last_received_ms
        if silent_ms >= self.settings.timeout_ms:
            link.close(f"nothing came from {link.name} for {silent_ms} ms")
        elif self.now_ms - link.last_sent_ms >= self.settings.heartbeat_ms:
            link.heartbeat()

    def _check_patience(self, link: Link) -> None:
        waited_ms = self.now_ms - link.begun_ms
        if waited_ms >= self.settings.dial_timeout_ms:
            what = "could not be connected to" if link.stage == DIALLING else "opened no link"
            link.lost(f"{link.address} {what} within {waited_ms} ms")

    # ---- small things ---------------------------------------------------------------------------

    def _peer(self, name: str) -> Peer:
        peer = self.peers.get(name)
        if peer is None:
            peer = Peer(name, self.now_ms)
            self.peers[name] = peer
        return peer

    def _refusal(self, hello: Hello) -> AmqpError | None:
        reason = self._stopped or refusal(self.me, hello) or self.handler.refusal(hello)
        return NotAllowed(reason) if reason else None

    def _exposure(self, hello: Hello, is_lacking_mac: bool, is_local: bool) -> AmqpError | None:
        """Whether anybody on the path could speak for this broker, and that isn't allowed."""
        settings = self.settings
        is_inside = is_local and settings.trusts_loopback
        if not settings.has_macs or not is_lacking_mac or is_inside or settings.insecure:
            return None
        return NotAllowed(
            f"broker {hello.name!r} is of a release whose links have no MACs, and whoever is on the"
            " path to it could send in its name: upgrade it, let links use TLS (cluster.tls), or"
            " allow it with cluster.insecure_links until all brokers are upgraded"
        )

    def _report(self, peer: Peer, address: str, reason: str) -> None:
        if reason != peer.problem:
            peer.problem = reason
            self.handler.link_problem(peer.name, address, reason)

    def _report_refused(self, hello: Hello, address: str, reason: str) -> None:
        if self._refused.get(hello.name) != reason:
            if len(self._refused) >= REFUSALS_REMEMBERED_MAX:
                self._refused.clear()
            self._refused[hello.name] = reason
            self.handler.link_problem(hello.name, address, reason)


def _is_same(one: Hello, other: Hello) -> bool:
    """Whether both are the same start of the same broker."""
    return one.uuid == other.uuid and one.incarnation == other.incarnation


def _counted(kinds: list[int]) -> dict[int, int]:
    return {method: count for method, count in enumerate(kinds) if count}
