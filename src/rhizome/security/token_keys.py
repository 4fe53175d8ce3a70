"""Token keys: what access tokens are verified with, from files or from a set that an issuer has
published.

Each key has one algorithm, which follows from the key and not from the token, so `none`, and a
public key that is taken for a shared secret, are no algorithms of any key.

A file is somebody's choice: if anything in it can't be used it is refused as a whole. A published
set (RFC 7517, section 5) has keys for other purposes and of other kinds in it, and is used without
them. No shared secret and no private key counts there: what everybody can fetch proves nothing.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rhizome.errors import RhizomeError

KEY_FILE_BYTES_MAX: Final = 1 << 20
KEYS_MAX: Final = 100
KEY_NAME_CHARS_MAX: Final = 256
SHARED_SECRET_BYTES_MIN: Final = 32
RSA_BITS_MIN: Final = 2048
RSA_BITS_MAX: Final = 16_384
"""OpenSSL verifies nothing with more."""

CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
EDDSA: Final = "EdDSA"

EXTRA_MISSING: Final = 'public keys need the extra oauth: pip install "rhizomemq[oauth]"'

Verify = Callable[[bytes, bytes], bool]
"""(signed, signature) -> whether it is right."""


class TokenKeyError(RhizomeError):
    """Keys that can't be used."""


@dataclass(frozen=True, slots=True)
class TokenKey:
    name: str
    algorithm: str
    verify: Verify


@dataclass(frozen=True, slots=True)
class PublishedKeys:
    """The keys of a published set that can be used; ``left_out`` says of each other one why not."""

    keys: tuple[TokenKey, ...]
    left_out: tuple[str, ...] = ()


def decode_base64url(part: bytes) -> bytes:
    """base64url as RFC 7515 wants it: one text for one value. Raises ValueError."""
    try:
        decoded = base64.b64decode(part + b"=" * (-len(part) % 4), b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("it is no base64url") from None
    if base64.urlsafe_b64encode(decoded).rstrip(b"=") != part:
        raise ValueError("it is no base64url")
    return decoded


# ---- files --------------------------------------------------------------------------------------


def read_keys(paths: Sequence[str]) -> tuple[TokenKey, ...]:
    """The keys in files: PEM with a public key or certificate, or a JSON Web Key Set."""
    keys: list[TokenKey] = []
    for path in paths:
        try:
            data = Path(path).read_bytes()[: KEY_FILE_BYTES_MAX + 1]
        except OSError as error:
            raise TokenKeyError(f"oauth.keys: {path} can't be read: {error.strerror}") from None
        if len(data) > KEY_FILE_BYTES_MAX:
            raise TokenKeyError(f"oauth.keys: {path} is larger than 1 MiB")
        try:
            keys += _keys_in(data, Path(path).stem)
        except ImportError:
            raise TokenKeyError(f"oauth.keys: {EXTRA_MISSING}") from None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise TokenKeyError(f"oauth.keys: {path} holds no usable key: {error}") from None
    if not keys or len(keys) > KEYS_MAX:
        raise TokenKeyError(f"oauth.keys: {len(keys)} keys; there must be 1 to {KEYS_MAX}")
    return tuple(keys)


def _keys_in(data: bytes, stem: str) -> list[TokenKey]:
    if data.lstrip().startswith(b"{"):
        found = json.loads(data)
        listed = found.get("keys", [found])
        return [_from_jwk(each) for each in listed if each.get("use", "sig") == "sig"]
    return [_from_pem(data, stem)]


def _from_pem(data: bytes, stem: str) -> TokenKey:
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from cryptography.x509 import load_pem_x509_certificate

    if b"PRIVATE KEY" in data:
        raise ValueError("it is a private key, which belongs to the issuer alone")
    if b"BEGIN CERTIFICATE" in data:
        return _public(stem, load_pem_x509_certificate(data).public_key(), "")
    return _public(stem, load_pem_public_key(data), "")


# ---- sets that issuers publish ------------------------------------------------------------------


def published_keys(document: Mapping[str, Any]) -> PublishedKeys:
    """The keys of a JSON Web Key Set that was fetched. Raises TokenKeyError if it is none.

    A set without a usable key is a set: the issuer has withdrawn those that it had.
    """
    listed = document.get("keys")
    if not isinstance(listed, list):
        raise TokenKeyError('it is no JSON Web Key Set: it has no list "keys"')
    if len(listed) > KEYS_MAX:
        raise TokenKeyError(f"it has {len(listed)} keys; the maximum is {KEYS_MAX}")
    keys: list[TokenKey] = []
    left_out: list[str] = []
    for place, jwk in enumerate(listed, 1):
        try:
            if _is_for_signatures(jwk):
                keys.append(_from_published_jwk(jwk))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            left_out.append(f"key {place} ({_shown_name(jwk)}): {_reason(error)}")
    return PublishedKeys(tuple(keys), tuple(left_out))


def _is_for_signatures(jwk: Mapping[str, Any]) -> bool:
    return jwk.get("use", "sig") == "sig" and "verify" in jwk.get("key_ops", ("verify",))


def _from_published_jwk(jwk: Mapping[str, Any]) -> TokenKey:
    if jwk["kty"] == "oct":
        raise ValueError("it is a shared secret, which is none once it is published")
    if "d" in jwk:
        raise ValueError("it has its private part in it, so whoever fetches it can sign tokens")
    name = jwk.get("kid", "")
    if not isinstance(name, str) or len(name) > KEY_NAME_CHARS_MAX:
        raise ValueError(f"its kid is no string of at most {KEY_NAME_CHARS_MAX} characters")
    return _from_jwk(jwk)


def _shown_name(jwk: object) -> str:
    name = jwk.get("kid") if isinstance(jwk, dict) else None
    return f"kid {name[:64]!r}" if isinstance(name, str) else "without a kid"


def _reason(error: Exception) -> str:
    return f"it lacks {error}" if isinstance(error, KeyError) else str(error)


# ---- keys ---------------------------------------------------------------------------------------


def _from_jwk(jwk: Mapping[str, str]) -> TokenKey:
    kind, name, wanted = jwk["kty"], jwk.get("kid", ""), jwk.get("alg", "")
    if kind == "oct":
        return _shared(name, decode_base64url(jwk["k"].encode()), wanted or "HS256")
    if kind == "RSA":
        return _rsa_from_numbers(name, _number(jwk["e"]), _number(jwk["n"]), wanted)
    if kind == "EC":
        return _curve_from_numbers(name, jwk, wanted)
    if kind == "OKP" and jwk["crv"] == "Ed25519":
        return _edwards(name, decode_base64url(jwk["x"].encode()), wanted)
    raise ValueError(f"keys of type {str(kind)[:64]} are not supported")


def _rsa_from_numbers(name: str, exponent: int, modulus: int, wanted: str) -> TokenKey:
    from cryptography.hazmat.primitives.asymmetric import rsa

    _check_rsa_bits(modulus.bit_length())
    return _public(name, rsa.RSAPublicNumbers(exponent, modulus).public_key(), wanted)


def _curve_from_numbers(name: str, jwk: Mapping[str, str], wanted: str) -> TokenKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    curves: dict[str, type[ec.EllipticCurve]] = {
        "P-256": ec.SECP256R1,
        "P-384": ec.SECP384R1,
        "P-521": ec.SECP521R1,
    }
    curve = curves.get(jwk["crv"])
    if curve is None:
        raise ValueError(f"the curve {str(jwk['crv'])[:64]} is not supported")
    point = ec.EllipticCurvePublicNumbers(_number(jwk["x"]), _number(jwk["y"]), curve())
    return _public(name, point.public_key(), wanted)


def _edwards(name: str, point: bytes, wanted: str) -> TokenKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return _public(name, Ed25519PublicKey.from_public_bytes(point), wanted)


def _number(text: str) -> int:
    return int.from_bytes(decode_base64url(text.encode()), "big")


def _check_rsa_bits(bits: int) -> None:
    if not RSA_BITS_MIN <= bits <= RSA_BITS_MAX:
        raise ValueError(f"an RSA key has {RSA_BITS_MIN} to {RSA_BITS_MAX} bits, not {bits}")


_HASHES: Final = {"256": hashlib.sha256, "384": hashlib.sha384, "512": hashlib.sha512}


def _shared(name: str, secret: bytes, algorithm: str) -> TokenKey:
    if not algorithm.startswith("HS") or algorithm[2:] not in _HASHES:
        raise ValueError(f"a shared secret is not for {algorithm}")
    if len(secret) < SHARED_SECRET_BYTES_MIN:
        raise ValueError(f"a shared secret has at least {SHARED_SECRET_BYTES_MIN} bytes")
    hashed = _HASHES[algorithm[2:]]

    def verify(signed: bytes, signature: bytes) -> bool:
        return hmac.compare_digest(hmac.new(secret, signed, hashed).digest(), signature)

    return TokenKey(name, algorithm, verify)


def _public(name: str, key: Any, wanted: str) -> TokenKey:
    """A key with its algorithm: RS256 unless it says which of RSA's, for curves theirs."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    kinds: dict[str, Any] = {"256": hashes.SHA256, "384": hashes.SHA384, "512": hashes.SHA512}
    if isinstance(key, rsa.RSAPublicKey):
        algorithm = wanted or "RS256"
        _check_rsa_bits(key.key_size)
        if algorithm[:2] not in ("RS", "PS") or algorithm[2:] not in kinds:
            raise ValueError(f"an RSA key is not for {str(algorithm)[:64]}")
        return TokenKey(name, algorithm, _rsa_verifier(key, algorithm, kinds[algorithm[2:]]()))
    if isinstance(key, ec.EllipticCurvePublicKey):
        algorithm = CURVES.get(key.curve.name, "")
        _check_wanted(key.curve.name, algorithm, wanted)
        return TokenKey(name, algorithm, _curve_verifier(key, kinds[algorithm[2:]]()))
    if isinstance(key, ed25519.Ed25519PublicKey):
        _check_wanted("Ed25519", EDDSA, wanted)
        return TokenKey(name, EDDSA, _edwards_verifier(key))
    raise ValueError("keys of its kind are not supported; use RSA, P-256, P-384, P-521 or Ed25519")


def _check_wanted(curve: str, algorithm: str, wanted: str) -> None:
    if not algorithm or wanted not in ("", algorithm):
        raise ValueError(f"a key of the curve {curve} is not for {str(wanted)[:64] or 'tokens'}")


def _rsa_verifier(key: Any, algorithm: str, hashed: Any) -> Verify:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS, PKCS1v15

    # RFC 7518, 3.5: with PSS the salt is as long as the hash.
    padding = PSS(MGF1(hashed), hashed.digest_size) if algorithm[:2] == "PS" else PKCS1v15()

    def verify(signed: bytes, signature: bytes) -> bool:
        try:
            key.verify(signature, signed, padding, hashed)
        except InvalidSignature:
            return False
        return True

    return verify


def _curve_verifier(key: Any, hashed: Any) -> Verify:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

    size = (key.curve.key_size + 7) // 8

    def verify(signed: bytes, signature: bytes) -> bool:
        if len(signature) != 2 * size:
            return False
        halves = (signature[:size], signature[size:])
        try:
            pair = encode_dss_signature(*(int.from_bytes(half, "big") for half in halves))
            key.verify(pair, signed, ECDSA(hashed))
        except (InvalidSignature, ValueError):
            return False
        return True

    return verify


def _edwards_verifier(key: Any) -> Verify:
    from cryptography.exceptions import InvalidSignature

    def verify(signed: bytes, signature: bytes) -> bool:
        try:
            key.verify(signature, signed)
        except InvalidSignature:
            return False
        return True

    return verify
