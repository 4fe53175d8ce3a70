"""Console sessions: who has logged in to the console, and until when.

A session is a secret in a cookie that scripts can't read and other sites can't send (HttpOnly,
SameSite=Strict), and a second secret, the guard, that the console's own pages send along with every
change: a request that another page makes the browser send has the cookie at most.

A session ends when the console is idle for a while, after a day's work at the latest, and at once
if its user is deleted or gets another password. What the user may do is looked up at each request.
Sessions are in the memory of one broker: a restart ends them.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final

IDLE_SECONDS_MAX: Final = 30 * 60
SECONDS_MAX: Final = 12 * 3600
LOGINS_MAX: Final = 1000
"""Of the user who has most sessions, the one that was idle for longest is ended."""

COOKIE_PREFIX: Final = "rhizome_"
GUARD_HEADER: Final = "x-rhizome-console"
IDLE_HEADER: Final = "x-rhizome-idle"
"""The header of requests that the console makes by itself, without an action of its user."""


@dataclass(slots=True)
class ConsoleSession:
    """``password_hash``: the user's at login; a different one ends the session. ``token``: the
    permissions of an access token, if the user logged in with one."""

    user: str
    password_hash: str
    guard: str
    began: float
    touched: float
    token: str


class ConsoleSessions:
    """Invariant: at most LOGINS_MAX sessions, by the hash of their secret; only the browser keeps
    the secret itself."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._logins: dict[bytes, ConsoleSession] = {}

    def __len__(self) -> int:
        return len(self._logins)

    def begin(self, user: str, password_hash: str, token: str = "") -> tuple[str, ConsoleSession]:
        """A new session and its secret."""
        self._drop_stale()
        if len(self._logins) >= LOGINS_MAX:
            self._make_room()
        secret = secrets.token_urlsafe(32)
        now = self._clock()
        login = ConsoleSession(user, password_hash, secrets.token_urlsafe(24), now, now, token)
        self._logins[_key(secret)] = login
        return secret, login

    def _make_room(self) -> None:
        """End a session, so that no user loses one because another logs in again and again."""
        counts = Counter(login.user for login in self._logins.values())
        most = max(counts.values())
        candidates = {
            key: login.touched for key, login in self._logins.items() if counts[login.user] == most
        }
        del self._logins[min(candidates, key=candidates.__getitem__)]

    def find(self, secret: str, touch: bool) -> ConsoleSession | None:
        """The session that a cookie's secret belongs to, if it has not ended."""
        key = _key(secret)
        login = self._logins.get(key)
        if login is None:
            return None
        if self._is_stale(login):
            del self._logins[key]
            return None
        if touch:
            login.touched = self._clock()
        return login

    def end(self, secret: str) -> None:
        self._logins.pop(_key(secret), None)

    def left_seconds(self, login: ConsoleSession) -> int:
        """How long a session lasts if the console stays idle."""
        now = self._clock()
        left = min(login.touched + IDLE_SECONDS_MAX, login.began + SECONDS_MAX) - now
        return max(0, int(left))

    def _is_stale(self, login: ConsoleSession) -> bool:
        now = self._clock()
        return now - login.touched > IDLE_SECONDS_MAX or now - login.began > SECONDS_MAX

    def _drop_stale(self) -> None:
        self._logins = {
            key: login for key, login in self._logins.items() if not self._is_stale(login)
        }


def guards_match(login: ConsoleSession, shown: str) -> bool:
    return hmac.compare_digest(login.guard.encode(), shown.encode("utf-8", "replace"))


def cookie_name(port: int) -> str:
    """Cookies don't tell ports apart, and brokers on one host must not log each other out."""
    return f"{COOKIE_PREFIX}{port}"


def _key(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()
