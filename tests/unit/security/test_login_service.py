"""From a client's response to an identity, or to a refusal that tells it nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from rhizome.broker.access.auth_interface import AccessEpoch, AuthDone, Identity, Peer
from rhizome.security.login_service import JOINED_MAX, LoginService, LoginSettings
from rhizome.security.login_throttle import ThrottleSettings
from rhizome.security.password_check_queue import AT_ONCE_MAX, STRANGERS_WAITING_MAX
from rhizome.security.password_hashes import ScryptCost, hash_password
from rhizome.security.sasl_mechanisms import Credentials

LOCAL = Peer("127.0.0.1", 4000, loopback=True)
REMOTE = Peer("10.0.0.1", 4000)
CERTIFIED = Peer("10.0.0.1", 4000, False, True, "CN=app,O=Example", "app")
CHEAP = ScryptCost(cost_log2=4, block_size=1, parallel=1)


@dataclass(frozen=True)
class User:
    password_hash: str
    kind: str = "application"
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Permission:
    configure: str = ".*"
    write: str = ".*"
    read: str = ".*"


@dataclass
class Records:
    users: dict[str, User] = field(default_factory=dict)
    permissions: dict[tuple[str, str], Permission] = field(default_factory=dict)
    topic_permissions: dict[tuple[str, str, str], Permission] = field(default_factory=dict)


class Outcome(AuthDone):
    """Expects to be called exactly once."""

    def __init__(self) -> None:
        self.calls: list[tuple[Identity | None, str]] = []

    def authenticated(self, identity: Identity | None, reason: str) -> None:
        self.calls.append((identity, reason))

    @property
    def identity(self) -> Identity | None:
        assert len(self.calls) == 1, self.calls
        return self.calls[0][0]

    @property
    def reason(self) -> str:
        assert self.identity is None
        return self.calls[0][1]


class Later:
    """Holds verifications until the test runs them, as a thread would."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], bool], Callable[[bool], None]]] = []

    def __call__(self, work: Callable[[], bool], done: Callable[[bool], None]) -> None:
        self.jobs.append((work, done))

    def run(self) -> None:
        while self.jobs:
            work, done = self.jobs.pop(0)
            done(work())

    def answer_wrong(self) -> None:
        while self.jobs:
            _, done = self.jobs.pop(0)
            done(False)


class Clock:
    now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


def records() -> Records:
    return Records(
        {
            "guest": User(hash_password(b"guest", cost=CHEAP), tags=("administrator",)),
            "app": User(hash_password(b"right", cost=CHEAP)),
            "eve": User(hash_password(b"right", cost=CHEAP), kind="console"),
            "link": User(hash_password(b"right", cost=CHEAP), kind="cluster"),
            "certified": User(""),
        },
        {("guest", "/"): Permission(), ("app", "/"): Permission(read="^q")},
    )


def plain(
    service: LoginService, user: str, password: str, peer: Peer = LOCAL, mechanism: str = "PLAIN"
) -> Outcome:
    done = Outcome()
    service.begin(mechanism, f"\0{user}\0{password}".encode(), peer, done)
    return done


def test_right_password_gives_the_users_identity() -> None:
    identity = plain(LoginService(records(), AccessEpoch()), "guest", "guest").identity
    assert identity is not None
    assert (identity.user, identity.kind, identity.tags) == (
        "guest",
        "application",
        ("administrator",),
    )
    assert identity.may_configure("/", "q")


def test_identity_has_the_users_permissions() -> None:
    identity = plain(LoginService(records(), AccessEpoch()), "app", "right").identity
    assert identity is not None
    assert identity.may_read("/", "q1")
    assert not identity.may_read("/", "other")


@pytest.mark.parametrize(
    ("user", "password", "peer", "reason"),
    [
        ("app", "wrong", LOCAL, "password is wrong"),
        ("app", "", LOCAL, "password is wrong"),
        ("nobody", "right", LOCAL, "no such user"),
        ("certified", "right", LOCAL, "has no password"),
        ("guest", "guest", REMOTE, "loopback"),
        ("eve", "right", LOCAL, "console"),
        ("link", "right", LOCAL, "cluster"),
    ],
)
def test_login_is_refused_with_the_reason_for_the_log(
    user: str, password: str, peer: Peer, reason: str
) -> None:
    done = plain(LoginService(records(), AccessEpoch()), user, password, peer)
    assert reason in done.reason
    assert repr(user) in done.reason
    assert peer.address in done.reason


def test_unknown_mechanism_and_garbage_are_refused_logins() -> None:
    service = LoginService(records(), AccessEpoch())
    assert "SCRAM" in plain(service, "guest", "guest", mechanism="SCRAM").reason
    done = Outcome()
    service.begin("AMQPLAIN", b"\xff\xff", LOCAL, done)
    assert "AMQPLAIN" in done.reason


def test_guest_may_come_from_anywhere_if_configured() -> None:
    service = LoginService(records(), AccessEpoch(), LoginSettings(loopback_users=frozenset()))
    assert plain(service, "guest", "guest", REMOTE).identity is not None


def test_a_loopback_user_has_no_loopback_address_where_no_broker_is() -> None:
    """Else everybody on an application's host could be guest in the whole cluster."""
    service = LoginService(records(), AccessEpoch(), LoginSettings(is_away=True))
    assert "this edge is not" in plain(service, "guest", "guest", LOCAL).reason
    assert "password is wrong" in plain(service, "guest", "wrong", LOCAL).reason
    assert plain(service, "app", "right", LOCAL).identity is not None


def test_other_listeners_admit_other_kinds() -> None:
    service = LoginService(records(), AccessEpoch())
    done = Outcome()
    service.check(Credentials("eve", b"right"), REMOTE, done, frozenset({"console"}))
    assert done.identity is not None
    refused = Outcome()
    service.check(Credentials("app", b"right"), REMOTE, refused, frozenset({"console"}))
    assert "only console" in refused.reason


def test_second_login_costs_no_verification() -> None:
    later = Later()
    service = LoginService(records(), AccessEpoch(), verify_async=later)
    first = plain(service, "app", "right")
    assert not first.calls
    later.run()
    assert first.identity is not None
    assert plain(service, "app", "right").identity is not None
    assert service.statistics.verifications == 1


def test_equal_logins_at_once_share_one_verification() -> None:
    later = Later()
    service = LoginService(records(), AccessEpoch(), verify_async=later)
    outcomes = [plain(service, "app", "right") for _ in range(100)]
    assert len(later.jobs) == 1
    later.run()
    assert all(done.identity is not None for done in outcomes)


def test_unknown_user_costs_a_verification_too() -> None:
    later = Later()
    service = LoginService(records(), AccessEpoch(), verify_async=later)
    done = plain(service, "nobody", "x")
    assert len(later.jobs) == 1
    assert not done.calls
    later.run()
    assert done.identity is None


def test_changed_password_counts_at_once() -> None:
    data = records()
    service = LoginService(data, AccessEpoch())
    assert plain(service, "app", "right").identity is not None
    data.users["app"] = User(hash_password(b"new", cost=CHEAP))
    assert "wrong" in plain(service, "app", "right").reason
    assert plain(service, "app", "new").identity is not None


def test_password_changed_during_verification_is_wrong() -> None:
    data, later = records(), Later()
    service = LoginService(data, AccessEpoch(), verify_async=later)
    done = plain(service, "app", "right")
    data.users["app"] = User(hash_password(b"new", cost=CHEAP))
    later.run()
    assert done.identity is None


def test_user_deleted_during_verification_is_refused() -> None:
    data, later = records(), Later()
    service = LoginService(data, AccessEpoch(), verify_async=later)
    done = plain(service, "app", "right")
    del data.users["app"]
    later.run()
    assert "no such user" in done.reason


def test_verifications_under_way_are_bounded() -> None:
    later = Later()
    service = LoginService(records(), AccessEpoch(), verify_async=later)
    for number in range(AT_ONCE_MAX + STRANGERS_WAITING_MAX):
        assert not plain(service, f"user{number}", "x").calls
    assert len(later.jobs) == AT_ONCE_MAX, "the others wait for these"
    assert "too many logins" in plain(service, "app", "right").reason
    later.answer_wrong()
    done = plain(service, "app", "right")
    later.run()
    assert done.identity is not None


def test_known_users_have_room_and_go_first_when_strangers_fill_the_queue() -> None:
    later = Later()
    service = LoginService(records(), AccessEpoch(), verify_async=later)
    service.known.add("app", REMOTE.address)
    strangers = [plain(service, f"user{number}", "x") for number in range(STRANGERS_WAITING_MAX)]
    done = plain(service, "app", "right", REMOTE)
    for _ in range(AT_ONCE_MAX + 1):
        work, finished = later.jobs.pop(0)
        finished(work())
    assert done.identity is not None, "right after those that were under way"
    assert sum(1 for stranger in strangers if not stranger.calls) > 50


def test_logins_that_wait_for_an_equal_one_are_bounded() -> None:
    later = Later()
    service = LoginService(records(), AccessEpoch(), verify_async=later)
    outcomes = [plain(service, "app", "right") for _ in range(JOINED_MAX + 1)]
    assert not any(done.calls for done in outcomes)
    assert "too many logins" in plain(service, "app", "right").reason
    later.run()
    assert all(done.identity is not None for done in outcomes)
    assert len(later.jobs) == 0
    assert plain(service, "app", "right").identity is not None, "and are counted off again"


def test_throttled_attempt_is_refused_unseen_even_if_right() -> None:
    clock = Clock()
    settings = LoginSettings(throttle=ThrottleSettings(free_failures=3, delay_ms=1000))
    service = LoginService(records(), AccessEpoch(), settings, clock_ms=clock)
    for number in range(4):
        plain(service, "app", f"wrong{number}", REMOTE)
    verifications = service.statistics.verifications
    assert "too many failed logins" in plain(service, "app", "right", REMOTE).reason
    assert service.statistics.verifications == verifications
    assert service.statistics.throttled == 1
    clock.now_ms = 1000
    assert plain(service, "app", "right", REMOTE).identity is not None


def test_external_is_offered_on_tls_when_enabled() -> None:
    service = LoginService(records(), AccessEpoch(), LoginSettings(external=True))
    assert service.mechanisms(tls=False) == "AMQPLAIN PLAIN"
    assert service.mechanisms(tls=True) == "AMQPLAIN PLAIN EXTERNAL"
    assert LoginService(records(), AccessEpoch()).mechanisms(tls=True) == "AMQPLAIN PLAIN"


def test_certificate_logs_in_without_a_password() -> None:
    service = LoginService(records(), AccessEpoch(), LoginSettings(external=True))
    identity = plain(service, "", "", CERTIFIED, "EXTERNAL").identity
    assert identity is not None
    assert identity.user == "app"


@pytest.mark.parametrize("user", ["nobody", "eve"])
def test_certificate_of_no_application_user_is_refused(user: str) -> None:
    service = LoginService(records(), AccessEpoch(), LoginSettings(external=True))
    peer = Peer("10.0.0.1", 4000, False, True, f"CN={user}", user)
    assert plain(service, "", "", peer, "EXTERNAL").identity is None


def test_external_is_refused_when_it_is_not_enabled() -> None:
    service = LoginService(records(), AccessEpoch())
    assert "EXTERNAL" in plain(service, "", "", CERTIFIED, "EXTERNAL").reason
