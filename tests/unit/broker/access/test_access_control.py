"""Identities remember answers, but never too long and never too many."""

from __future__ import annotations

from rhizome.broker.access import auth_interface
from rhizome.broker.access.auth_interface import (
    AccessEpoch,
    AuthDone,
    Identity,
    OpenAuthenticator,
    OpenIdentity,
    Peer,
)


class Scripted(Identity):
    """Permits what it is told to, and writes down what it is asked."""

    def __init__(self, epoch: AccessEpoch) -> None:
        super().__init__("app", auth_interface.KIND_APPLICATION, (), epoch)
        self.permitted: set[str] = set()
        self.rules = False
        self.asked: list[tuple[str, ...]] = []

    def decide(self, operation: str, vhost: str, name: str) -> bool:
        self.asked.append((operation, vhost, name))
        return name in self.permitted

    def decide_topic(self, operation: str, vhost: str, exchange: str, key: str) -> bool:
        self.asked.append((operation, vhost, exchange, key))
        return key in self.permitted

    def decide_enter(self, vhost: str) -> bool:
        return vhost in self.permitted

    def decide_topic_rules(self, vhost: str) -> bool:
        return self.rules


class Outcome(AuthDone):
    def __init__(self) -> None:
        self.identities: list[Identity | None] = []

    def authenticated(self, identity: Identity | None, reason: str) -> None:
        self.identities.append(identity)


def test_an_answer_is_asked_for_once() -> None:
    identity = Scripted(AccessEpoch())
    identity.permitted = {"q"}
    assert [identity.may_read("/", "q") for _ in range(3)] == [True, True, True]
    assert [identity.may_read("/", "r") for _ in range(3)] == [False, False, False]
    assert identity.asked == [("read", "/", "q"), ("read", "/", "r")]


def test_operations_are_asked_for_apart() -> None:
    identity = Scripted(AccessEpoch())
    identity.may_configure("/", "q")
    identity.may_write("/", "q")
    identity.may_read("/", "q")
    assert [asked[0] for asked in identity.asked] == ["configure", "write", "read"]


def test_default_exchange_is_asked_for_under_its_alias() -> None:
    identity = Scripted(AccessEpoch())
    identity.permitted = {"amq.default"}
    assert identity.may_write("/", "")
    assert identity.asked == [("write", "/", "amq.default")]


def test_revoked_permission_is_gone_at_the_next_check() -> None:
    epoch = AccessEpoch()
    identity = Scripted(epoch)
    identity.permitted = {"q"}
    assert identity.may_write("/", "q")
    identity.permitted = set()
    assert identity.may_write("/", "q"), "cached until the epoch says otherwise"
    epoch.advance()
    assert not identity.may_write("/", "q")


def test_invalidate_forgets_all_answers() -> None:
    identity = Scripted(AccessEpoch())
    assert not identity.may_read("/", "q")
    identity.permitted = {"q"}
    identity.invalidate()
    assert identity.may_read("/", "q")


def test_answers_of_one_vhost_do_not_count_in_another() -> None:
    identity = Scripted(AccessEpoch())
    identity.may_read("/", "q")
    identity.may_read("/other", "q")
    assert identity.asked == [("read", "/", "q"), ("read", "/other", "q")]


def test_cache_stays_bounded_whatever_names_are_tried() -> None:
    identity = Scripted(AccessEpoch())
    identity.permitted = {"last"}
    for number in range(auth_interface.ANSWERS_MAX):
        identity.may_write("/", f"q{number}")
    identity.may_write("/", "last")
    identity.asked.clear()
    assert identity.may_write("/", "last")
    assert not identity.asked, "the newest answer is kept"
    identity.may_write("/", "q0")
    assert identity.asked == [("write", "/", "q0")], "the oldest made room"


def test_without_topic_rules_keys_are_not_asked_about() -> None:
    identity = Scripted(AccessEpoch())
    assert not identity.has_topic_rules("/")
    assert identity.may_write_topic("/", "amq.topic", "any.key")
    assert identity.may_read_topic("/", "amq.topic", "any.key")
    assert not identity.asked


def test_topic_rules_are_asked_once_per_exchange_and_key() -> None:
    epoch = AccessEpoch()
    identity = Scripted(epoch)
    identity.rules = True
    identity.permitted = {"good"}
    for _ in range(2):
        assert identity.may_write_topic("/", "t", "good")
        assert not identity.may_write_topic("/", "t", "bad")
        assert not identity.may_read_topic("/", "u", "bad")
    assert len(identity.asked) == 3
    identity.rules = False
    epoch.advance()
    assert identity.may_write_topic("/", "t", "bad")


def test_open_identity_may_do_everything() -> None:
    identity = OpenIdentity()
    assert identity.may_enter("/any")
    assert identity.may_configure("/", "q")
    assert identity.may_write("/", "")
    assert identity.may_read("/", "q")
    assert identity.may_write_topic("/", "t", "k")


def test_open_authenticator_lets_everybody_in() -> None:
    done = Outcome()
    OpenAuthenticator("dev").begin("PLAIN", b"", Peer("127.0.0.1", 1), done)
    assert [identity.user for identity in done.identities if identity] == ["dev"]
