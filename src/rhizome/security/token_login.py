"""Bearers: users that log in with an access token instead of a password.

They need no record: who they are and what they may do is in the token, until it expires. Then their
connections are closed, unless they have sent a newer one (connection.update-secret).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rhizome.broker.access.auth_interface import KIND_APPLICATION, AccessEpoch, Identity
from rhizome.broker.connection.connection import Connection
from rhizome.security.jwt_verifier import (
    TokenError,
    TokenRules,
    TokenVerifier,
    expires_s,
    read_keys,
)
from rhizome.security.oauth_scopes import Scope, Scopes, parse_scopes
from rhizome.security.sasl_mechanisms import USER_BYTES_MAX

EXPIRED: Final = "the access token has expired: log in with a new one"


def wall_clock_s() -> float:
    return time.time()


@dataclass(frozen=True, slots=True)
class BearerSettings:
    """Off without a resource server."""

    resource_server: str = ""
    keys: tuple[str, ...] = ()
    issuer: str = ""
    scope_prefix: str = ""
    user_claims: tuple[str, ...] = ("sub", "client_id")
    scope_claims: tuple[str, ...] = ("scope",)
    skew_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Grant:
    """What a good token says."""

    user: str
    scopes: Scopes
    expires_s: float


class TokenAuthenticator:
    """Reads tokens. Raises TokenKeyError when it is made of keys that can't be used."""

    def __init__(
        self, settings: BearerSettings, clock_s: Callable[[], float] = wall_clock_s
    ) -> None:
        self.settings = settings
        self._clock_s = clock_s
        rules = TokenRules(settings.resource_server, settings.issuer, settings.skew_s)
        self._verifier = TokenVerifier(read_keys(settings.keys), rules)

    def grant(self, token: bytes) -> Grant:
        """What a token grants, and to whom. Raises TokenError.

        The token alone says who its user is. Whoever had a token without a name could otherwise
        choose one, be taken for that user, and see and close that user's connections.
        """
        claims = self._verifier.verify(token, self._clock_s())
        named = [claims.get(claim) for claim in self.settings.user_claims]
        found: str = next((name for name in named if isinstance(name, str) and name), "")
        if found == "":
            wanted = " or ".join(repr(claim) for claim in self.settings.user_claims)
            raise TokenError(
                f"the token names no user: it lacks the claim {wanted}; have the issuer add it, or"
                " set oauth.user_claims to a claim that it has"
            )
        _check_name(found)
        words = [word for claim in self.settings.scope_claims for word in _words(claims, claim)]
        prefix = self.settings.scope_prefix or f"{self.settings.resource_server}."
        return Grant(found, parse_scopes(words, prefix), expires_s(claims) + self.settings.skew_s)

    def identity(self, grant: Grant, epoch: AccessEpoch) -> TokenIdentity:
        return TokenIdentity(grant, epoch, self._clock_s, self)


def _check_name(user: str) -> None:
    """JSON can write halves of characters, which are no name of anybody."""
    try:
        size = len(user.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise TokenError("the token names a user with what is no character") from None
    if size > USER_BYTES_MAX:
        raise TokenError(f"the token names a user with more than {USER_BYTES_MAX} bytes")


def _words(claims: Mapping[str, Any], claim: str) -> list[str]:
    value = claims.get(claim)
    if isinstance(value, str):
        return value.split()
    if isinstance(value, list):
        return [word for word in value if isinstance(word, str)]
    return []


class TokenIdentity(Identity):
    """Invariant: permits nothing once its token has expired."""

    def __init__(
        self,
        grant: Grant,
        epoch: AccessEpoch,
        clock_s: Callable[[], float] = wall_clock_s,
        bearers: TokenAuthenticator | None = None,
    ) -> None:
        """``bearers`` read newer tokens; without them there are none."""
        super().__init__(grant.user, KIND_APPLICATION, grant.scopes.tags, epoch)
        self.grant = grant
        self.check_work = 1 + len(grant.scopes.scopes)
        self._clock_s = clock_s
        self._bearers = bearers

    def has_expired(self) -> bool:
        return self._clock_s() >= self.grant.expires_s

    def revoked(self) -> str:
        return EXPIRED if self.has_expired() else ""

    def decide(self, operation: str, vhost: str, name: str) -> bool:
        return not self.has_expired() and self.grant.scopes.allow(operation, vhost, name)

    def decide_topic(self, operation: str, vhost: str, exchange: str, key: str) -> bool:
        if self.has_expired():
            return False
        return self.grant.scopes.allow_key(operation, vhost, exchange, key)

    def decide_enter(self, vhost: str) -> bool:
        return not self.has_expired() and self.grant.scopes.enter(vhost)

    def decide_topic_rules(self, vhost: str) -> bool:
        return self.grant.scopes.has_keys()

    def renew(self, secret: bytes) -> str:
        if self._bearers is None:
            return "a token can't be renewed here"
        try:
            grant = self._bearers.grant(secret)
        except TokenError as error:
            return str(error)
        if grant.user != self.user:
            return f"the new token is of another user, {grant.user[:64]!r}"
        self.renews_rights = grant.scopes != self.grant.scopes
        self.grant = grant
        self.check_work = 1 + len(grant.scopes.scopes)
        self.tags = grant.scopes.tags
        self.invalidate()
        return ""

    def passport(self) -> str:
        """What other brokers of the cluster are told, who trust each other with it."""
        grant = self.grant
        scopes = [[each.operation, each.vhost, each.name, each.key] for each in grant.scopes.scopes]
        return json.dumps([grant.user, grant.expires_s, scopes, grant.scopes.tags])


def identity_of_passport(passport: str, epoch: AccessEpoch) -> TokenIdentity:
    user, expires, scopes, tags = json.loads(passport)
    made = Scopes(tuple(Scope(*each) for each in scopes), tuple(tags))
    return TokenIdentity(Grant(user, made, expires), epoch)


class TokenExpiries:
    """The open connections of bearers; ``close_expired`` is called about once a second."""

    def __init__(self) -> None:
        self._connections: dict[int, Connection] = {}

    def opened(self, connection: Connection) -> None:
        if isinstance(connection.identity, TokenIdentity):
            self._connections[int(connection.id)] = connection

    def closed(self, connection: Connection) -> None:
        self._connections.pop(int(connection.id), None)

    def expired(self) -> Sequence[Connection]:
        return [
            connection
            for connection in self._connections.values()
            if isinstance(connection.identity, TokenIdentity) and connection.identity.has_expired()
        ]
