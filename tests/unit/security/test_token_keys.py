"""Sets of keys that issuers publish: which of them count."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from rhizome.security.token_keys import KEYS_MAX, TokenKeyError, published_keys
from tests.unit.security.token_issuer import Issuer, encoded


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


def rsa_key(bits: int, **changes: Any) -> dict[str, Any]:
    """Of so many bits; nobody has the other half of it."""
    modulus = (1 << (bits - 1)) + 1
    size = (bits + 7) // 8
    n = encoded(modulus.to_bytes(size, "big")).decode()
    return {"kty": "RSA", "kid": "k", "n": n, "e": "AQAB", **changes}


def test_a_set_is_used_without_what_can_not_be_used(issuer: Issuer) -> None:
    good = [issuer.public_key("rsa"), issuer.public_key("ec")]
    others: list[Any] = [
        issuer.shared_key(),
        {**issuer.public_key("rsa"), "d": "AQAB"},
        rsa_key(2047),
        rsa_key(1024),
        rsa_key(16_385),
        rsa_key(2048, alg="none"),
        rsa_key(2048, alg="HS256"),
        rsa_key(2048, alg="RS1"),
        rsa_key(2048, alg=["RS256"]),
        rsa_key(2048, kid=5),
        rsa_key(2048, kid="k" * 257),
        rsa_key(2048, e="AA"),
        {**issuer.public_key("ec"), "alg": "RS256"},
        {**issuer.public_key("ec"), "crv": "P-384"},
        {**issuer.public_key("ec"), "y": "AAAA"},
        {"kty": "OKP", "crv": "Ed25519", "x": "AAAA"},
        {"kty": "RSA"},
        {},
        5,
        None,
        ["kty"],
    ]
    found = published_keys({"keys": [*others, *good]})
    assert [(key.name, key.algorithm) for key in found.keys] == [("rsa", "RS256"), ("ec", "ES256")]
    assert len(found.left_out) == len(others)


@pytest.mark.parametrize(
    ("jwk", "reason"),
    [
        ({"kty": "oct", "kid": "s", "k": "A" * 86}, "key 1 (kid 's'): it is a shared secret"),
        ({"kty": "RSA", "d": "A", "n": "A", "e": "A"}, "(without a kid): it has its private part"),
        (rsa_key(1024), "an RSA key has 2048 to 16384 bits, not 1024"),
        ({"kty": "EC", "crv": "P-256", "x": "AAAA"}, "it lacks 'y'"),
        ({"kty": "EC", "crv": "secp256k1", "x": "AAAA"}, "the curve secp256k1 is not supported"),
        ({"kty": "OKP"}, "keys of type OKP are not supported"),
    ],
)
def test_what_is_left_out_is_named_with_the_reason(jwk: dict[str, Any], reason: str) -> None:
    (left_out,) = published_keys({"keys": [jwk]}).left_out
    assert reason in left_out
    assert len(left_out) < 300


def test_keys_for_other_purposes_are_nobodys_business(issuer: Issuer) -> None:
    for changes in ({"use": "enc"}, {"key_ops": ["encrypt"]}):
        found = published_keys({"keys": [{**issuer.public_key("rsa"), **changes}]})
        assert (found.keys, found.left_out) == ((), ())


@pytest.mark.parametrize("document", [{}, {"keys": None}, {"keys": {}}, {"keys": "AAAA"}])
def test_what_is_no_set_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(TokenKeyError, match="no JSON Web Key Set"):
        published_keys(document)


def test_a_set_has_a_maximum(issuer: Issuer) -> None:
    key = issuer.public_key("ec")
    assert len(published_keys({"keys": [key] * KEYS_MAX}).keys) == KEYS_MAX
    with pytest.raises(TokenKeyError, match="the maximum is 100"):
        published_keys({"keys": [key] * (KEYS_MAX + 1)})


def test_an_empty_set_has_withdrawn_all_keys() -> None:
    assert published_keys({"keys": []}).keys == ()


def test_a_key_of_the_least_size_counts() -> None:
    numbers = rsa.generate_private_key(65537, 2048).public_key().public_numbers()
    assert numbers.n.bit_length() == 2048
    assert len(published_keys({"keys": [rsa_key(2048)]}).keys) == 1
