"""JWKS cache: the keys of one issuer that come over the network, and when they are fetched.

A login uses what is here and never waits. Who fetches (`rhizome.server.token_issuers`) asks
`wants_fetch` now and then, says `begun`, and later `fetched` or `failed`:

- at first at once, then every `interval_ms`;
- after a failure in `RETRY_MS_MIN`, then in twice that, up to `RETRY_MS_MAX` or the interval;
- soon after a token that names a key which is not here, but not within `UNKNOWN_KEY_MS` of the
  beginning of the last fetch: strangers can make up as many names as they like.

What was fetched last is the whole truth: a key that is no longer in the set verifies nothing more.
While the issuer can't be reached the keys stay, for `kept_ms` after the last success.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rhizome.security.token_keys import PublishedKeys, TokenKey

UNKNOWN_KEY_MS: Final = 30_000
"""The least time between two fetches that tokens of unknown keys cause."""

RETRY_MS_MIN: Final = 1_000
RETRY_MS_MAX: Final = 60_000

STUCK_MS: Final = 60_000
"""A fetch that takes longer hangs where no timeout counts, which is the resolution of a name."""

REASON_CHARS_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class KeyLocation:
    """Where the keys of an issuer are. Without ``jwks_url`` its discovery document says it."""

    issuer: str
    jwks_url: str = ""
    ca: str = ""
    """A file with the authorities that its certificate may be of; empty: those of the system."""


@dataclass(frozen=True, slots=True)
class FetchTimes:
    interval_ms: int = 600_000
    kept_ms: int = 86_400_000


class IssuerKeys:
    """Invariant: at most one fetch is under way, between `begun` and `fetched` or `failed`."""

    def __init__(
        self, name: str, location: KeyLocation, times: FetchTimes, clock_ms: Callable[[], int]
    ) -> None:
        self.name = name
        self.location = location
        self.times = times
        self.error = ""
        """Why the last fetch failed; empty if it didn't."""
        self.fetches = 0
        self.failures = 0
        self._clock_ms = clock_ms
        self.published = PublishedKeys(())
        """What was fetched last, which may have become too old to count."""
        self._due_ms = clock_ms()
        self._begun_ms = 0
        self._is_fetching = False
        self._is_missed = False
        self._fetched_ms: int | None = None
        self._retry_ms = RETRY_MS_MIN

    # ---- for logins -----------------------------------------------------------------------------

    def keys(self) -> tuple[TokenKey, ...]:
        """The keys that count now."""
        age_ms = self.age_ms
        return self.published.keys if age_ms is not None and age_ms < self.times.kept_ms else ()

    def missed(self) -> None:
        """A token names a key that is not here."""
        self._is_missed = True
        if not self._is_fetching:
            self._hurry()

    # ---- for those who fetch --------------------------------------------------------------------

    def wants_fetch(self) -> bool:
        return not self._is_fetching and self._clock_ms() >= self._due_ms

    def fetch_soon(self) -> None:
        """An administrator wants it now."""
        self._due_ms = self._clock_ms()

    def begun(self) -> None:
        assert not self._is_fetching
        self._is_fetching = True
        self._is_missed = False
        self._begun_ms = self._clock_ms()

    def fetched(self, published: PublishedKeys) -> None:
        self.published = published
        self._fetched_ms = self._clock_ms()
        self.error = ""
        self.fetches += 1
        self._retry_ms = RETRY_MS_MIN
        self._ended(self.times.interval_ms)

    def failed(self, reason: str) -> None:
        self.error = reason[:REASON_CHARS_MAX]
        self.failures += 1
        self._ended(min(self._retry_ms, self.times.interval_ms))
        self._retry_ms = min(2 * self._retry_ms, RETRY_MS_MAX)

    def _ended(self, wait_ms: int) -> None:
        self._is_fetching = False
        self._due_ms = self._clock_ms() + wait_ms
        if self._is_missed:
            self._hurry()

    def _hurry(self) -> None:
        self._due_ms = min(self._due_ms, self._begun_ms + UNKNOWN_KEY_MS)

    # ---- for those who watch --------------------------------------------------------------------

    @property
    def url(self) -> str:
        return self.location.jwks_url or self.location.issuer

    @property
    def keys_count(self) -> int:
        return len(self.keys())

    @property
    def left_out(self) -> tuple[str, ...]:
        """The keys of the set that can't be used, and why."""
        return self.published.left_out

    @property
    def age_ms(self) -> int | None:
        """How long ago the keys were fetched; None: they never were."""
        return None if self._fetched_ms is None else self._clock_ms() - self._fetched_ms

    @property
    def trouble(self) -> str:
        """Why there are no newer keys; empty if there is no reason to worry."""
        running_ms = self._clock_ms() - self._begun_ms if self._is_fetching else 0
        if running_ms >= STUCK_MS:
            return f"a fetch has not ended for {running_ms // 1000} s; is a name server away?"
        return self.error
