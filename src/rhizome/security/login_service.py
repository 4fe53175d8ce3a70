"""Logging in: from a mechanism's response to an identity.

The life of a login:
1. the response is parsed (`mechanisms`); what doesn't parse is refused;
2. an access token instead of a password is verified at once. It says who its user is, whatever name
   came with it, and stands for the user's record (`bearer`);
3. a login that equals one which is being verified waits for that: a thousand connections of one
   application that arrive at once cost one scrypt;
4. a throttled user or address is refused unseen (`throttle`);
5. a password that this process has verified before (`VerifiedLogins`) is right at once;
6. otherwise it is verified through `verify_async`, which the server points at a thread, when its
   turn comes (`examinations`). The same work is done for an unknown user, and for one whose hash is
   cheap because it was imported, so that the time an answer takes doesn't tell who exists. Such a
   hash is replaced once its password is proved;
7. then the user's kind and where it may connect from are checked.

The client learns only that the login was refused. The reason goes to the log.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from rhizome.broker.access.auth_interface import (
    KIND_APPLICATION,
    AccessEpoch,
    AuthDone,
    Authenticator,
    Peer,
)
from rhizome.security.jwt_verifier import TokenError, looks_like_token
from rhizome.security.known_login_addresses import KnownLogins
from rhizome.security.login_throttle import LoginThrottle, ThrottleSettings
from rhizome.security.password_check_queue import PasswordCheckQueue, VerifyAsync, verify_inline
from rhizome.security.password_hashes import (
    DEFAULT_COST,
    Examination,
    ScryptCost,
    VerifiedLogins,
    examine_password,
    is_same_password,
)
from rhizome.security.permissions import AccessRecords, UserIdentity, UserRecord
from rhizome.security.sasl_mechanisms import (
    AMQPLAIN,
    COMMON_NAME,
    EXTERNAL,
    PLAIN,
    Credentials,
    MechanismError,
    parse_response,
)
from rhizome.security.token_login import TokenAuthenticator, monotonic_ms

JOINED_MAX: Final = 16_384
"""Logins that wait for the verification of another one, which they equal."""

LOOPBACK_ONLY: Final = "this user may only connect from loopback addresses"
BROKERS_ONLY: Final = "this user may only connect on a broker's own machine, where this edge is not"

Upgrade = Callable[[str, str, str], None]
"""Replaces the hash of a user: its name, the hash that was verified, the new one."""


@dataclass(frozen=True, slots=True)
class LoginSettings:
    loopback_users: frozenset[str] = frozenset({"guest"})
    is_away: bool = False
    """This broker stands for others on a machine that isn't theirs: loopback users have no loopback
    addresses here."""
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


class LoggedIn(UserIdentity):
    """A user of the broker's state that has logged in; ``password_hash`` is that of the password
    it has proved, empty if it has proved itself by a certificate."""

    def __init__(
        self, user: str, password_hash: str, records: AccessRecords, epoch: AccessEpoch
    ) -> None:
        record = records.users[user]
        super().__init__(user, record.kind, tuple(sorted(record.tags)), records, epoch)
        self.password_hash = password_hash

    def revoked(self) -> str:
        record = self._records.users.get(self.user)
        if record is None:
            return f"user '{self.user}' was deleted"
        if record.kind != self.kind:
            return f"user '{self.user}' is of another kind now"
        if self.password_hash:
            if not is_same_password(self.password_hash, record.password_hash):
                return f"the password of user '{self.user}' was changed"
            self.password_hash = record.password_hash
        self.tags = tuple(sorted(record.tags))
        return ""


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
        self._examinations = PasswordCheckQueue(verify_async)
        self._clock_ms = clock_ms
        self._verified = VerifiedLogins(os.urandom(32) if secret is None else secret)
        self._throttle = LoginThrottle(self._settings.throttle)
        self._waiting: dict[bytes, list[_Attempt]] = {}
        self._joined = 0
        self.statistics = LoginStatistics()
        self.bearers: TokenAuthenticator | None = None
        """Who reads access tokens, if they are accepted."""
        self.upgrade: Upgrade | None = None
        """Who replaces hashes that are cheaper than new ones, if anybody does."""

    @property
    def known(self) -> KnownLogins:
        """From where users have logged in before."""
        return self._throttle.known

    @property
    def takes_tokens(self) -> bool:
        return self.bearers is not None

    def configure(self, settings: LoginSettings) -> None:
        """Go on with other settings; what was counted stays."""
        self._settings = settings
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
        bearers, password = self.bearers, credentials.password
        record = self._records.users.get(credentials.user)
        if password is None:
            # A certificate can't be guessed at, so guesses at a password don't hold it up.
            self._settle(attempt, record is not None, "")
        elif bearers is not None and (credentials.bearer or looks_like_token(password)):
            self._check_token(attempt, bearers, password)
        else:
            self._check_password(attempt, password, record)

    def _check_password(
        self, attempt: _Attempt, password: bytes, record: UserRecord | None
    ) -> None:
        user = attempt.credentials.user
        encoded = record.password_hash if record is not None else ""
        proof = self._verified.proof(user, encoded, password)
        if self._join(attempt, proof) or self._is_throttled(attempt):
            return
        if self._verified.remembers(user, encoded, proof):
            self._settle(attempt, True, encoded)
            return
        is_known = self._throttle.knows(user, attempt.peer)
        if not self._examinations.has_room(is_known):
            self._refuse(attempt.done, f"{_who(attempt)}: too many logins are being verified")
            return
        self._waiting[proof] = [attempt]
        self._throttle.started(user, attempt.peer, self._clock_ms())
        self.statistics.verifications += 1
        self._start_verification(is_known, user, encoded, password, proof)

    def _check_token(self, attempt: _Attempt, bearers: TokenAuthenticator, token: bytes) -> None:
        """A token is all there is to a bearer: no record, no password, and no name but its own.

        Neither a good token nor a bad one says anything about the user whose name came with it: if
        it did, whoever has a token of its own could clear the count of guesses at others.
        """
        peer, now_ms = attempt.peer, self._clock_ms()
        wait_ms = self._throttle.bearer_wait_ms(peer, now_ms)
        if wait_ms > 0:
            self.statistics.throttled += 1
            self._refuse(
                attempt.done,
                f"an access token from {_place(peer)}: too many bad ones came from there, refused"
                f" unseen for {wait_ms} ms more",
            )
            return
        try:
            grant = bearers.grant(token)
        except TokenError as error:
            self._throttle.bearer_failed(peer, now_ms)
            self._refuse(attempt.done, f"{_who(attempt)}: {error}")
            return
        who = f"user {grant.user[:64]!r} by token from {_place(peer)}"
        if KIND_APPLICATION not in attempt.kinds:
            self._refuse(attempt.done, f"{who}: tokens are for applications")
            return
        place = self._misplaced(grant.user, peer)
        if place:
            self._refuse(attempt.done, f"{who}: {place}")
            return
        self.statistics.accepted += 1
        attempt.done.authenticated(bearers.identity(grant, self._epoch), "")

    def _join(self, attempt: _Attempt, proof: bytes) -> bool:
        """Whether an equal login is being verified, so that this one gets the same answer."""
        waiting = self._waiting.get(proof)
        if waiting is None:
            return False
        if self._joined >= JOINED_MAX:
            self._refuse(attempt.done, f"{_who(attempt)}: too many logins are being verified")
        else:
            self._joined += 1
            waiting.append(attempt)
        return True

    def _is_throttled(self, attempt: _Attempt) -> bool:
        """Refuses an attempt that comes after too many failures, unless it is one of the few that
        are examined all the same."""
        user, peer, now_ms = attempt.credentials.user, attempt.peer, self._clock_ms()
        wait_ms = self._throttle.wait_ms(user, peer, now_ms)
        if wait_ms == 0 or self._throttle.take_reserved(user, peer, now_ms):
            return False
        self.statistics.throttled += 1
        self._refuse(
            attempt.done,
            f"{_who(attempt)}: too many failed logins, refused unseen for {wait_ms} ms more",
        )
        return True

    def _start_verification(
        self, is_known: bool, user: str, encoded: str, password: bytes, proof: bytes
    ) -> None:
        cost = self._settings.password_cost
        found: list[Examination] = []

        def work() -> bool:
            try:
                found.append(examine_password(encoded, password, cost))
            except (MemoryError, ValueError):  # scrypt found no memory: no proof either
                return False
            return found[0].is_right

        def verified(is_right: bool) -> None:
            self._answer(user, encoded, proof, is_right)
            if is_right and found[0].upgraded and self.upgrade is not None:
                self.upgrade(user, encoded, found[0].upgraded)

        self._examinations.add(is_known, work, verified)

    def _answer(self, user: str, encoded: str, proof: bytes, is_right: bool) -> None:
        # The user may have been changed or deleted while the password was verified.
        record = self._records.users.get(user)
        still = record is not None and is_same_password(encoded, record.password_hash)
        is_right = is_right and still
        if is_right:
            self._verified.remember(user, encoded, proof)
        attempts = self._waiting.pop(proof, [])
        self._joined -= max(0, len(attempts) - 1)
        for attempt in attempts:
            if not is_right:
                self._throttle.failed(user, attempt.peer, self._clock_ms())
            self._settle(attempt, is_right, encoded)

    def _settle(self, attempt: _Attempt, is_right: bool, encoded: str) -> None:
        record = self._records.users.get(attempt.credentials.user)
        fault = self._fault(attempt, record, is_right)
        if record is None or fault:
            self._refuse(attempt.done, f"{_who(attempt)}: {fault}")
            return
        user = attempt.credentials.user
        self._throttle.succeeded(user, attempt.peer)
        self.statistics.accepted += 1
        identity = LoggedIn(user, encoded, self._records, self._epoch)
        attempt.done.authenticated(identity, "")

    def _fault(self, attempt: _Attempt, record: UserRecord | None, is_right: bool) -> str:
        if record is None:
            return "there is no such user"
        if not is_right:
            return "the password is wrong" if record.password_hash else "the user has no password"
        if record.kind not in attempt.kinds:
            wanted = " or ".join(sorted(attempt.kinds))
            return f"a user of kind {record.kind} can't log in here, only {wanted}"
        return self._misplaced(attempt.credentials.user, attempt.peer)

    def _misplaced(self, user: str, peer: Peer) -> str:
        """Why a user may not connect from there; empty if it may."""
        if user not in self._settings.loopback_users:
            return ""
        if self._settings.is_away:
            return BROKERS_ONLY
        return "" if peer.loopback else LOOPBACK_ONLY

    def _refuse(self, done: AuthDone, reason: str) -> None:
        self.statistics.refused += 1
        done.authenticated(None, reason)


def _who(attempt: _Attempt) -> str:
    return f"user {attempt.credentials.user[:64]!r} from {_place(attempt.peer)}"


def _place(peer: Peer) -> str:
    host = f"[{peer.address}]" if ":" in peer.address else peer.address
    return f"{host}:{peer.port}"
