"""Slowing down whoever guesses passwords, without locking out whoever knows them.

Failures are counted per user and per address. After a number of free ones each further failure
doubles the time for which attempts are refused unseen, up to a maximum; a refused attempt costs the
broker nothing and doesn't lengthen the wait. A success clears the user's count; after a quiet
`forget_ms` a count is gone by itself.

If that were all, anybody could keep a user out by failing on purpose. So:

- An address from which a user has logged in before (`KnownLogins`) has a count of its own with that
  user, and neither that user's count nor the address's applies to the pair: strangers elsewhere
  can't slow down an application that is known to work.
- While a user's count refuses attempts, one a second (`FRESH_EVERY_MS`) is examined nonetheless, of
  addresses that have not failed with that user. So the right password from a new place gets through
  while the user is under attack, unless more than that come from places that are new as well.
- While a known pair's own count refuses attempts, because somebody at that very address guesses,
  one in `KNOWN_EVERY_MS` is examined nonetheless.

Loopback addresses have no count of their own, and always count as new: everything on the host, or
behind a proxy on it, shares them, so one application with a wrong password would keep all others
out. The counts per user hold there too, and so does the limit of what waits (`examinations`).

Access tokens can't be guessed at. What comes with one says nothing about a user, so bad ones count
for their address alone, apart from passwords.

IPv6 addresses count by their networks of 64 bits, of which an attacker has all addresses.

Invariant: every table is bounded; when one is full its oldest entry goes.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from rhizome.broker.access.auth_interface import Peer
from rhizome.security.known_login_addresses import KnownLogins, network_of

ENTRIES_MAX: Final = 10_000
"""Counts of failures that are kept."""

FRESH_EVERY_MS: Final = 1_000
KNOWN_EVERY_MS: Final = 200

_DOUBLINGS_MAX: Final = 40

# (kind, user or "", network or "")
_Key = tuple[str, str, str]
_NO_ADDRESS: Final = ("none", "", "")
_USER: Final = "user"
_PAIR: Final = "pair"
_STRANGER: Final = "stranger"
_ADDRESS: Final = "address"
_BEARER: Final = "bearer"


@dataclass(frozen=True, slots=True)
class ThrottleSettings:
    free_failures: int = 10
    delay_ms: int = 250
    delay_ms_max: int = 30_000
    forget_ms: int = 600_000


@dataclass(slots=True)
class _Count:
    failures: int
    last_ms: int
    refused_until_ms: int
    reserved_from_ms: int
    """When the next attempt is examined though the count refuses them."""


class LoginThrottle:
    def __init__(
        self,
        settings: ThrottleSettings,
        entries_max: int = ENTRIES_MAX,
        known: KnownLogins | None = None,
    ) -> None:
        self.settings = settings
        self.known = KnownLogins() if known is None else known
        self._entries_max = entries_max
        self._counts: OrderedDict[_Key, _Count] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counts)

    def knows(self, user: str, peer: Peer) -> bool:
        """Whether the user has logged in from there before."""
        return (user, network_of(peer.address)) in self.known

    def wait_ms(self, user: str, peer: Peer, now_ms: int) -> int:
        """How long attempts like this one are refused yet; 0 if this one may be examined."""
        return max(
            self._wait_of(self._user_key(user, peer), now_ms),
            self._wait_of(self._address_key(user, peer), now_ms),
        )

    def take_reserved(self, user: str, peer: Peer, now_ms: int) -> bool:
        """Whether an attempt that has to wait is examined nonetheless; then the next is not."""
        if self._wait_of(self._address_key(user, peer), now_ms) > 0:
            return False
        key = self._user_key(user, peer)
        if key[0] == _USER and not self._is_fresh(user, peer, now_ms):
            return False
        count = self._counts.get(key)
        if count is None or now_ms < count.reserved_from_ms:
            return False
        every_ms = FRESH_EVERY_MS if key[0] == _USER else KNOWN_EVERY_MS
        count.reserved_from_ms = now_ms + every_ms
        return True

    def started(self, user: str, peer: Peer, now_ms: int) -> None:
        """An attempt is about to be examined: a failure of this user until it proves to be none.

        Counted late, a guesser could have any number of attempts examined before the first fails.
        """
        key = self._user_key(user, peer)
        self._count(key, now_ms)
        if key[0] == _USER:
            self._count((_STRANGER, user, network_of(peer.address)), now_ms)

    def failed(self, user: str, peer: Peer, now_ms: int) -> None:
        """An attempt that was `started` has failed."""
        key = self._address_key(user, peer)
        if key != _NO_ADDRESS:
            self._count(key, now_ms)

    def succeeded(self, user: str, peer: Peer) -> None:
        """The user has proved who it is from there, and is known there from now on."""
        network = network_of(peer.address)
        for key in ((_PAIR, user, network), (_STRANGER, user, network), (_USER, user, "")):
            self._counts.pop(key, None)
        self.known.add(user, network)

    # ---- access tokens --------------------------------------------------------------------------

    def bearer_wait_ms(self, peer: Peer, now_ms: int) -> int:
        """How long access tokens from this address are refused yet."""
        return self._wait_of(self._bearer_key(peer), now_ms)

    def bearer_failed(self, peer: Peer, now_ms: int) -> None:
        key = self._bearer_key(peer)
        if key != _NO_ADDRESS:
            self._count(key, now_ms)

    # ---- counts ---------------------------------------------------------------------------------

    def _wait_of(self, key: _Key, now_ms: int) -> int:
        count = self._counts.get(key)
        if count is None or self._forgotten(count, now_ms):
            return 0
        return max(0, count.refused_until_ms - now_ms)

    def _is_fresh(self, user: str, peer: Peer, now_ms: int) -> bool:
        if peer.loopback:
            return True
        count = self._counts.get((_STRANGER, user, network_of(peer.address)))
        return count is None or self._forgotten(count, now_ms)

    def _count(self, key: _Key, now_ms: int) -> None:
        count = self._counts.pop(key, None)
        if count is None or self._forgotten(count, now_ms):
            count = _Count(0, now_ms, now_ms, now_ms)
        count.failures += 1
        count.last_ms = now_ms
        count.refused_until_ms = now_ms + self._delay_ms(count.failures)
        self._counts[key] = count
        while len(self._counts) > self._entries_max:
            self._counts.popitem(last=False)

    def _user_key(self, user: str, peer: Peer) -> _Key:
        if self.knows(user, peer):
            return _PAIR, user, network_of(peer.address)
        return _USER, user, ""

    def _address_key(self, user: str, peer: Peer) -> _Key:
        if peer.loopback or self.knows(user, peer):
            return _NO_ADDRESS
        return _ADDRESS, "", network_of(peer.address)

    def _bearer_key(self, peer: Peer) -> _Key:
        return _NO_ADDRESS if peer.loopback else (_BEARER, "", network_of(peer.address))

    def _forgotten(self, count: _Count, now_ms: int) -> bool:
        return now_ms - count.last_ms > self.settings.forget_ms

    def _delay_ms(self, failures: int) -> int:
        beyond = failures - self.settings.free_failures
        if beyond <= 0:
            return 0
        delay = self.settings.delay_ms << min(beyond - 1, _DOUBLINGS_MAX)
        return min(delay, self.settings.delay_ms_max)
