"""Accept handshake: links come in on the broker's own listeners, as connections that log in
differently.

``LinkAuthenticator`` stands before the authenticator of applications and takes connections that
choose RHIZOME-CLUSTER. It answers with an identity of kind ``cluster``, which no user can have and
which may enter no vhost. That identity takes its connection away from the broker when it is opened.
"""

from __future__ import annotations

from typing import Final

from rhizome.amqp.methods import ConnectionOpenOk
from rhizome.broker.access.auth_interface import (
    KIND_CLUSTER,
    AccessEpoch,
    AuthDone,
    Authenticator,
    ChallengeAnswer,
    Identity,
    Peer,
)
from rhizome.broker.connection.amqp_handshake import hand_over
from rhizome.broker.connection.connection import Connection
from rhizome.broker.turn import MarkedConnection
from rhizome.cluster.link.broker_hello import Hello
from rhizome.cluster.link.cluster_key_proof import MECHANISM, Acceptor, ProofError, Protection
from rhizome.cluster.link.death_certificate import DEATH_MECHANISM, verified
from rhizome.cluster.link.link_manager import LinkTable

UNIX_ADDRESS: Final = "unix"
"""The address of peers at Unix sockets; all others are numeric."""


class LinkAuthenticator(Authenticator):
    """Authenticates brokers itself and leaves everybody else to ``others``."""

    def __init__(self, links: LinkTable, others: Authenticator) -> None:
        super().__init__()
        self._links = links
        self._others = others

    def mechanisms(self, tls: bool) -> str:
        offered = self._others.mechanisms(tls)
        if self._links.settings.needs_certificate and not tls:
            return offered
        return f"{offered} {MECHANISM}"

    def begin(self, mechanism: str, response: bytes, peer: Peer, done: AuthDone) -> None:
        if mechanism not in (MECHANISM, DEATH_MECHANISM):
            self._others.begin(mechanism, response, peer, done)
            return
        if self._links.settings.needs_certificate and not peer.certificate_subject:
            done.authenticated(
                None, f"a link from {peer.address} without a certificate that could be verified"
            )
            return
        if mechanism == DEATH_MECHANISM:
            self._take_certificate(response, peer, done)
        else:
            _Introduction(self._links, peer, done).begin(response)

    def _take_certificate(self, response: bytes, peer: Peer, done: AuthDone) -> None:
        """Somebody brings a certificate of death in place of a login, and is told that it was
        taken."""
        try:
            certificate = verified(self._links.keys, response)
        except ProofError as error:
            done.authenticated(None, f"{error} (from {peer.address}:{peer.port})")
            return
        self._links.handler.died(certificate, response)
        done.challenge(self._links.me.name.encode("utf-8", "surrogateescape"), _Farewell(done))


class _Farewell(ChallengeAnswer):
    """Whoever has brought a certificate has nothing else to say."""

    def __init__(self, done: AuthDone) -> None:
        super().__init__()
        self._done = done

    def answered(self, response: bytes) -> None:
        self._done.authenticated(None, "a certificate of death opens no connection")


class _Introduction(ChallengeAnswer):
    """Waits for the dialler's proof."""

    def __init__(self, links: LinkTable, peer: Peer, done: AuthDone) -> None:
        super().__init__()
        self._links = links
        self._peer = peer
        self._done = done
        self._told = links.me
        protected = peer.tls or peer.address == UNIX_ADDRESS
        wish = links.wish_for(protected, peer.loopback)
        self._acceptor = Acceptor(links.keys, links.me, links.chance, wish)

    def begin(self, response: bytes) -> None:
        try:
            introduction = self._acceptor.introduce(response)
        except ProofError as error:
            self._refuse(error)
        else:
            self._done.challenge(introduction, self)

    def answered(self, response: bytes) -> None:
        try:
            hello = self._acceptor.verify(response)
        except ProofError as error:
            self._refuse(error)
            return
        proof = self._acceptor.prove()
        protection = self._acceptor.protection
        identity = LinkIdentity(self._links, hello, self._told, self._peer, protection)
        self._done.challenge(proof, _LastWord(self._done, identity))

    def _refuse(self, error: ProofError) -> None:
        self._done.authenticated(None, f"{error} (from {self._peer.address}:{self._peer.port})")


class _LastWord(ChallengeAnswer):
    """Waits until the dialler has seen our proof; it closes the connection if that is wrong."""

    def __init__(self, done: AuthDone, identity: LinkIdentity) -> None:
        super().__init__()
        self._done = done
        self._identity = identity

    def answered(self, response: bytes) -> None:
        self._done.authenticated(self._identity, "")


class LinkIdentity(Identity):
    """Another broker that has proved itself. It has no permissions: its link needs none."""

    def __init__(
        self, links: LinkTable, hello: Hello, told: Hello, peer: Peer, protection: Protection
    ) -> None:
        super().__init__(hello.name, KIND_CLUSTER, (), AccessEpoch())
        self._links = links
        self._hello = hello
        self._told = told
        self._address = f"{peer.address}:{peer.port}"
        self._is_local = peer.loopback
        self._protection = protection

    def adopt(self, connection: MarkedConnection) -> bool:
        assert isinstance(connection, Connection), "a link begins as a connection of this broker"
        link = self._links.admit(
            self._hello, self._told, self._address, self._protection, self._is_local
        )
        connection.send(0, ConnectionOpenOk(""))
        for chunk in connection.outbox.take():
            link.urgent.put(chunk)
        port = connection.port
        hand_over(connection)
        self._links.adopter.adopted(link, port)
        self._links.admitted(link)
        link.touch()
        return True
