"""Handshake: from the protocol header to connection.open-ok."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from rhizome.amqp.methods import (
    ConnectionClose,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionRedirect,
    ConnectionSecure,
    ConnectionSecureOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    Method,
)
from rhizome.amqp.spec import FRAME_MIN_SIZE
from rhizome.broker.access.application_cluster_token import Shown, take_shown
from rhizome.broker.access.auth_interface import AuthDone, ChallengeAnswer, Identity
from rhizome.broker.connection.connection import Connection, OpeningHandshake
from rhizome.broker.connection.connection_states import (
    AUTHENTICATING,
    CLOSED,
    CLOSING,
    OPENING,
    RUNNING,
    STARTING,
    TUNING,
)
from rhizome.broker.connection.session_resume import resume_id, visit_of
from rhizome.errors import CommandInvalid, LoginRefused, NotAllowed

if TYPE_CHECKING:
    from rhizome.broker.broker_context import BrokerContext
    from rhizome.broker.metadata.vhost import VHost

FRAME_MAX_UNLIMITED: Final = 1 << 31
CHANNEL_MAX_UNLIMITED: Final = 65535

# Clients assert or branch on RabbitMQ's product and version; our own stand beside them.
COMPATIBLE_PRODUCT: Final = "RabbitMQ"

CAPABILITIES: Final = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
    "accept_consumer_cancel_ok",
    "session.resume",
    "confirm.level",
    "queue.leases",
)


@final
class Handshake(OpeningHandshake):
    """The part of a connection's life before it runs; dropped once it does."""

    broker: BrokerContext
    mechanism: str
    login: Login | None
    shown: Shown

    def __init__(self, broker: BrokerContext) -> None:
        self.broker = broker
        self.mechanism = ""
        self.login = None
        self.shown = Shown()

    def start(self, connection: Connection) -> None:
        """The protocol header was right: send connection.start."""
        capabilities: dict[str, object] = dict.fromkeys(CAPABILITIES, True)
        properties: dict[str, object] = {
            "capabilities": capabilities,
            "cluster_name": self.broker.cluster_name(),
            "copyright": "Copyright (c) the Rhizome authors",
            "information": "Licensed under the Apache License 2.0",
            "platform": "Python",
            "product": COMPATIBLE_PRODUCT,
            "version": self.broker.settings.compatible_version,
            "rhizome": self.broker.settings.version,
            "broker": self.broker.settings.name,
        }
        mechanisms = self.broker.authenticator.mechanisms(connection.peer.tls).encode()
        connection.send(0, ConnectionStart(0, 9, properties, mechanisms, b"en_US"))
        connection.stage = STARTING

    def handle(self, connection: Connection, method: Method) -> None:
        """A method on channel 0 before the connection runs."""
        if isinstance(method, ConnectionStartOk) and connection.stage == STARTING:
            self._start_ok(connection, method)
        elif isinstance(method, ConnectionSecureOk) and connection.stage == AUTHENTICATING:
            self._secure_ok(connection, method)
        elif isinstance(method, ConnectionTuneOk) and connection.stage == TUNING:
            self._tune_ok(connection, method)
        elif isinstance(method, ConnectionOpen) and connection.stage == OPENING:
            self._open(connection, method)
        else:
            code = method.code()
            raise CommandInvalid(
                f"unexpected {method.name()} during the handshake", code >> 16, code & 0xFFFF
            )

    def _start_ok(self, connection: Connection, method: ConnectionStartOk) -> None:
        self.shown = take_shown(method.client_properties)
        connection.client_properties = method.client_properties
        capabilities = method.client_properties.get("capabilities")
        if isinstance(capabilities, dict):
            connection.cancel_notify = capabilities.get("consumer_cancel_notify") is True
            connection.blocked_notify = capabilities.get("connection.blocked") is True
        self.mechanism = method.mechanism
        connection.stage = AUTHENTICATING
        login = Login(self, connection)
        self.login = login
        self.broker.authenticator.begin(method.mechanism, method.response, connection.peer, login)
        login.wait()

    def _secure_ok(self, connection: Connection, method: ConnectionSecureOk) -> None:
        login = self.login
        assert login is not None
        answer = login.answer
        assert answer is not None, "input waits while the client isn't asked anything"
        login.answer = None
        answer.answered(method.response)
        login.wait()

    def authenticated(self, connection: Connection, identity: Identity) -> None:
        limits = self.broker.limits
        connection.identity = identity
        self.broker.revocation.watch(connection)
        connection.stage = TUNING
        connection.send(0, ConnectionTune(limits.channel_max, limits.frame_max, limits.heartbeat_s))

    def refused(self, connection: Connection, reason: str) -> None:
        """Tell the client as little as RabbitMQ does, and the log everything."""
        self.broker.login_refused(connection, reason)
        capabilities = connection.client_properties.get("capabilities")
        wants_close = (
            isinstance(capabilities, dict)
            and capabilities.get("authentication_failure_close") is True
        )
        if wants_close:
            error = LoginRefused(
                f"Login was refused using authentication mechanism {self.mechanism}. "
                "For details see the broker logfile."
            )
            connection.send(0, ConnectionClose(error.code, error.reply_text(), 0, 0))
            connection.stage = CLOSING
        else:
            connection.stop()

    def _tune_ok(self, connection: Connection, method: ConnectionTuneOk) -> None:
        limits = self.broker.limits
        channel_max = _negotiated("channel_max", method.channel_max, limits.channel_max)
        frame_max = _negotiated("frame_max", method.frame_max, limits.frame_max)
        if 0 < frame_max < FRAME_MIN_SIZE:
            raise NotAllowed(
                f"negotiated frame_max = {frame_max} is lower than the minimum allowed value "
                f"({FRAME_MIN_SIZE})",
                10,
                31,
            )
        connection.channel_max = channel_max if channel_max > 0 else CHANNEL_MAX_UNLIMITED
        connection.frame_max = frame_max if frame_max > 0 else FRAME_MAX_UNLIMITED
        connection.heartbeat_s = method.heartbeat
        connection.stage = OPENING

    def _open(self, connection: Connection, method: ConnectionOpen) -> None:
        if connection.identity.adopt(connection):
            return
        name = method.virtual_host
        vhost = self.broker.state.vhosts.get(name)
        if vhost is None:
            raise NotAllowed(f"vhost {name} not found", 10, 40)
        if not connection.identity.may_enter(name):
            raise NotAllowed(
                f"access to vhost '{name}' refused for user '{connection.identity.user}'", 10, 40
            )
        self.broker.limits.check_connection(connection, name)
        cluster = self.broker.cluster
        tokens = cluster.application_tokens()
        if tokens.discloses_key(self.shown):
            self.broker.observer.key_disclosed(connection)
        tokens.check(self.broker.settings.cluster_name, self.shown)
        connection.resume_id = resume_id(connection.identity.user, connection.client_properties)
        connection.visit = visit_of(connection.client_properties)
        elsewhere = cluster.destination(connection)
        if elsewhere:
            connection.send(0, ConnectionRedirect(elsewhere, cluster.known_hosts()))
            connection.stage = CLOSING
            return
        enter(connection, vhost)
        self.broker.sessions.opened(connection)
        connection.send(0, ConnectionOpenOk(cluster.known_hosts()))
        self.broker.connection_opened(connection)


def enter(connection: Connection, vhost: VHost) -> None:
    """The client has opened a vhost: the connection runs."""
    connection.vhost = vhost
    connection.router = vhost.router
    connection.routes = vhost.routes
    connection.stage = RUNNING
    connection.handshake = None


def hand_over(connection: Connection) -> None:
    """Hand the socket over to a link; the connection itself sends nothing more."""
    connection.stop()
    connection.handshake = None
    connection.broker.connections.pop(connection.id, None)
    connection.broker.revocation.forget(connection)


def _negotiated(what: str, asked: int, offered: int) -> int:
    """The value both sides keep to: a client may lower ours, not raise it; 0 means no limit."""
    if offered > 0 and (asked == 0 or asked > offered):
        detail = " (no limit)" if asked == 0 else ""
        raise NotAllowed(
            f"negotiated {what} = {asked}{detail} is higher than the maximum allowed value "
            f"({offered})",
            10,
            31,
        )
    return asked


class Login(AuthDone):
    """A login in progress; its password may be being verified in another thread."""

    handshake: Handshake
    connection: Connection
    answer: ChallengeAnswer | None
    late: bool

    def __init__(self, handshake: Handshake, connection: Connection) -> None:
        self.handshake = handshake
        self.connection = connection
        self.answer = None
        self.late = False

    def wait(self) -> None:
        """Take no input from the client until there is an answer, unless a challenge asks it for
        one."""
        if self.connection.stage == AUTHENTICATING and self.answer is None:
            self.late = True
            self.connection.suspend()

    def challenge(self, challenge: bytes, answer: ChallengeAnswer) -> None:
        connection = self.connection
        if connection.stage == CLOSED:
            return
        self.answer = answer
        connection.send(0, ConnectionSecure(challenge))
        self._go_on()

    def authenticated(self, identity: Identity | None, reason: str) -> None:
        connection = self.connection
        if connection.stage == CLOSED:
            return
        if identity is None:
            self.handshake.refused(connection, reason)
        else:
            self.handshake.authenticated(connection, identity)
        self._go_on()

    def _go_on(self) -> None:
        if self.late:
            self.late = False
            self.connection.resume()
