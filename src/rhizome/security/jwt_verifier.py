"""Access tokens: signed JSON (RFC 7519), verified with keys that the configuration names.

What makes a token good, all of it:

- it is of at most TOKEN_BYTES_MAX, in three parts of base64url without padding or stray bits;
- a key fits: the one that it names (`kid`), else any of its algorithm. Nothing in a token leads to
  a key that was not there before it came: `jwk`, `jku` and `x5u` in its header count nothing;
- its header has no `crit`: we know no extensions;
- its signature is right;
- `exp` is there and has not come, `nbf` has; with a little patience for clocks that differ;
- `aud` has the name of this resource server, and `iss` is the configured issuer, if there is one.

The texts of `TokenError` are for the log, and never have anything of the token in them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rhizome.errors import RhizomeError
from rhizome.security.token_keys import TokenKey, decode_base64url

TOKEN_BYTES_MAX: Final = 16 * 1024


class TokenError(RhizomeError):
    """A token that is refused."""


class UnknownKeyError(TokenError):
    """A token of a key that we don't have. Its issuer may have begun to use a new one."""


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a token must say. Empty: any issuer."""

    audience: str
    issuer: str = ""
    skew_s: float = 30.0


@dataclass(frozen=True, slots=True)
class ParsedToken:
    """What a token says. Nothing of it is proved."""

    header: Mapping[str, Any]
    claims: Mapping[str, Any]
    signed: bytes
    signature: bytes


def parse_token(token: bytes) -> ParsedToken:
    """Take a token apart; raises TokenError."""
    if len(token) > TOKEN_BYTES_MAX:
        raise TokenError(f"a token of {len(token)} bytes; the maximum is {TOKEN_BYTES_MAX}")
    parts = token.split(b".")
    if len(parts) != 3:
        raise TokenError("a token has three parts")
    header, claims = (_json(_decode(part)) for part in parts[:2])
    return ParsedToken(header, claims, b".".join(parts[:2]), _decode(parts[2]))


def verify_token(
    token: ParsedToken, keys: Sequence[TokenKey], rules: TokenRules, now_s: float
) -> Mapping[str, Any]:
    """The claims of a token, which are proved now; raises TokenError."""
    _check_signature(token, keys)
    _check_times(token.claims, rules, now_s)
    _check_ends(token.claims, rules)
    return token.claims


def _check_signature(token: ParsedToken, keys: Sequence[TokenKey]) -> None:
    if "crit" in token.header:
        raise TokenError("the token demands extensions that aren't known")
    algorithm, name = token.header.get("alg"), token.header.get("kid")
    fitting = [
        key for key in keys if key.algorithm == algorithm and (name is None or key.name == name)
    ]
    if not fitting:
        known = ", ".join(sorted({key.algorithm for key in keys})) or "none"
        raise UnknownKeyError(f"no key fits the token's kid and algorithm; we have {known}")
    if any(key.verify(token.signed, token.signature) for key in fitting):
        return
    wrong = "the token's signature is wrong"
    raise UnknownKeyError(f"{wrong}, and it names no key") if name is None else TokenError(wrong)


def _check_times(claims: Mapping[str, Any], rules: TokenRules, now_s: float) -> None:
    if now_s >= expires_s(claims) + rules.skew_s:
        raise TokenError("the token has expired")
    if "nbf" in claims and now_s < _seconds(claims, "nbf") - rules.skew_s:
        raise TokenError("the token is not valid yet")


def _check_ends(claims: Mapping[str, Any], rules: TokenRules) -> None:
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    if rules.audience not in audiences:
        raise TokenError("the token is for somebody else (aud)")
    if rules.issuer and claims.get("iss") != rules.issuer:
        raise TokenError(OTHER_ISSUER)


OTHER_ISSUER: Final = "the token is of another issuer (iss)"


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
    try:
        return decode_base64url(part)
    except ValueError:
        raise TokenError("a part of the token is no base64url") from None


def _json(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise TokenError("a part of the token is no JSON") from None
    if not isinstance(document, dict):
        raise TokenError("a part of the token is no JSON object")
    return document
