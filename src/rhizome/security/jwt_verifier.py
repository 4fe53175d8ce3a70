"""Access tokens: signed JSON (RFC 7519), verified with keys that the configuration names.

Nothing is fetched from anywhere: keys are files, PEM or a JSON Web Key Set (RFC 7517). What makes a
token good, all of it:

- it is of at most TOKEN_BYTES_MAX, in three parts of base64url without padding or stray bits;
- a key fits: the one that it names (`kid`), else any of its algorithm. Each key has one algorithm,
  which follows from the key and not from the token, so `none`, and a public key that is taken for
  a shared secret, are no algorithms of any key;
- its header has no `crit`: we know no extensions;
- its signature is right;
- `exp` is there and has not come, `nbf` has; with a little patience for clocks that differ;
- `aud` has the name of this resource server, and `iss` is the configured issuer, if there is one.

The texts of `TokenError` are for the log, and never have anything of the token in them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rhizome.errors import RhizomeError

TOKEN_BYTES_MAX: Final = 16 * 1024
KEY_FILE_BYTES_MAX: Final = 1 << 20
KEYS_MAX: Final = 100
SHARED_SECRET_BYTES_MIN: Final = 32
RSA_BITS_MIN: Final = 2048

Verify = Callable[[bytes, bytes], bool]
"""(signed, signature) -> whether it is right."""


class TokenError(RhizomeError):
    """A token that is refused."""


class TokenKeyError(RhizomeError):
    """A file of keys that can't be used."""


@dataclass(frozen=True, slots=True)
class TokenKey:
    name: str
    algorithm: str
    verify: Verify


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a token must say. Empty: any issuer."""

    audience: str
    issuer: str = ""
    skew_s: float = 30.0


class TokenVerifier:
    def __init__(self, keys: Sequence[TokenKey], rules: TokenRules) -> None:
        self._keys = tuple(keys)
        self._rules = rules

    def verify(self, token: bytes, now_s: float) -> dict[str, Any]:
        """The claims of a token; raises TokenError."""
        if len(token) > TOKEN_BYTES_MAX:
            raise TokenError(f"a token of {len(token)} bytes; the maximum is {TOKEN_BYTES_MAX}")
        parts = token.split(b".")
        if len(parts) != 3:
            raise TokenError("a token has three parts")
        header = _json(_decode(parts[0]))
        self._check_signature(header, b".".join(parts[:2]), _decode(parts[2]))
        claims = _json(_decode(parts[1]))
        self._check_times(claims, now_s)
        self._check_ends(claims)
        return claims

    def _check_signature(self, header: Mapping[str, Any], signed: bytes, signature: bytes) -> None:
        if "crit" in header:
            raise TokenError("the token demands extensions that aren't known")
        algorithm, name = header.get("alg"), header.get("kid")
        fitting = [
            key
            for key in self._keys
            if key.algorithm == algorithm and (name is None or key.name == name)
        ]
        if not fitting:
            known = ", ".join(sorted({key.algorithm for key in self._keys}))
            raise TokenError(f"no key fits the token's kid and algorithm; we have {known}")
        if not any(key.verify(signed, signature) for key in fitting):
            raise TokenError("the token's signature is wrong")

    def _check_times(self, claims: Mapping[str, Any], now_s: float) -> None:
        if now_s >= expires_s(claims) + self._rules.skew_s:
            raise TokenError("the token has expired")
        if "nbf" in claims and now_s < _seconds(claims, "nbf") - self._rules.skew_s:
            raise TokenError("the token is not valid yet")

    def _check_ends(self, claims: Mapping[str, Any]) -> None:
        audience = claims.get("aud")
        audiences = audience if isinstance(audience, list) else [audience]
        if self._rules.audience not in audiences:
            raise TokenError("the token is for somebody else (aud)")
        if self._rules.issuer and claims.get("iss") != self._rules.issuer:
            raise TokenError("the token is of another issuer (iss)")


def looks_like_token(password: bytes) -> bool:
    """Whether a password is meant to be a token: two dots, and a header that begins with `{"`."""
    return password.startswith(b"eyJ") and password.count(b".") == 2


def expires_s(claims: Mapping[str, Any]) -> float:
    return _seconds(claims, "exp")


def _seconds(claims: Mapping[str, Any], name: str) -> float:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TokenError(f"the token has no time {name}")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds):
        raise TokenError(f"the token's {name} is no time")
    return seconds


def _decode(part: bytes) -> bytes:
    """base64url as RFC 7515 wants it: one text for one value."""
    try:
        decoded = base64.b64decode(part + b"=" * (-len(part) % 4), b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise TokenError("a part of the token is no base64url") from None
    if base64.urlsafe_b64encode(decoded).rstrip(b"=") != part:
        raise TokenError("a part of the token is no base64url")
    return decoded


def _json(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise TokenError("a part of the token is no JSON") from None
    if not isinstance(document, dict):
        raise TokenError("a part of the token is no JSON object")
    return document


# ---- keys ---------------------------------------------------------------------------------------


def read_keys(paths: Sequence[str]) -> list[TokenKey]:
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
            raise TokenKeyError(
                'oauth.keys: public keys need the extra oauth: pip install "rhizomemq[oauth]"'
            ) from None
        except (ValueError, TypeError, KeyError, AttributeError, TokenError) as error:
            raise TokenKeyError(f"oauth.keys: {path} holds no usable key: {error}") from None
    if not keys or len(keys) > KEYS_MAX:
        raise TokenKeyError(f"oauth.keys: {len(keys)} keys; there must be 1 to {KEYS_MAX}")
    return keys


def _keys_in(data: bytes, stem: str) -> list[TokenKey]:
    if data.lstrip().startswith(b"{"):
        found = json.loads(data)
        listed = found.get("keys", [found])
        return [_from_jwk(each) for each in listed if each.get("use", "sig") == "sig"]
    return [_from_pem(data, stem)]


def _from_jwk(jwk: Mapping[str, str]) -> TokenKey:
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    kind, name, wanted = jwk["kty"], jwk.get("kid", ""), jwk.get("alg", "")
    if kind == "oct":
        return _shared(name, _decode(jwk["k"].encode()), wanted or "HS256")
    if kind == "RSA":
        numbers = rsa.RSAPublicNumbers(_number(jwk["e"]), _number(jwk["n"]))
        return _public(name, numbers.public_key(), wanted)
    if kind == "EC":
        curve = {"P-256": ec.SECP256R1, "P-384": ec.SECP384R1}[jwk["crv"]]()
        point = ec.EllipticCurvePublicNumbers(_number(jwk["x"]), _number(jwk["y"]), curve)
        return _public(name, point.public_key(), wanted)
    raise ValueError(f"keys of type {kind} are not supported")


def _from_pem(data: bytes, stem: str) -> TokenKey:
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from cryptography.x509 import load_pem_x509_certificate

    if b"PRIVATE KEY" in data:
        raise ValueError("it is a private key, which belongs to the issuer alone")
    if b"BEGIN CERTIFICATE" in data:
        return _public(stem, load_pem_x509_certificate(data).public_key(), "")
    return _public(stem, load_pem_public_key(data), "")


def _number(text: str) -> int:
    return int.from_bytes(_decode(text.encode()), "big")


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
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    kinds: dict[str, Any] = {"256": hashes.SHA256, "384": hashes.SHA384, "512": hashes.SHA512}
    if isinstance(key, rsa.RSAPublicKey):
        algorithm = wanted or "RS256"
        if key.key_size < RSA_BITS_MIN:
            raise ValueError(f"an RSA key has at least {RSA_BITS_MIN} bits")
        if algorithm[:2] != "RS" or algorithm[2:] not in kinds:
            raise ValueError(f"an RSA key is not for {algorithm}")
        return TokenKey(name, algorithm, _rsa_verifier(key, kinds[algorithm[2:]]()))
    if isinstance(key, ec.EllipticCurvePublicKey):
        algorithm = {"secp256r1": "ES256", "secp384r1": "ES384"}.get(key.curve.name, "")
        if not algorithm or wanted not in ("", algorithm):
            raise ValueError(f"a key of the curve {key.curve.name} is not for {wanted or 'tokens'}")
        return TokenKey(name, algorithm, _curve_verifier(key, kinds[algorithm[2:]]()))
    raise ValueError("keys of its kind are not supported; use RSA, P-256 or P-384")


def _rsa_verifier(key: Any, hashed: Any) -> Verify:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15

    def verify(signed: bytes, signature: bytes) -> bool:
        try:
            key.verify(signature, signed, PKCS1v15(), hashed)
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
