"""What strangers try with logins: to guess, to keep applications out, to learn who exists."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rhizome.broker.access.auth_interface import AccessEpoch, AuthDone, Identity, Peer
from rhizome.security.login_service import LoginService, LoginSettings
from rhizome.security.password_hashes import (
    ScryptCost,
    hash_password,
    import_rabbitmq_hash,
    needs_rehash,
    verify_password,
)
from rhizome.security.sasl_mechanisms import Credentials
from rhizome.security.token_login import TokenAuthenticator
from rhizome.security.token_provider import ProviderSettings
from tests.unit.security.token_issuer import Issuer

COST = ScryptCost(cost_log2=5, block_size=2, parallel=3)
WORK = 2**5 * 2 * 3
CHEAPER = ScryptCost(cost_log2=5, block_size=2, parallel=1)
HOME = "10.0.0.1"
NOW_S = 1_800_000_000.0


@dataclass(frozen=True)
class User:
    password_hash: str
    kind: str = "application"
    tags: tuple[str, ...] = ()


@dataclass
class Records:
    users: dict[str, User]
    permissions: dict[tuple[str, str], Any] = field(default_factory=dict)
    topic_permissions: dict[tuple[str, str, str], Any] = field(default_factory=dict)


def imported(password: bytes, algorithm: str = "sha256") -> str:
    encoded = b"salt" + hashlib.new(algorithm, b"salt" + password).digest()
    return import_rabbitmq_hash(
        base64.b64encode(encoded).decode(), f"rabbit_password_hashing_{algorithm}"
    )


class Outcome(AuthDone):
    def __init__(self) -> None:
        super().__init__()
        self.identity: Identity | None = None
        self.reason = ""

    def authenticated(self, identity: Identity | None, reason: str) -> None:
        self.identity, self.reason = identity, reason


class World:
    """A login service, and a clock that tests set."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.records = Records(
            {
                "app": User(hash_password(b"right", cost=COST)),
                "imported": User(imported(b"right")),
                "imported512": User(imported(b"right", "sha512")),
                "cheaper": User(hash_password(b"right", cost=CHEAPER)),
                "certified": User(""),
            }
        )
        self.service = self.restarted()

    def restarted(self) -> LoginService:
        settings = LoginSettings(password_cost=COST, external=True)
        return LoginService(self.records, AccessEpoch(), settings, clock_ms=lambda: self.now_ms)

    def log_in(self, user: str, password: bytes | None, address: str = HOME) -> Outcome:
        done = Outcome()
        peer = Peer(address, 1, loopback=address.startswith("127."))
        self.service.check(Credentials(user, password), peer, done)
        return done

    def is_examined(self, user: str, password: bytes, address: str) -> bool:
        return "refused unseen" not in self.log_in(user, password, address).reason

    def guess(self, user: str, times: int, address: str) -> int:
        """So many guesses at once; how many were examined."""
        guesses = [f"guess {self.now_ms} {number}".encode() for number in range(times)]
        return sum(self.is_examined(user, guess, address) for guess in guesses)


# ---- keeping applications out


def test_the_right_password_from_a_new_address_gets_through_while_strangers_guess() -> None:
    world = World()
    for second in range(60):
        world.now_ms = second * 1000
        world.guess("app", 10, "10.6.6.6")
    assert world.log_in("app", b"right", "10.0.0.2").identity is not None


def test_addresses_that_are_new_as_well_share_one_examination_a_second() -> None:
    world = World()
    world.guess("app", 30, "10.6.6.6")
    examined = 0
    for second in range(10):
        world.now_ms += 1000
        for number in range(20):
            examined += world.is_examined("app", b"guess", f"10.7.{second}.{number}")
    assert 0 < examined <= 10 + 10, "one a second, and what the wait lets through"
    assert world.guess("app", 10, "10.7.0.0") == 0, "who has failed has no part in it"


def test_the_right_password_gets_through_at_the_very_address_where_somebody_guesses() -> None:
    world, chance = World(), Random(7)
    world.guess("app", 40, "127.0.0.1")
    let_in, examined = 0, 0
    begun_ms = world.now_ms
    for _ in range(660):  # ten guesses to each login
        world.now_ms += chance.randrange(200)
        if chance.randrange(11) == 0:
            let_in += world.log_in("app", b"right", "127.0.0.1").identity is not None
        else:
            examined += world.guess("app", 1, "127.0.0.1")
    assert let_in >= 10
    took_ms = world.now_ms - begun_ms
    assert examined <= took_ms / 200 + 11 * let_in, "and guessing there is bounded"


def test_a_certificate_is_not_held_up_by_guesses_at_a_password() -> None:
    world = World()
    world.guess("certified", 40, "10.6.6.6")
    assert world.log_in("certified", None).identity is not None


def test_an_application_that_comes_with_many_connections_at_once_is_let_in_with_all() -> None:
    world = World()
    waiting: list[tuple[Callable[[], bool], Callable[[bool], None]]] = []
    world.guess("app", 40, "10.6.6.6")
    settings = LoginSettings(password_cost=COST)
    service = LoginService(
        world.records,
        AccessEpoch(),
        settings,
        verify_async=lambda work, done: waiting.append((work, done)),
        clock_ms=lambda: world.now_ms,
    )
    world.service = service
    for _ in range(40):
        world.guess("app", 1, "10.6.6.6")
    outcomes = [world.log_in("app", b"right", "10.0.0.2") for _ in range(50)]
    while waiting:
        work, done = waiting.pop(0)
        done(work())
    assert all(outcome.identity is not None for outcome in outcomes)


def test_ipv6_addresses_of_one_network_count_as_one() -> None:
    world = World()
    examined = sum(
        world.is_examined(f"user{number}", b"guess", f"2001:db8:0:1::{number:x}")
        for number in range(1, 100)
    )
    assert examined < 15
    assert world.is_examined("app", b"guess", "2001:db8:0:2::1")


def test_ipv4_addresses_count_as_themselves_however_they_are_written() -> None:
    world = World()
    world.guess("app", 40, "::ffff:10.6.6.6")
    assert not world.is_examined("other", b"x", "10.6.6.6")
    assert world.is_examined("other", b"x", "::ffff:10.6.6.7")


# ---- tokens


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


def with_tokens(world: World, issuer: Issuer, directory: Path) -> Callable[..., bytes]:
    settings = ProviderSettings("mq", (issuer.write_keys(directory),))
    world.service.bearers = TokenAuthenticator([settings], lambda: NOW_S)

    def token(**claims: Any) -> bytes:
        made = {"sub": "eve", "aud": "mq", "exp": NOW_S + 600, "scope": ""}
        return issuer.token(**{**made, **claims})

    return token


@pytest.mark.parametrize("address", ["127.0.0.1", "10.6.6.6"])
def test_a_token_does_not_clear_the_count_of_the_user_whose_name_comes_with_it(
    issuer: Issuer, tmp_path: Path, address: str
) -> None:
    world = World()
    token = with_tokens(world, issuer, tmp_path)()
    examined = 0
    for number in range(60):
        if number % 9 == 0:
            assert world.log_in("app", token, address).identity is not None
        examined += world.is_examined("app", f"guess {number}".encode(), address)
    assert examined <= 12


def test_a_token_does_not_make_its_address_one_where_a_user_is_known(
    issuer: Issuer, tmp_path: Path
) -> None:
    world = World()
    token = with_tokens(world, issuer, tmp_path)(sub="app")
    assert world.log_in("app", token, "10.6.6.6").identity is not None
    world.guess("app", 40, "10.6.6.6")
    assert not world.is_examined("other", b"x", "10.6.6.6"), "the address is counted"


# ---- who exists


def scrypt_work(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What scrypt is asked to do from now on, in blocks that it mixes."""
    done: list[int] = []
    scrypt = hashlib.scrypt

    def counted(password: bytes, *, n: int, r: int, p: int, **others: Any) -> bytes:
        done.append(n * r * p)
        return scrypt(password, n=n, r=r, p=p, **others)

    monkeypatch.setattr(hashlib, "scrypt", counted)
    return done


def test_a_wrong_password_costs_the_same_whoever_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    done = scrypt_work(monkeypatch)
    costs = {}
    for user in ("app", "imported", "imported512", "cheaper", "certified", "nobody"):
        done.clear()
        assert world.log_in(user, b"wrong").identity is None
        costs[user] = sum(done)
    assert costs == dict.fromkeys(costs, WORK)


def test_what_can_be_no_password_costs_nothing_whoever_is_meant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    done = scrypt_work(monkeypatch)
    for user in ("app", "imported", "nobody"):
        assert world.log_in(user, b"").identity is None
    assert done == []


# ---- hashes that are cheaper than new ones


class Upgrades:
    """Replaces hashes in the records, as the broker does."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.made: list[tuple[str, str, str]] = []
        world.service.upgrade = self

    def __call__(self, user: str, before: str, after: str) -> None:
        self.made.append((user, before, after))
        self.world.records.users[user] = User(after)


@pytest.mark.parametrize("user", ["imported", "imported512", "cheaper"])
def test_a_cheap_hash_is_replaced_once_when_its_password_is_proved(user: str) -> None:
    world = World()
    upgrades = Upgrades(world)
    before = world.records.users[user].password_hash
    assert world.log_in(user, b"wrong").identity is None
    assert upgrades.made == []
    for _ in range(3):
        assert world.log_in(user, b"right").identity is not None
    ((who, old, new),) = upgrades.made
    assert (who, old) == (user, before)
    assert verify_password(new, b"right")
    assert not verify_password(new, b"wrong")
    assert not needs_rehash(new, COST)


def test_a_hash_that_is_good_enough_stays() -> None:
    world = World()
    upgrades = Upgrades(world)
    assert world.log_in("app", b"right").identity is not None
    dearer = ScryptCost(cost_log2=6, block_size=2, parallel=3)
    world.records.users["app"] = User(hash_password(b"right", cost=dearer))
    assert world.log_in("app", b"right").identity is not None
    assert upgrades.made == []


def test_who_is_logged_in_stays_so_when_its_hash_is_replaced_and_not_when_its_password_is() -> None:
    world = World()
    Upgrades(world)
    identity = world.log_in("imported", b"right").identity
    assert identity is not None
    assert identity.revoked() == ""
    world.records.users["imported"] = User(imported(b"right"))
    assert identity.revoked() == "", "a definitions file has brought the old one back"
    world.records.users["imported"] = User(hash_password(b"right", cost=COST))
    assert "password of user 'imported' was changed" in identity.revoked()
    del world.records.users["imported"]
    assert "deleted" in identity.revoked()


def test_a_hash_that_is_replaced_while_a_password_is_verified_makes_it_no_wrong_one() -> None:
    world = World()
    waiting: list[tuple[Callable[[], bool], Callable[[bool], None]]] = []
    here = LoginService(
        world.records,
        AccessEpoch(),
        LoginSettings(password_cost=COST),
        verify_async=lambda work, done: waiting.append((work, done)),
    )
    outcome = Outcome()
    here.check(Credentials("imported", b"right"), Peer(HOME, 1), outcome)
    Upgrades(world)
    assert world.log_in("imported", b"right").identity is not None, "at another broker, say"
    ((work, done),) = waiting
    done(work())
    assert outcome.identity is not None
