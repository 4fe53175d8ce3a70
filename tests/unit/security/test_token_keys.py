"""Sets of keys that issuers publish: which of them count."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

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
        {"kty": "OKP", "crv": "Ed448", "x": "A" * 43},
        {"kty": "OKP", "crv": "Ed25519", "x": "A" * 43, "alg": "ES256"},
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
        ({"kty": "OKP", "crv": "X25519"}, "keys of type OKP are not supported"),
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


def jwk_of(key: Any, **more: str) -> dict[str, Any]:
    """What an issuer publishes of a private key."""
    if isinstance(key, ed25519.Ed25519PrivateKey):
        x = key.public_key().public_bytes_raw()
        return {"kty": "OKP", "crv": "Ed25519", "x": encoded(x).decode(), **more}
    numbers = key.public_key().public_numbers()
    if isinstance(key, rsa.RSAPrivateKey):
        kind, parts = "RSA", {"n": numbers.n.to_bytes(256, "big"), "e": b"\1\0\1"}
    else:
        size = (key.curve.key_size + 7) // 8
        kind, parts = "EC", {name: getattr(numbers, name).to_bytes(size, "big") for name in "xy"}
    return {"kty": kind, **{name: encoded(part).decode() for name, part in parts.items()}, **more}


def raw(signature: bytes, size: int) -> bytes:
    """A signature as tokens have it, of two numbers of one length."""
    return b"".join(half.to_bytes(size, "big") for half in decode_dss_signature(signature))


RSA = rsa.generate_private_key(65537, 2048)
EC_521 = ec.generate_private_key(ec.SECP521R1())
EC_384 = ec.generate_private_key(ec.SECP384R1())
EDWARDS = ed25519.Ed25519PrivateKey.generate()
SHA = {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}


def rsa_signature(algorithm: str, signed: bytes) -> bytes:
    chosen = SHA[algorithm[2:]]
    if algorithm.startswith("PS"):
        return RSA.sign(signed, padding.PSS(padding.MGF1(chosen), chosen.digest_size), chosen)
    return RSA.sign(signed, padding.PKCS1v15(), chosen)


SIGNERS: dict[str, tuple[dict[str, Any], Callable[[bytes], bytes]]] = {
    **{
        name: (jwk_of(RSA, alg=name), partial(rsa_signature, name))
        for name in ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
    },
    "ES384": (
        jwk_of(EC_384, crv="P-384"),
        lambda signed: raw(EC_384.sign(signed, ec.ECDSA(hashes.SHA384())), 48),
    ),
    "ES512": (
        jwk_of(EC_521, crv="P-521"),
        lambda signed: raw(EC_521.sign(signed, ec.ECDSA(hashes.SHA512())), 66),
    ),
    "EdDSA": (jwk_of(EDWARDS), EDWARDS.sign),
}


@pytest.mark.parametrize("algorithm", SIGNERS)
def test_a_key_verifies_what_was_signed_by_its_algorithm_and_nothing_else(algorithm: str) -> None:
    jwk, sign = SIGNERS[algorithm]
    (key,) = published_keys({"keys": [jwk]}).keys
    assert key.algorithm == algorithm
    signature = sign(b"signed")
    assert key.verify(b"signed", signature)
    assert not key.verify(b"signee", signature)
    for at in range(0, len(signature), 5):
        flipped = bytes([*signature[:at], signature[at] ^ 1, *signature[at + 1 :]])
        assert not key.verify(b"signed", flipped)
    half = len(signature) // 2
    longer = signature[:half] + b"\0" + signature[half:]
    for odd in (b"", signature[:-1], signature + b"\0", longer, b"\0" * len(signature)):
        assert not key.verify(b"signed", odd)
    for other, (_, sign_otherwise) in SIGNERS.items():
        assert key.verify(b"signed", sign_otherwise(b"signed")) == (other == algorithm)


def test_the_salt_is_as_long_as_the_hash() -> None:
    (key,) = published_keys({"keys": [jwk_of(RSA, alg="PS256")]}).keys
    for salt_bytes, is_right in ((32, True), (0, False), (20, False), (222, False)):
        way = padding.PSS(padding.MGF1(hashes.SHA256()), salt_bytes)
        signature = RSA.sign(b"signed", way, hashes.SHA256())
        assert key.verify(b"signed", signature) is is_right


def test_an_exponent_that_nobody_uses_verifies_nothing() -> None:
    """OpenSSL refuses such keys when they are used, not when they are made."""
    odd = jwk_of(RSA, n=encoded(b"\xff" * 512).decode())
    odd["e"] = encoded(b"\1" + b"\0" * 20 + b"\1").decode()
    (key,) = published_keys({"keys": [odd]}).keys
    assert not key.verify(b"signed", b"\1" * 512)
