"""Logging in: from a mechanism's response to an identity.

The life of a login:
1. the response is parsed (`mechanisms`); what doesn't parse is refused;
2. a throttled user or address is refused unseen;
3. a password that this process has verified before (`VerifiedLogins`) is right at once;
4. otherwise it is verified through `verify_async`, which the server points at a thread. Equal
   attempts that come meanwhile wait for that one verification: a thousand connections of one
   application that arrive at once cost one scrypt. The password of an unknown user is verified too,
   against a hash that nobody has, so that the time an answer takes doesn't tell who exists;
5. an access token instead of a password is verified at once, and stands for the user's record
   (`bearer`);
6. then the user's kind and where it may connect from are checked.

The client learns only that the login was refused. The reason goes to the log.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from rhizome.broker.access import (
    KIND_APPLICATION,
    AccessEpoch,
    AuthDone,
    Authenticator,
    Peer,
)
from rhizome.security.bearer import Bearers
from rhizome.security.mechanisms import (
    AMQPLAIN,
    COMMON_NAME,
    EXTERNAL,
    PLAIN,
    Credentials,
    MechanismError,
    parse_response,
)
from rhizome.security.passwords import (
    DEFAULT_COST,
    ScryptCost,
    VerifiedLogins,
    unmatchable_hash,
    verify_password,
)
from rhizome.security.permissions import UserIdentity
from rhizome.security.records import AccessRecords, UserRecord
from rhizome.security.throttle import LoginThrottle, ThrottleSettings
from rhizome.security.tokens import TokenError, looks_like_token

VERIFICATIONS_MAX: Final = 256
LOOPBACK_ONLY: Final = "this user may only connect from loopback addresses"

VerifyAsync = Callable[[Callable[[], bool], Callable[[bool], None]], None]


def verify_inline(work: Callable[[], bool], done: Callable[[bool], None]) -> None:
    """Verify in the caller's thread, which a password hash blocks for a fifth of a second."""
    done(work())


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class LoginSettings:
    loopback_users: frozenset[str] = frozenset({"guest"})
    kinds: frozenset[str] = frozenset({KIND_APPLICATION})
    external: bool = False
    external_user_from: str = COMMON_NAME
    throttle: ThrottleSettings = field(default_factory=ThrottleSettings)
    password_cost: ScryptCost = DEFAULT_COST


@dataclass(slots=True)
class LoginStatistics:
    accepted: int = 0
    refused: int = 0
    throttled: int = 0
    verifications: int = 0


@dataclass(frozen=True, slots=True)
class _Attempt:
    credentials: Credentials
    peer: Peer
    done: AuthDone
    kinds: frozenset[str]


class LoginService(Authenticator):
    """Authenticates against the users of the broker's state.

    `epoch` is the one that whoever applies changes to users and permissions advances.
    Invariant: each `begin` or `check` ends in exactly one call of its `done`.
    """

    def __init__(
        self,
        records: AccessRecords,
        epoch: AccessEpoch,
        settings: LoginSettings | None = None,
        *,
        verify_async: VerifyAsync = verify_inline,
        clock_ms: Callable[[], int] = monotonic_ms,
        secret: bytes | None = None,
    ) -> None:
        self._records = records
        self._epoch = epoch
        self._settings = LoginSettings() if settings is None else settings
        self._verify_async = verify_async
        self._clock_ms = clock_ms
        self._verified = VerifiedLogins(os.urandom(32) if secret is None else secret)
        self._throttle = LoginThrottle(self._settings.throttle)
        self._waiting: dict[bytes, list[_Attempt]] = {}
        self.nobody_hash = unmatchable_hash(self._settings.password_cost)
        self.statistics = LoginStatistics()
        self.bearers: Bearers | None = None
        """Who reads access tokens, if they are accepted."""

    @property
    def takes_tokens(self) -> bool:
        return self.bearers is not None

    def configure(self, settings: LoginSettings) -> None:
        """Go on with other settings; what was counted stays."""
        self._settings = settings
        self.nobody_hash = unmatchable_hash(settings.password_cost)
        self._throttle.settings = settings.throttle

    def mechanisms(self, tls: bool) -> str:
        offered = f"{AMQPLAIN} {PLAIN}"
        return f"{offered} {EXTERNAL}" if tls and self._settings.external else offered

    def begin(self, mechanism: str, response: bytes, peer: Peer, done: AuthDone) -> None:
        try:
            if mechanism == EXTERNAL and not self._settings.external:
                raise MechanismError("mechanism EXTERNAL isn't enabled")
            credentials = parse_response(
                mechanism, response, peer, self._settings.external_user_from
            )
        except MechanismError as error:
            self._refuse(done, f"{error} (from {_place(peer)})")
            return
        self.check(credentials, peer, done)

    def check(
        self,
        credentials: Credentials,
        peer: Peer,
        done: AuthDone,
        kinds: frozenset[str] | None = None,
    ) -> None:
        """Log in with credentials that came by other ways, such as the HTTP API's header.

        `kinds`: the user types that may log in there, if not those of the settings.
        """
        attempt = _Attempt(
            credentials, peer, done, self._settings.kinds if kinds is None else kinds
        )
        wait_ms = self._throttle.wait_ms(credentials.user, peer, self._clock_ms())
        if wait_ms > 0:
            self.statistics.throttled += 1
            self._refuse(
                done,
                f"{_who(attempt)}: too many failed logins, refused unseen for {wait_ms} ms more",
            )
            return
        record = self._records.users.get(credentials.user)
        bearers, password = self.bearers, credentials.password
        if bearers is not None and password is not None and looks_like_token(password):
            self._check_token(attempt, bearers, password)
        elif credentials.password is None:
            self._settle(attempt, record is not None)
        else:
            self._verify(attempt, credentials.password, record)

    def _check_token(self, attempt: _Attempt, bearers: Bearers, token: bytes) -> None:
        """A token is all there is to a bearer: no record, no password."""
        user, peer, now_ms = attempt.credentials.user, attempt.peer, self._clock_ms()
        self._throttle.started(user, peer, now_ms)
        try:
            grant = bearers.grant(token, user)
        except TokenError as error:
            self._throttle.failed(user, peer, now_ms)
            self._refuse(attempt.done, f"{_who(attempt)}: {error}")
            return
        if KIND_APPLICATION not in attempt.kinds:
            self._refuse(attempt.done, f"{_who(attempt)}: tokens are for applications")
            return
        if grant.user in self._settings.loopback_users and not peer.loopback:
            self._refuse(attempt.done, f"{_who(attempt)}: {LOOPBACK_ONLY}")
            return
        self._throttle.succeeded(user, peer)
        self.statistics.accepted += 1
        attempt.done.authenticated(bearers.identity(grant, self._epoch), "")

    def _verify(self, attempt: _Attempt, password: bytes, record: UserRecord | None) -> None:
        user = attempt.credentials.user
        encoded = record.password_hash if record is not None else ""
        proof = self._verified.proof(user, encoded, password)
        if self._verified.remembers(user, encoded, proof):
            self._settle(attempt, True)
            return
        waiting = self._waiting.get(proof)
        if waiting is not None:
            waiting.append(attempt)
            return
        if len(self._waiting) >= VERIFICATIONS_MAX:
            self._refuse(attempt.done, f"{_who(attempt)}: too many logins are being verified")
            return
        self._waiting[proof] = [attempt]
        self._throttle.started(user, attempt.peer, self._clock_ms())
        self.statistics.verifications += 1
        self._start_verification(user, encoded, password, proof)

    def _start_verification(self, user: str, encoded: str, password: bytes, proof: bytes) -> None:
        def work() -> bool:
            try:
                return verify_password(encoded or self.nobody_hash, password)
            except (MemoryError, ValueError):  # scrypt found no memory: no proof either
                return False

        def verified(is_right: bool) -> None:
            # The user may have been changed or deleted while the password was verified.
            record = self._records.users.get(user)
            is_right = is_right and record is not None and record.password_hash == encoded
            if is_right:
                self._verified.remember(user, encoded, proof)
            for attempt in self._waiting.pop(proof, []):
                if not is_right:
                    self._throttle.failed(user, attempt.peer, self._clock_ms())
                self._settle(attempt, is_right)

        self._verify_async(work, verified)

    def _settle(self, attempt: _Attempt, is_right: bool) -> None:
        record = self._records.users.get(attempt.credentials.user)
        fault = self._fault(attempt, record, is_right)
        if record is None or fault:
            self._refuse(attempt.done, f"{_who(attempt)}: {fault}")
            return
        user = attempt.credentials.user
        self._throttle.succeeded(user, attempt.peer)
        self.statistics.accepted += 1
        identity = UserIdentity(
            user, record.kind, tuple(sorted(record.tags)), self._records, self._epoch
        )
        attempt.done.authenticated(identity, "")

    def _fault(self, attempt: _Attempt, record: UserRecord | None, is_right: bool) -> str:
        if record is None:
            return "there is no such user"
        if not is_right:
            return "the password is wrong" if record.password_hash else "the user has no password"
        if record.kind not in attempt.kinds:
            wanted = " or ".join(sorted(attempt.kinds))
            return f"a user of kind {record.kind} can't log in here, only {wanted}"
        if attempt.credentials.user in self._settings.loopback_users and not attempt.peer.loopback:
            return LOOPBACK_ONLY
        return ""

    def _refuse(self, done: AuthDone, reason: str) -> None:
        self.statistics.refused += 1
        done.authenticated(None, reason)


def _who(attempt: _Attempt) -> str:
    return f"user {attempt.credentials.user[:64]!r} from {_place(attempt.peer)}"


def _place(peer: Peer) -> str:
    host = f"[{peer.address}]" if ":" in peer.address else peer.address
    return f"{host}:{peer.port}"
