"""Accepting links on the broker's connections: who gets in as what."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from rhizome.amqp.frames import frame_end, method_frame
from rhizome.amqp.methods import (
    ConnectionClose,
    ConnectionOpen,
    ConnectionSecure,
    ConnectionSecureOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    Method,
    decode_method,
)
from rhizome.broker.access.auth_interface import AccessEpoch, Peer
from rhizome.broker.connection.connection_states import CLOSED
from rhizome.cluster.link.accept_handshake import LinkAuthenticator
from rhizome.cluster.link.cluster_key_proof import MECHANISM, Dialler, LinkKeys
from rhizome.cluster.link.death_certificate import (
    DEATH_MECHANISM,
    DeathCertificate,
    certify,
)
from rhizome.security.login_service import LoginService
from rhizome.security.password_hashes import ScryptCost, hash_password
from tests.unit.cluster.link.linked_brokers import KEY, SETTINGS, Broker, End, World, make_hello

PROPERTIES: dict[str, object] = {"capabilities": {"authentication_failure_close": True}}


class Records:
    """Users of each kind, all with the password "secret"."""

    def __init__(self) -> None:
        secret = hash_password(b"secret", cost=ScryptCost(1, 1, 1))
        kinds = ("application", "console", "cluster")
        self.users = {kind: User(secret, kind) for kind in kinds}
        self.permissions: dict[tuple[str, str], object] = {}
        self.topic_permissions: dict[tuple[str, str, str], object] = {}


class User:
    """A user of some kind."""

    def __init__(self, password_hash: str, kind: str) -> None:
        self.password_hash = password_hash
        self.kind = kind
        self.tags: tuple[str, ...] = ()


class Stranger:
    """The far end of a connection to a broker, frame by frame."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.end = End(broker, None, None)  # type: ignore[arg-type]
        broker.accept(self.end)
        self.say_bytes(b"AMQP\x00\x00\x09\x01")
        assert isinstance(self.hear(), ConnectionStart)

    def say_bytes(self, data: bytes) -> None:
        self.end.receive(data)
        self.broker.turn()

    def say(self, *methods: Method) -> None:
        self.say_bytes(b"".join(method_frame(0, method) for method in methods))

    def hear(self) -> Method | None:
        """The next method; None at the end of the stream."""
        data = self.end.sent.pop(0)
        if data is None:
            return None
        end = int(frame_end(data, 0))
        if end < len(data):
            self.end.sent.insert(0, data[end:])
        return decode_method(data[7 : end - 1])


@pytest.fixture
def broker() -> Broker:
    return World().start(make_hello("b1"))


def dialler(key: bytes = KEY) -> Dialler:
    return Dialler(LinkKeys(key), make_hello("b2"), Random(7))


def logged_in(broker: Broker) -> Stranger:
    """A broker that has proved itself and has not opened the connection yet."""
    stranger = Stranger(broker)
    proving = dialler()
    stranger.say(ConnectionStartOk(PROPERTIES, MECHANISM, proving.first()))
    for step in (proving.prove, proving.verify):
        challenge = stranger.hear()
        assert isinstance(challenge, ConnectionSecure)
        answer = step(challenge.challenge)
        stranger.say(ConnectionSecureOk(answer if isinstance(answer, bytes) else b""))
    tune = stranger.hear()
    assert isinstance(tune, ConnectionTune)
    stranger.say(ConnectionTuneOk(tune.channel_max, tune.frame_max, 0))
    return stranger


def test_the_mechanism_is_offered_beside_those_of_applications(broker: Broker) -> None:
    assert broker.core.authenticator.mechanisms(False) == f"AMQPLAIN PLAIN {MECHANISM}"


def test_whoever_guesses_is_refused_and_told_nothing(broker: Broker) -> None:
    stranger = Stranger(broker)
    guessing = dialler(b"perhaps this is the key?")
    stranger.say(ConnectionStartOk(PROPERTIES, MECHANISM, guessing.first()))
    challenge = stranger.hear()
    assert isinstance(challenge, ConnectionSecure)
    stranger.say(ConnectionSecureOk(guessing.prove(challenge.challenge)))
    close = stranger.hear()
    assert isinstance(close, ConnectionClose)
    assert close.reply_code == 403
    assert "key" not in close.reply_text.replace("keys", "")


def test_garbage_in_either_round_is_refused(broker: Broker) -> None:
    for first in (b"garbage", dialler().first()):
        stranger = Stranger(broker)
        stranger.say(ConnectionStartOk(PROPERTIES, MECHANISM, first))
        answer = stranger.hear()
        if isinstance(answer, ConnectionSecure):
            stranger.say(ConnectionSecureOk(b"garbage"))
            answer = stranger.hear()
        assert isinstance(answer, ConnectionClose)
        assert answer.reply_code == 403


def test_rounds_may_come_in_one_read_and_still_prove_nothing(broker: Broker) -> None:
    stranger = Stranger(broker)
    stranger.say(
        ConnectionStartOk({}, MECHANISM, dialler().first()),
        ConnectionSecureOk(b""),
        ConnectionSecureOk(b""),
        ConnectionTuneOk(0, 0, 0),
        ConnectionOpen("/"),
    )
    assert broker.links.open_links() == []
    assert broker.core.connections == {} or all(
        connection.stage == CLOSED for connection in broker.core.connections.values()
    )


def test_an_unasked_secure_ok_ends_the_connection(broker: Broker) -> None:
    stranger = Stranger(broker)
    stranger.say(ConnectionSecureOk(b""))
    close = stranger.hear()
    assert isinstance(close, ConnectionClose)
    assert close.reply_code == 503


def test_a_proved_broker_becomes_a_link_and_leaves_the_brokers_connections(
    broker: Broker,
) -> None:
    stranger = logged_in(broker)
    assert len(broker.core.connections) == 1
    stranger.say(ConnectionOpen("/"))
    assert broker.linked() == ["b2"]
    assert broker.core.connections == {}


def test_a_proved_broker_may_enter_no_vhost(broker: Broker) -> None:
    logged_in(broker)
    (connection,) = broker.core.connections.values()
    identity = connection.identity
    assert (identity.user, identity.kind) == ("b2", "cluster")
    assert not identity.may_enter("/")
    assert not identity.may_configure("/", "q")
    assert not identity.may_write("/", "")
    assert not identity.may_read("/", "q")


@pytest.mark.parametrize("mechanism", ["PLAIN", MECHANISM])
def test_no_user_gets_a_link_by_a_password(broker: Broker, mechanism: str) -> None:
    records = Records()
    broker.core.authenticator = LinkAuthenticator(
        broker.links, LoginService(records, AccessEpoch())
    )
    for user in records.users:
        stranger = Stranger(broker)
        stranger.say(
            ConnectionStartOk(PROPERTIES, mechanism, f"\0{user}\0secret".encode()),
        )
        answer = stranger.hear()
        if mechanism == "PLAIN" and user == "application":
            assert isinstance(answer, ConnectionTune)
            stranger.say(ConnectionTuneOk(0, 131072, 0), ConnectionOpen("/"))
            answer = stranger.hear()
        assert isinstance(answer, ConnectionClose)
        assert broker.links.open_links() == []


def shown(broker: Broker, key: bytes) -> tuple[Stranger, Method | None]:
    """Somebody who shows a certificate of death in place of a login, and the answer."""
    stranger = Stranger(broker)
    certificate = DeathCertificate("b2", "b" * 32, "ab12", "a test")
    payload = certify(LinkKeys(key), certificate)
    stranger.say(ConnectionStartOk(PROPERTIES, DEATH_MECHANISM, payload))
    return stranger, stranger.hear()


def test_a_certificate_of_death_is_taken_and_opens_nothing(broker: Broker) -> None:
    stranger, answer = shown(broker, KEY)
    assert isinstance(answer, ConnectionSecure)
    stranger.say(ConnectionSecureOk(b""))
    assert isinstance(stranger.hear(), ConnectionClose)
    assert broker.links.open_links() == []


def test_a_certificate_under_another_key_is_refused(broker: Broker) -> None:
    _, answer = shown(broker, b"perhaps this is the key?")
    assert isinstance(answer, ConnectionClose)
    assert answer.reply_code == 403


def test_a_link_that_comes_over_tls_needs_a_verified_certificate() -> None:
    broker = World().start(make_hello("b1"), settings=replace(SETTINGS, needs_certificate=True))
    for subject, got in (("", ConnectionClose), ("CN=b2", ConnectionSecure)):
        stranger = Stranger(broker)
        connection = stranger.end.connection
        assert connection is not None
        connection.peer = Peer("127.0.0.1", 1, tls=True, certificate_subject=subject)
        stranger.say(ConnectionStartOk(PROPERTIES, MECHANISM, dialler().first()))
        assert isinstance(stranger.hear(), got)
