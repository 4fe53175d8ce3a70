"""Token providers: the issuers whose access tokens count, each with its own keys and rules.

A token is verified with the keys of the provider whose issuer it claims to be of (`iss`), and with
no others. So a provider can't sign for another one, whatever its keys are called.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Final

from rhizome.security.jwks_cache import FetchTimes, IssuerKeys, KeyLocation
from rhizome.security.jwt_verifier import (
    OTHER_ISSUER,
    ParsedToken,
    TokenError,
    TokenRules,
    UnknownKeyError,
    expires_s,
    verify_token,
)
from rhizome.security.oauth_scopes import Scopes, parse_scopes
from rhizome.security.sasl_mechanisms import USER_BYTES_MAX
from rhizome.security.token_keys import EXTRA_MISSING, TokenKey, TokenKeyError, read_keys

ONLY_PROVIDER: Final = "oauth"
"""The name of the provider of a configuration that names none."""


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    """One issuer. Its keys are in files, or are fetched if no file is named."""

    resource_server: str
    keys: tuple[str, ...] = ()
    issuer: str = ""
    jwks_url: str = ""
    ca: str = ""
    name: str = ONLY_PROVIDER
    scope_prefix: str = ""
    user_claims: tuple[str, ...] = ("sub", "client_id")
    scope_claims: tuple[str, ...] = ("scope",)
    scope_aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    skew_s: float = 30.0
    times: FetchTimes = field(default_factory=FetchTimes)

    @property
    def location(self) -> KeyLocation:
        return KeyLocation(self.issuer, self.jwks_url, self.ca)


@dataclass(frozen=True, slots=True)
class Grant:
    """What a good token says."""

    user: str
    scopes: Scopes
    expires_s: float
    issuer: str = field(default="", compare=False)
    """Who says it; unknown of a token that another broker has read."""


class TokenProvider:
    """``fetched`` are the keys that come over the network; None if they are in files."""

    def __init__(self, settings: ProviderSettings, fetched: IssuerKeys | None) -> None:
        self.settings = settings
        self.fetched = fetched
        self._in_files = () if fetched is not None else read_keys(settings.keys)
        self._rules = TokenRules(settings.resource_server, settings.issuer, settings.skew_s)

    def grant(self, token: ParsedToken, now_s: float) -> Grant:
        """What a token grants, and to whom. Raises TokenError.

        The token alone says who its user is. Whoever had a token without a name could otherwise
        choose one, be taken for that user, and see and close that user's connections.
        """
        try:
            claims = verify_token(token, self._keys(), self._rules, now_s)
        except UnknownKeyError:
            if self.fetched is not None:
                self.fetched.missed()
            raise
        user = _user_of(claims, self.settings.user_claims)
        expiry_s = expires_s(claims) + self.settings.skew_s
        return Grant(user, self._scopes_of(claims), expiry_s, self.settings.issuer)

    def _keys(self) -> Sequence[TokenKey]:
        return self._in_files if self.fetched is None else self.fetched.keys()

    def _scopes_of(self, claims: Mapping[str, Any]) -> Scopes:
        settings = self.settings
        words = [word for claim in settings.scope_claims for word in _words(claims, claim)]
        meant = [scope for word in words for scope in settings.scope_aliases.get(word, ())]
        return parse_scopes(words + meant, settings.scope_prefix or f"{settings.resource_server}.")


def make_providers(
    settings: Sequence[ProviderSettings],
    earlier: Sequence[TokenProvider],
    clock_ms: Callable[[], int],
) -> tuple[TokenProvider, ...]:
    """The providers of a configuration; raises TokenKeyError.

    Keys that were fetched from where they are now stay: reading a configuration again must not
    leave a provider without any.
    """
    fetched = {each.fetched.location: each.fetched for each in earlier if each.fetched is not None}
    made: list[TokenProvider] = []
    for each in settings:
        keys: IssuerKeys | None = None
        if not each.keys:
            _demand_extra()
            keys = fetched.get(each.location)
            if keys is None:
                keys = IssuerKeys(each.name, each.location, each.times, clock_ms)
        made.append(TokenProvider(each, keys))
    return tuple(made)


def check_provider_files(settings: Sequence[ProviderSettings]) -> None:
    """Read the files that the configuration names; raises TokenKeyError. Fetches nothing."""
    for each in settings:
        if each.keys:
            read_keys(each.keys)
        else:
            _demand_extra()
        if each.ca:
            _check_authorities(each)


def _check_authorities(settings: ProviderSettings) -> None:
    try:
        ssl.create_default_context(cafile=settings.ca)
    except OSError as error:
        raise TokenKeyError(
            f"the ca of issuer {settings.name!r}, {settings.ca}, holds no usable certificate:"
            f" {error.strerror or error}"
        ) from None


def provider_of(token: ParsedToken, providers: Sequence[TokenProvider]) -> TokenProvider:
    """The provider whose issuer a token claims to be of; raises TokenError."""
    issuer = token.claims.get("iss")
    for provider in providers:
        if provider.settings.issuer in ("", issuer):
            return provider
    raise TokenError(OTHER_ISSUER)


def _demand_extra() -> None:
    if find_spec("cryptography") is None:
        raise TokenKeyError(f"oauth: {EXTRA_MISSING}")


def _user_of(claims: Mapping[str, Any], user_claims: Sequence[str]) -> str:
    named = [claims.get(claim) for claim in user_claims]
    found: str = next((name for name in named if isinstance(name, str) and name), "")
    if found == "":
        wanted = " or ".join(repr(claim) for claim in user_claims)
        raise TokenError(
            f"the token names no user: it lacks the claim {wanted}; have the issuer add it, or"
            " set oauth.user_claims to a claim that it has"
        )
    _check_name(found)
    return found


def _check_name(user: str) -> None:
    """JSON can write halves of characters, which are no name of anybody."""
    try:
        size = len(user.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise TokenError("the token names a user with what is no character") from None
    if size > USER_BYTES_MAX:
        raise TokenError(f"the token names a user with more than {USER_BYTES_MAX} bytes")


def _words(claims: Mapping[str, Any], claim: str) -> list[str]:
    """The words of a claim. Dots lead into objects, unless a claim has them in its name."""
    value: Any = claims
    for part in [claim] if claim in claims else claim.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, str):
        return value.split()
    if isinstance(value, list):
        return [word for word in value if isinstance(word, str)]
    return []
