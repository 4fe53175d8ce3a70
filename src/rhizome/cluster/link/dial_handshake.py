"""Dial handshake: the dialling side's handshake, an AMQP client's with a mechanism of its own.

header        ->
              <-  start            offers RHIZOME-CLUSTER if the broker has a cluster key
start-ok      ->
              <-  secure
secure-ok     ->                   our proof; a 403 answers a wrong one
              <-  secure           the peer's proof; now we check who it is
secure-ok     ->
              <-  tune
tune-ok, open ->                   from here on we have asked for the link
              <-  open-ok          or a close that says why not
"""

from __future__ import annotations

from typing import Final, Protocol

from rhizome.amqp.frames import method_frame
from rhizome.amqp.methods import (
    ConnectionClose,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionSecure,
    ConnectionSecureOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    Method,
    decode_method,
)
from rhizome.cluster.link.broker_hello import Hello
from rhizome.cluster.link.cluster_key_proof import MECHANISM, Dialler, ProofError, Wish
from rhizome.cluster.link.link import Link, Opener
from rhizome.errors import AmqpError, CommandInvalid, LoginRefused, NotAllowed

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
_PROPERTIES: Final[dict[str, object]] = {
    "product": "Rhizome",
    "capabilities": {"authentication_failure_close": True},
}


class Dialled(Protocol):
    """The owner of dialled links: ``LinkTable``."""

    def wish(self, link: Link) -> Wish:
        """What this end says of the connection."""
        ...

    def may_ask(self, link: Link, peer: Hello) -> AmqpError | None:
        """The peer has proved itself; None if we want a link with it."""
        ...

    def answered(self, link: Link, peer: Hello) -> None:
        """The peer has said open-ok."""

    def refused(self, link: Link, code: int, reason: str) -> None:
        """The peer has closed the connection instead."""


class DialHandshake(Opener):
    """The handshake of one dialled link.

    Invariant: ``_expected`` is the only method that may come next, besides a close.
    """

    def __init__(self, dialled: Dialled, dialler: Dialler) -> None:
        super().__init__()
        self._dialled = dialled
        self._dialler = dialler
        self._expected: type[Method] = ConnectionStart
        self._peer: Hello | None = None
        self._proved = False

    def begin(self, link: Link) -> None:
        link.urgent.put(PROTOCOL_HEADER)
        link.touch()

    def step(self, link: Link, payload: bytes) -> None:
        method = decode_method(payload)
        if isinstance(method, ConnectionClose):
            self._dialled.refused(link, int(method.reply_code), method.reply_text)
        elif not isinstance(method, self._expected):
            raise CommandInvalid(f"{method.name()} came before its turn")
        elif isinstance(method, ConnectionStart):
            self._start(link, method)
        elif isinstance(method, ConnectionSecure):
            self._secure(link, method.challenge)
        elif isinstance(method, ConnectionTune):
            self._tune(link, method)
        elif isinstance(method, ConnectionOpenOk):
            assert self._peer is not None
            self._dialled.answered(link, self._peer)

    def _start(self, link: Link, method: ConnectionStart) -> None:
        if MECHANISM not in method.mechanisms.decode("ascii", "replace").split():
            raise NotAllowed(
                f"what answers at {link.address} offers no {MECHANISM}: it is no broker of a "
                "cluster, or demands TLS of links"
            )
        self._expected = ConnectionSecure
        first = self._dialler.first(self._dialled.wish(link))
        self._send(link, ConnectionStartOk(dict(_PROPERTIES), MECHANISM, first, "en_US"))

    def _secure(self, link: Link, challenge: bytes) -> None:
        try:
            if not self._proved:
                self._proved = True
                self._send(link, ConnectionSecureOk(self._dialler.prove(challenge)))
                return
            peer = self._dialler.verify(challenge)
        except ProofError as error:
            raise LoginRefused(f"broker at {link.address}: {error}") from None
        link.guard.agreed(self._dialler.protection)
        refusal = self._dialled.may_ask(link, peer)
        if refusal is not None:
            raise refusal
        self._peer = peer
        self._expected = ConnectionTune
        self._send(link, ConnectionSecureOk(b""))

    def _tune(self, link: Link, method: ConnectionTune) -> None:
        self._expected = ConnectionOpenOk
        # The links have heartbeats of their own, and frames as large as messages.
        self._send(link, ConnectionTuneOk(method.channel_max, method.frame_max, 0))
        self._send(link, ConnectionOpen("/"))

    def _send(self, link: Link, method: Method) -> None:
        link.urgent.put(method_frame(0, method))
        link.touch()
