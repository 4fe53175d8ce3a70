"""Access tokens: which are good, and every way in which they are not."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rhizome.broker.access.auth_interface import AccessEpoch, AuthDone, Identity, Peer
from rhizome.security.jwt_verifier import (
    TokenError,
    TokenRules,
    looks_like_token,
    parse_token,
    verify_token,
)
from rhizome.security.login_service import LoginService
from rhizome.security.oauth_scopes import matches, parse_scopes
from rhizome.security.sasl_mechanisms import Credentials
from rhizome.security.token_keys import TokenKey, TokenKeyError, read_keys
from rhizome.security.token_login import (
    TokenAuthenticator,
    TokenExpiries,
    TokenIdentity,
    identity_of_passport,
)
from rhizome.security.token_provider import ProviderSettings
from tests.unit.security.token_issuer import Issuer, encoded

NOW = 1_800_000_000.0
GOOD: dict[str, Any] = {
    "iss": "https://issuer.example",
    "sub": "alice",
    "aud": ["other", "rhizome"],
    "exp": NOW + 600,
    "scope": "rhizome.read:*/* rhizome.tag:monitoring",
}
RULES = TokenRules("rhizome", "https://issuer.example", 30.0)


class Verifier:
    """Verifies tokens with some keys, by some rules."""

    def __init__(self, keys: Sequence[TokenKey], rules: TokenRules) -> None:
        self._keys = keys
        self._rules = rules

    def verify(self, token: bytes, now_s: float) -> Mapping[str, Any]:
        return verify_token(parse_token(token), self._keys, self._rules, now_s)


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture(scope="module")
def keys(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> str:
    return issuer.write_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def verifier(keys: str) -> Verifier:
    return Verifier(read_keys([keys]), RULES)


def claims(**changes: Any) -> dict[str, Any]:
    made = {**GOOD, **changes}
    return {name: value for name, value in made.items() if value is not None}


# ---- signatures


@pytest.mark.parametrize("kid", ["rsa", "ec", "oct"])
def test_a_good_token_of_each_algorithm_is_taken(
    issuer: Issuer, verifier: Verifier, kid: str
) -> None:
    assert verifier.verify(issuer.token(kid, **GOOD), NOW)["sub"] == "alice"
    unnamed = issuer.token(kid, {"kid": None}, **GOOD)
    assert verifier.verify(unnamed, NOW)["sub"] == "alice"


@pytest.mark.parametrize("kid", ["rsa", "ec", "oct"])
def test_a_bit_anywhere_breaks_it(issuer: Issuer, verifier: Verifier, kid: str) -> None:
    token = issuer.token(kid, **GOOD)
    for at in range(0, len(token), 7):
        other = b"A" if token[at : at + 1] != b"A" else b"B"
        with pytest.raises(TokenError):
            verifier.verify(token[:at] + other + token[at + 1 :], NOW)


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "", None, 5, ["RS256"]])
def test_a_token_without_a_signature_is_refused(
    issuer: Issuer, verifier: Verifier, algorithm: Any
) -> None:
    head = {"typ": "JWT", "alg": algorithm}
    parts = b".".join(encoded(json.dumps(part).encode()) for part in (head, GOOD))
    for signature in (b"", encoded(b"x")):
        with pytest.raises(TokenError, match="no key fits"):
            verifier.verify(parts + b"." + signature, NOW)


@pytest.mark.parametrize("kid", ["rsa", None])
def test_a_public_key_is_no_shared_secret(issuer: Issuer, tmp_path: Path, kid: str | None) -> None:
    """The classic: HMAC with the text of the public key, which everybody has."""
    verifier = Verifier(read_keys([issuer.write_pem(tmp_path)]), RULES)
    head = {"alg": "HS256", **({"kid": kid} if kid else {})}
    signed = b".".join(encoded(json.dumps(part).encode()) for part in (head, GOOD))
    forged = hmac.new(issuer.rsa_pem(), signed, hashlib.sha256).digest()
    with pytest.raises(TokenError, match="no key fits"):
        verifier.verify(signed + b"." + encoded(forged), NOW)


def test_a_key_is_used_for_its_own_algorithm_only(issuer: Issuer, verifier: Verifier) -> None:
    for kid, other in (("rsa", "ES256"), ("ec", "HS256"), ("oct", "RS256"), ("rsa", "RS512")):
        with pytest.raises(TokenError, match="no key fits"):
            verifier.verify(issuer.token(kid, {"alg": other}, **GOOD), NOW)
    with pytest.raises(TokenError, match="no key fits"):
        verifier.verify(issuer.token("rsa", {"kid": "somebody"}, **GOOD), NOW)


def test_keys_in_the_token_itself_count_nothing(issuer: Issuer, verifier: Verifier) -> None:
    stranger = Issuer()
    for header in ({"jwk": {"kty": "oct", "k": "AAAA"}}, {"jku": "https://evil.example/keys"}):
        with pytest.raises(TokenError, match="signature"):
            verifier.verify(stranger.token("rsa", header, **GOOD), NOW)


def test_a_header_that_demands_extensions_is_refused(issuer: Issuer, verifier: Verifier) -> None:
    with pytest.raises(TokenError, match="extensions"):
        verifier.verify(issuer.token("rsa", {"crit": ["b64"], "b64": False}, **GOOD), NOW)


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"..",
        b"a.b",
        b"a.b.c.d",
        b"eyJ=.eyJ9.AAAA",
        b"eyJ9 .eyJ9.AAAA",
        b"e30.e30.",
        encoded(b"[]") + b".e30.AAAA",
        encoded(b"[" * 5000) + b".e30.AAAA",
        b"x" * 20_000,
    ],
)
def test_what_is_no_token_is_refused(verifier: Verifier, token: bytes) -> None:
    with pytest.raises(TokenError):
        verifier.verify(token, NOW)


# ---- claims


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"exp": NOW - 31}, "expired"),
        ({"exp": None}, "no time exp"),
        ({"exp": "9999999999"}, "no time exp"),
        ({"exp": True}, "no time exp"),
        ({"exp": float("inf")}, "no time"),
        ({"exp": float("nan")}, "no time"),
        ({"exp": 10**400}, "no time"),
        ({"nbf": NOW + 31}, "not valid yet"),
        ({"nbf": "soon"}, "no time nbf"),
        ({"aud": None}, "somebody else"),
        ({"aud": "rhizome-2"}, "somebody else"),
        ({"aud": ["other"]}, "somebody else"),
        ({"aud": {"rhizome": 1}}, "somebody else"),
        ({"iss": None}, "another issuer"),
        ({"iss": "https://evil.example"}, "another issuer"),
    ],
)
def test_claims_that_are_wrong_are_refused(
    issuer: Issuer, verifier: Verifier, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(TokenError, match=reason):
        verifier.verify(issuer.token(**claims(**changes)), NOW)


def test_clocks_may_differ_a_little(issuer: Issuer, verifier: Verifier) -> None:
    for changes in ({"exp": NOW - 29}, {"nbf": NOW + 29}, {"aud": "rhizome"}):
        assert verifier.verify(issuer.token(**claims(**changes)), NOW)


# ---- keys


@pytest.mark.parametrize(
    "text",
    [
        "nothing",
        "{}",
        '{"keys": []}',
        '{"keys": [{"kty": "oct", "k": "c2hvcnQ"}]}',
        '{"keys": [{"kty": "oct", "alg": "RS256", "k": "' + "A" * 60 + '"}]}',
        '{"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "AAAA"}]}',
        '{"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB"}]}',
        '{"keys": [{"kty": "EC", "crv": "P-256", "x": "AAAA", "y": "AAAA"}]}',
        '{"keys": 5}',
        "[1]",
        "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
    ],
)
def test_files_without_a_usable_key_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(text)
    with pytest.raises(TokenKeyError) as refused:
        read_keys([str(path)])
    assert "AAAA" not in str(refused.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenKeyError, match=r"missing\.pem"):
        read_keys([str(tmp_path / "missing.pem")])


# ---- scopes


@pytest.mark.parametrize(
    ("scope", "operation", "vhost", "name", "allowed"),
    [
        ("read:*/*", "read", "/", "q", True),
        ("read:*/*", "write", "/", "q", False),
        ("read:%2F/*", "read", "/", "q", True),
        ("read:%2F/*", "read", "v", "q", False),
        ("read:v/orders-*", "read", "v", "orders-1", True),
        ("read:v/orders-*", "read", "v", "order", False),
        ("read:v/*-in", "read", "v", "a-b-in", True),
        ("read:v/*-in", "read", "v", "a-in-b", False),
        ("read:v/a*b*c", "read", "v", "a--b--c", True),
        ("read:v/a.c", "read", "v", "abc", False),
        ("read:v/%2a", "read", "v", "*", True),
        ("read:v/%2A", "read", "v", "x", False),
        ("read:v/q/key", "read", "v", "q", True),
        ("read:v/", "read", "v", "", True),
        ("read:v/", "read", "v", "q", False),
        ("read:v", "read", "v", "q", False),
        ("read:v/q/k/more", "read", "v", "q", False),
        ("delete:v/q", "configure", "v", "q", False),
        ("Read:v/q", "read", "v", "q", False),
        ("configure:v/q", "configure", "v", "q", True),
        ("write:v/amq.default", "write", "v", "amq.default", True),
    ],
)
def test_scopes_allow_what_they_say(
    scope: str, operation: str, vhost: str, name: str, allowed: bool
) -> None:
    scopes = parse_scopes([f"rhizome.{scope}"], "rhizome.")
    assert scopes.allow(operation, vhost, name) is allowed


def test_scopes_of_others_count_nothing() -> None:
    words = ["read:*/*", "other.read:*/*", "rhizomeread:*/*", "rhizome.tag:", "rhizome.", ""]
    scopes = parse_scopes(words, "rhizome.")
    assert scopes == parse_scopes([], "rhizome.")
    assert not scopes.enter("/")


def test_routing_keys_are_matched_in_the_third_part() -> None:
    scopes = parse_scopes(["r.write:v/x/mine.*", "r.read:v/*"], "r.")
    assert scopes.has_keys()
    assert scopes.allow_key("write", "v", "x", "mine.a")
    assert not scopes.allow_key("write", "v", "x", "other.a")
    assert scopes.allow_key("read", "v", "x", "other.a")
    assert not parse_scopes(["r.read:v/*"], "r.").has_keys()


def test_patterns_cannot_take_for_ever() -> None:
    assert not matches("*a" * 100 + "b", "a" * 255)
    assert matches("*a" * 100 + "*", "a" * 255)
    assert matches("*" * 1000, "x" * 255)


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("*", "", True),
        ("a*", "a", True),
        ("*a*", "bab", True),
        ("a*b*a", "aba", True),
        ("a*b*a", "aa", False),
        ("ab*ba", "aba", False),
        ("", "", True),
        ("", "a", False),
    ],
)
def test_stars_stand_for_any_characters(pattern: str, text: str, fits: bool) -> None:
    assert matches(pattern, text) is fits


# ---- logging in


class Done(AuthDone):
    def __init__(self) -> None:
        super().__init__()
        self.answers: list[tuple[Identity | None, str]] = []

    def authenticated(self, identity: Identity | None, reason: str) -> None:
        self.answers.append((identity, reason))


class Records:
    users: ClassVar[dict[str, Any]] = {}
    permissions: ClassVar[dict[tuple[str, str], Any]] = {}
    topic_permissions: ClassVar[dict[tuple[str, str, str], Any]] = {}


class World:
    def __init__(self, keys: str, **settings: Any) -> None:
        self.now = NOW
        made = ProviderSettings("rhizome", (keys,), **settings)
        self.bearers = TokenAuthenticator([made], lambda: self.now)
        self.login = LoginService(Records(), AccessEpoch(), clock_ms=lambda: 0)
        self.login.bearers = self.bearers

    def log_in(
        self,
        token: bytes,
        user: str = "whoever",
        address: str = "10.0.0.1",
        bearer: bool = False,
    ) -> tuple[Identity | None, str]:
        done = Done()
        credentials = Credentials(user, token, bearer) if bearer else Credentials(user, token)
        self.login.check(credentials, Peer(address, 1), done)
        (answer,) = done.answers
        return answer


@pytest.fixture
def world(keys: str) -> World:
    return World(keys)


def identity(world: World, token: bytes) -> TokenIdentity:
    found, reason = world.log_in(token)
    assert isinstance(found, TokenIdentity), reason
    return found


def test_who_somebody_is_and_what_they_may_do_is_in_the_token(world: World, issuer: Issuer) -> None:
    bearer = identity(world, issuer.token(**GOOD))
    assert (bearer.user, bearer.kind, bearer.tags) == ("alice", "application", ("monitoring",))
    assert bearer.may_enter("/")
    assert bearer.may_read("/", "q")
    assert not bearer.may_write("/", "q")


@pytest.mark.parametrize(
    ("changes", "user"),
    [
        ({}, "alice"),
        ({"sub": None, "client_id": "app"}, "app"),
        ({"sub": 5, "client_id": "app"}, "app"),
    ],
)
def test_the_user_is_named_by_claims_in_order(
    world: World, issuer: Issuer, changes: dict[str, Any], user: str
) -> None:
    assert identity(world, issuer.token(**claims(**changes))).user == user


@pytest.mark.parametrize("changes", [{"sub": None}, {"sub": 5}, {"sub": ""}])
def test_a_token_that_names_nobody_is_refused_whatever_name_comes_with_it(
    world: World, issuer: Issuer, changes: dict[str, Any]
) -> None:
    found, reason = world.log_in(issuer.token(**claims(**changes)), user="boss")
    assert found is None
    assert "lacks the claim 'sub' or 'client_id'" in reason
    bearer = identity(world, issuer.token(**GOOD))
    assert "lacks the claim" in bearer.renew(issuer.token(**claims(**changes)))


@pytest.mark.parametrize("name", ["\ud800", "alice\udfff", "x" * 256])
def test_a_token_that_names_what_is_no_name_is_refused(
    world: World, issuer: Issuer, name: str
) -> None:
    found, reason = world.log_in(issuer.token(**claims(sub=name)), user="boss")
    assert found is None
    assert "the token names a user with" in reason


def test_a_bearer_has_the_name_in_its_token_and_no_other(world: World, issuer: Issuer) -> None:
    found, _ = world.log_in(issuer.token(**GOOD), user="boss")
    assert found is not None
    assert found.user == "alice"


def test_bad_bearers_hold_up_nobody_at_another_address(world: World, issuer: Issuer) -> None:
    bad = issuer.token(**claims(aud="x"))
    for _ in range(20):
        world.log_in(bad, user="", address="10.0.0.6")
    good = issuer.token(**GOOD)
    assert world.log_in(good, user="", address="10.0.0.6")[0] is None
    assert world.log_in(good, user="", address="10.0.0.7")[0] is not None
    assert world.log_in(bad, user="", address="10.0.0.7")[0] is None


def test_a_bearer_that_is_no_token_counts_for_its_address_alone(world: World) -> None:
    for _ in range(20):
        world.log_in(b"garbage", user="", address="10.0.0.6", bearer=True)
    reason = world.log_in(b"garbage", user="", address="10.0.0.6", bearer=True)[1]
    assert "refused unseen" in reason
    reason = world.log_in(b"garbage", user="", address="10.0.0.7", bearer=True)[1]
    assert "refused unseen" not in reason


def test_scopes_may_be_a_list_and_under_other_claims(keys: str, issuer: Issuer) -> None:
    world = World(keys, scope_claims=("scope", "roles"), scope_prefix="mq:")
    token = issuer.token(**claims(scope=["mq:read:*/a", 5], roles="mq:write:*/b"))
    bearer = identity(world, token)
    assert bearer.may_read("/", "a")
    assert bearer.may_write("/", "b")
    assert not bearer.may_write("/", "a")


def test_an_expired_token_permits_nothing_more(world: World, issuer: Issuer) -> None:
    bearer = identity(world, issuer.token(**GOOD))
    assert bearer.may_read("/", "q")
    world.now = NOW + 631
    assert bearer.has_expired()
    assert not bearer.may_enter("/")
    assert not bearer.may_read("/", "another"), "and the connection is about to be closed"
    assert world.log_in(issuer.token(**GOOD))[0] is None


def test_a_newer_token_renews_and_narrows(world: World, issuer: Issuer) -> None:
    bearer = identity(world, issuer.token(**GOOD))
    assert bearer.may_read("/", "q")
    newer = claims(exp=NOW + 6000, scope="rhizome.write:*/*")
    assert bearer.renew(issuer.token("ec", **newer)) == ""
    world.now = NOW + 631
    assert not bearer.has_expired()
    assert not bearer.may_read("/", "q"), "answers of the older token are forgotten"
    assert bearer.may_write("/", "q")
    assert bearer.tags == ()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"sub": "bob"}, "another user"), ({"exp": NOW - 60}, "expired"), ({"aud": "x"}, "else")],
)
def test_a_newer_token_that_is_wrong_changes_nothing(
    world: World, issuer: Issuer, changes: dict[str, Any], reason: str
) -> None:
    bearer = identity(world, issuer.token(**GOOD))
    assert reason in bearer.renew(issuer.token(**claims(**changes)))
    assert bearer.may_read("/", "q")


def test_guessing_at_tokens_is_throttled(world: World, issuer: Issuer) -> None:
    token = issuer.token(**claims(aud="x"))
    reasons = [world.log_in(token)[1] for _ in range(20)]
    assert "refused unseen" in reasons[-1]
    assert world.log_in(issuer.token(**GOOD), user="other", address="10.0.0.2")[0] is not None


def test_a_user_of_loopback_stays_there_with_a_token(world: World, issuer: Issuer) -> None:
    found, reason = world.log_in(issuer.token(**claims(sub="guest")))
    assert found is None
    assert "loopback" in reason


def test_without_tokens_a_token_is_a_password(issuer: Issuer) -> None:
    login = LoginService(Records(), AccessEpoch())
    done = Done()
    login.check(Credentials("alice", issuer.token(**GOOD)), Peer("10.0.0.1", 1), done)
    assert done.answers[0][0] is None
    assert not login.takes_tokens


def test_reasons_have_nothing_of_the_token(world: World, issuer: Issuer) -> None:
    token = issuer.token(**claims(iss="secret-issuer", aud="secret-audience"))
    _, reason = world.log_in(token)
    for part in (*token.decode().split("."), "secret"):
        assert part not in reason


def test_what_looks_like_a_token() -> None:
    assert looks_like_token(b"eyJhbGciOiJub25lIn0.e30.")
    for password in (b"", b"guest", b"a.b.c", b"eyJ.b", b"eyJ.b.c.d"):
        assert not looks_like_token(password)


def test_other_brokers_are_told_what_it_permits(world: World, issuer: Issuer) -> None:
    scope = "rhizome.read:v/q/key rhizome.tag:management"
    bearer = identity(world, issuer.token(**claims(exp=4e9, scope=scope)))
    there = identity_of_passport(bearer.passport(), AccessEpoch())
    assert (there.user, there.tags) == ("alice", ("management",))
    assert there.grant == bearer.grant
    assert there.renew(b"x"), "only who can read tokens takes a newer one"


def test_only_connections_of_bearers_expire(world: World, issuer: Issuer) -> None:
    class Connected:
        def __init__(self, number: int, who: Identity) -> None:
            self.id = number
            self.identity = who

    expiries = TokenExpiries()
    bearer = Connected(1, identity(world, issuer.token(**GOOD)))
    other = Connected(2, Identity("app", "application", (), AccessEpoch()))
    for each in (bearer, other):
        expiries.opened(each)  # type: ignore[arg-type]
    assert expiries.expired() == []
    world.now = NOW + 631
    assert expiries.expired() == [bearer]
    expiries.closed(bearer)  # type: ignore[arg-type]
    assert expiries.expired() == []
