"""Bearers: users that log in with an access token instead of a password.

They need no record: who they are and what they may do is in the token, until it expires. Then their
connections are closed, unless they have sent a newer one (connection.update-secret).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Final

from rhizome.broker.access.auth_interface import KIND_APPLICATION, AccessEpoch, Identity
from rhizome.broker.connection.connection import Connection
from rhizome.security.jwks_cache import IssuerKeys
from rhizome.security.jwt_verifier import TokenError, parse_token
from rhizome.security.oauth_scopes import Scope, Scopes
from rhizome.security.token_provider import (
    Grant,
    ProviderSettings,
    TokenProvider,
    make_providers,
    provider_of,
)

EXPIRED: Final = "the access token has expired: log in with a new one"


def wall_clock_s() -> float:
    return time.time()


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class TokenAuthenticator:
    """Reads tokens, by the rules of the newest configuration. Without providers it refuses all.

    There is one for the life of a broker: connections that renew their token ask it, whenever they
    were opened.
    """

    def __init__(
        self,
        settings: Sequence[ProviderSettings] = (),
        clock_s: Callable[[], float] = wall_clock_s,
        clock_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        self._clock_s = clock_s
        self._clock_ms = clock_ms
        self.providers: tuple[TokenProvider, ...] = ()
        self.adopt(self.prepare(settings))

    def prepare(self, settings: Sequence[ProviderSettings]) -> tuple[TokenProvider, ...]:
        """The providers of a new configuration, to be adopted. Raises TokenKeyError if their keys
        can't be used, and changes nothing."""
        return make_providers(settings, self.providers, self._clock_ms)

    def adopt(self, providers: tuple[TokenProvider, ...]) -> None:
        """Go on with these. Keys that are fetched are fetched anew, and count until then."""
        self.providers = providers
        for each in providers:
            if each.fetched is not None:
                each.fetched.name = each.settings.name
                each.fetched.times = each.settings.times
                each.fetched.fetch_soon()

    def issuers(self) -> list[IssuerKeys]:
        """The keys that come over the network."""
        return [each.fetched for each in self.providers if each.fetched is not None]

    def grant(self, token: bytes) -> Grant:
        """What a token grants, and to whom. Raises TokenError."""
        parsed = parse_token(token)
        return provider_of(parsed, self.providers).grant(parsed, self._clock_s())

    def identity(self, grant: Grant, epoch: AccessEpoch) -> TokenIdentity:
        return TokenIdentity(grant, epoch, self._clock_s, self)


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
        if grant.issuer != self.grant.issuer:
            return "the new token is of another issuer"
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
