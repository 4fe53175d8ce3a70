"""Several issuers: whose keys count for whose tokens, and what stays when settings change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rhizome.broker.access.auth_interface import AccessEpoch
from rhizome.security.jwks_cache import UNKNOWN_KEY_MS, FetchTimes, IssuerKeys
from rhizome.security.jwt_verifier import TokenError
from rhizome.security.token_keys import TokenKeyError, published_keys
from rhizome.security.token_login import TokenAuthenticator
from rhizome.security.token_provider import Grant, ProviderSettings, check_provider_files
from tests.unit.security.token_issuer import Issuer

NOW = 1_800_000_000.0
A, B = "https://a.example", "https://b.example/realm"
EVERYTHING = "mq.read:*/* mq.tag:administrator"


def at_url(name: str, issuer: str, **settings: Any) -> ProviderSettings:
    made = {"resource_server": "mq", "name": name, "issuer": issuer}
    return ProviderSettings(**{**made, **settings})


class World:
    """Issuers a and b, who call their keys alike, and a broker that has fetched both."""

    def __init__(self, a: Issuer, b: Issuer) -> None:
        self.a, self.b = a, b
        self.now_ms = 1_000_000
        self.settings = [at_url("a", A), at_url("b", B)]
        self.bearers = TokenAuthenticator(self.settings, lambda: NOW, lambda: self.now_ms)
        for name, issuer in (("a", a), ("b", b)):
            self.publish(name, issuer)

    def issuer(self, name: str) -> IssuerKeys:
        (found,) = [each for each in self.bearers.issuers() if each.name == name]
        return found

    def publish(self, name: str, issuer: Issuer, **names: str) -> None:
        keys = [issuer.public_key(kid, names.get(kid, kid)) for kid in ("rsa", "ec")]
        fetched = self.issuer(name)
        fetched.begun()
        fetched.fetched(published_keys({"keys": keys}))

    def configure(self, *settings: ProviderSettings) -> None:
        self.bearers.adopt(self.bearers.prepare(settings))

    def grant(
        self, signer: Issuer, kid: str = "rsa", header: dict[str, Any] | None = None, **claims: Any
    ) -> Grant:
        made = {"iss": A, "sub": "alice", "aud": "mq", "exp": NOW + 600, "scope": EVERYTHING}
        made = {name: value for name, value in {**made, **claims}.items() if value is not None}
        return self.bearers.grant(signer.token(kid, header, **made))

    def refusal(self, signer: Issuer, kid: str = "rsa", **claims: Any) -> str:
        with pytest.raises(TokenError) as refused:
            self.grant(signer, kid, **claims)
        return str(refused.value)


@pytest.fixture(scope="module")
def issuers() -> tuple[Issuer, Issuer]:
    return Issuer(), Issuer()


@pytest.fixture
def world(issuers: tuple[Issuer, Issuer]) -> World:
    return World(*issuers)


# ---- whose keys count


def test_each_issuer_signs_for_itself(world: World) -> None:
    for kid in ("rsa", "ec"):
        assert world.grant(world.a, kid).user == "alice"
        assert world.grant(world.b, kid, iss=B).user == "alice"


@pytest.mark.parametrize("kid", ["rsa", "ec"])
@pytest.mark.parametrize("header", [None, {"kid": None}])
def test_no_issuer_signs_for_another_one(
    world: World, kid: str, header: dict[str, Any] | None
) -> None:
    """Both call their keys alike, so the name of a key tells nothing."""
    for signer, claimed in ((world.b, A), (world.a, B)):
        assert "signature is wrong" in world.refusal(signer, kid, header=header, iss=claimed)


@pytest.mark.parametrize("claimed", ["https://c.example", A + "/", A.upper(), None, 5, [A], ""])
def test_a_token_of_nobody_that_is_configured_is_refused(world: World, claimed: Any) -> None:
    assert "of another issuer" in world.refusal(world.a, iss=claimed)


def test_a_key_of_another_issuer_by_its_own_name_is_unknown(world: World) -> None:
    world.publish("b", world.b, rsa="of-b")
    with pytest.raises(TokenError, match="no key fits"):
        world.grant(world.b, header={"kid": "of-b"}, iss=A)
    assert world.grant(world.b, header={"kid": "of-b"}, iss=B)


def test_no_fetched_key_verifies_a_token_without_signature(world: World) -> None:
    for algorithm in ("none", "HS256", "RS512"):
        with pytest.raises(TokenError, match="no key fits"):
            world.grant(world.a, header={"alg": algorithm})


def test_issuers_may_have_audiences_of_their_own(world: World) -> None:
    world.configure(at_url("a", A), at_url("b", B, resource_server="broker"))
    scope = "broker.read:*/*"
    grant = world.grant(world.b, iss=B, aud="broker", scope=scope)
    assert grant.scopes.allow("read", "/", "q")
    assert "for somebody else" in world.refusal(world.b, iss=B, aud="mq")
    assert "for somebody else" in world.refusal(world.a, iss=A, aud="broker")
    assert not world.grant(world.a, scope=scope).scopes.scopes


def test_scopes_of_an_issuer_may_be_aliases(world: World) -> None:
    aliases = {"Broker Admin": ("mq.tag:administrator",), "reader": ("mq.read:v/*", "other:x")}
    world.configure(at_url("a", A, scope_aliases=aliases, scope_claims=("scope", "roles")))
    grant = world.grant(world.a, scope="reader mq.write:v/q", roles=["Broker Admin", "reader "])
    assert grant.scopes.tags == ("administrator",)
    assert grant.scopes.allow("read", "v", "x")
    assert grant.scopes.allow("write", "v", "q")
    assert not grant.scopes.allow("read", "w", "x")
    world.configure(at_url("a", A))
    assert world.grant(world.a, scope="reader").scopes.scopes == ()


def test_scopes_may_be_in_objects(world: World) -> None:
    claims = ("resource_access.mq.roles", "https://a.example/scopes", "sub.x", "no.such.claim", "")
    world.configure(at_url("a", A, scope_claims=claims))
    namespaced = {"https://a.example/scopes": "mq.write:v/q", "https://a": {"example/scopes": "x"}}
    roles = {"mq": {"roles": ["mq.read:v/q"]}, "other": {"roles": ["mq.tag:administrator"]}}
    grant = world.grant(world.a, resource_access=roles, **namespaced)
    assert grant.scopes.allow("read", "v", "q")
    assert grant.scopes.allow("write", "v", "q")
    assert grant.scopes.tags == ()
    for odd in (None, 5, [roles], {"mq": 5}, {"mq": ["roles"]}, "mq.read:*/*"):
        assert world.grant(world.a, resource_access=odd).scopes.scopes == ()


# ---- keys that come and go


def test_an_unknown_key_is_refused_at_once_and_fetched_soon(world: World) -> None:
    rotated = Issuer()
    world.now_ms += UNKNOWN_KEY_MS
    with pytest.raises(TokenError, match="no key fits"):
        world.grant(rotated, header={"kid": "new"})
    assert world.issuer("a").wants_fetch()
    assert not world.issuer("b").wants_fetch(), "the other one has nothing to do with it"
    world.publish("a", rotated, rsa="new")
    assert world.grant(rotated, header={"kid": "new"}).user == "alice"
    assert "no key fits" in world.refusal(world.a), "the old key is gone from the set"


@pytest.mark.parametrize(
    ("claims", "is_fetched"),
    [
        ({"header": {"kid": None}}, True),
        ({}, False),
        ({"iss": "https://c.example"}, False),
    ],
    ids=["no kid", "known kid", "unknown issuer"],
)
def test_what_has_keys_fetched(world: World, claims: dict[str, Any], is_fetched: bool) -> None:
    """A token that names no key may be of a new one. One of a known key with a wrong signature is
    forged."""
    world.now_ms += UNKNOWN_KEY_MS
    world.refusal(Issuer(), **claims)
    assert [each.wants_fetch() for each in world.bearers.issuers()] == [is_fetched, False]


def test_without_keys_every_token_is_refused(world: World) -> None:
    world.configure(at_url("c", "https://c.example"))
    assert "no key fits" in world.refusal(world.a, iss="https://c.example")


def test_keys_that_are_too_old_count_no_more(world: World) -> None:
    world.configure(at_url("a", A, times=FetchTimes(10_000, 60_000)))
    world.now_ms += 59_999
    assert world.grant(world.a)
    world.now_ms += 1
    assert "no key fits" in world.refusal(world.a)


# ---- other settings


def test_fetched_keys_stay_when_settings_are_read_again(world: World) -> None:
    world.configure(at_url("a", A, user_claims=("name",)), at_url("b", B))
    assert world.grant(world.a, name="anna").user == "anna"
    assert world.issuer("a").wants_fetch(), "and are fetched anew"


def test_fetched_keys_stay_when_their_provider_gets_another_name(world: World) -> None:
    world.configure(at_url("staff", A), at_url("b", B))
    assert world.grant(world.a)
    assert [each.name for each in world.bearers.issuers()] == ["staff", "b"]


@pytest.mark.parametrize("changes", [{"jwks_url": "https://a.example/keys"}, {"ca": "/ca.pem"}])
def test_keys_from_elsewhere_do_not_stay(world: World, changes: dict[str, str]) -> None:
    world.configure(at_url("a", A, **changes))
    assert "no key fits" in world.refusal(world.a)


def test_an_issuer_that_is_no_longer_configured_lets_nobody_in(world: World) -> None:
    world.configure(at_url("b", B))
    assert "of another issuer" in world.refusal(world.a)
    world.configure()
    assert "of another issuer" in world.refusal(world.b, iss=B)


def test_settings_that_can_not_be_used_change_nothing(world: World, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pem")
    with pytest.raises(TokenKeyError, match=r"missing\.pem"):
        world.bearers.prepare([at_url("b", B), at_url("a", A, keys=(missing,))])
    assert world.grant(world.a)
    assert not world.issuer("a").wants_fetch()


def test_open_connections_renew_by_the_newest_settings(world: World) -> None:
    identity = world.bearers.identity(world.grant(world.a), AccessEpoch())
    rotated = Issuer()
    world.publish("a", rotated)
    made = {"iss": A, "sub": "alice", "aud": "mq", "exp": NOW + 6000, "scope": EVERYTHING}
    assert "signature is wrong" in identity.renew(world.a.token(**made))
    assert identity.renew(rotated.token(**made)) == ""
    world.configure(at_url("b", B))
    assert "of another issuer" in identity.renew(rotated.token(**made))


def test_a_user_of_one_issuer_is_not_renewed_by_another_one(world: World) -> None:
    identity = world.bearers.identity(world.grant(world.a), AccessEpoch())
    made = {"iss": B, "sub": "alice", "aud": "mq", "exp": NOW + 6000, "scope": EVERYTHING}
    assert identity.renew(world.b.token(**made)) == "the new token is of another issuer"


# ---- files


def test_files_are_looked_at_before_a_start(world: World, tmp_path: Path) -> None:
    check_provider_files([at_url("a", A), at_url("b", B, keys=(world.b.write_pem(tmp_path),))])
    with pytest.raises(TokenKeyError, match=r"missing\.json"):
        check_provider_files([at_url("b", B, keys=(str(tmp_path / "missing.json"),))])
    for name in ("missing.pem", "empty.pem"):
        (tmp_path / "empty.pem").write_text("nothing")
        with pytest.raises(TokenKeyError, match=rf"the ca of issuer 'a', .*{name}"):
            check_provider_files([at_url("a", A, ca=str(tmp_path / name))])
