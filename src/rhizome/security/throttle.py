"""Slowing down whoever guesses passwords, without locking out whoever knows them.

Failures are counted per user and per address. After a number of free ones each further failure
doubles the time for which attempts are refused unseen, up to a maximum; a refused attempt costs the
broker nothing and doesn't lengthen the wait. A success clears the user's count; after a quiet
`forget_ms` a count is gone by itself.

If that were all, anybody could keep a user out by failing on purpose. So an address from which a
user has logged in before has a count of its own with that user, and neither that user's count nor
the address's applies to the pair: strangers can't slow down an application that is known to work.
Loopback addresses have no count of their own, since everything on the host (or behind a proxy on
it) shares them; the count per user still holds there.

Invariant: every table is bounded; when one is full its oldest entry goes.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from rhizome.broker.access import Peer

ENTRIES_MAX: Final = 10_000
_DOUBLINGS_MAX: Final = 40

# (kind, user or "", address or "")
_Key = tuple[str, str, str]
_NO_ADDRESS: Final = ("none", "", "")


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


class LoginThrottle:
    def __init__(self, settings: ThrottleSettings, entries_max: int = ENTRIES_MAX) -> None:
        self.settings = settings
        self._entries_max = entries_max
        self._counts: OrderedDict[_Key, _Count] = OrderedDict()
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counts) + len(self._known)

    def wait_ms(self, user: str, peer: Peer, now_ms: int) -> int:
        """How long attempts like this one are refused yet; 0 if this one may be examined."""
        wait = 0
        for key in (self._user_key(user, peer), self._address_key(user, peer)):
            count = self._counts.get(key)
            if count is not None and not self._forgotten(count, now_ms):
                wait = max(wait, count.refused_until_ms - now_ms)
        return wait

    def started(self, user: str, peer: Peer, now_ms: int) -> None:
        """An attempt is about to be examined: a failure of this user until it proves to be none.

        Counted late, a guesser could have any number of attempts examined before the first fails.
        """
        self._count(self._user_key(user, peer), now_ms)

    def failed(self, user: str, peer: Peer, now_ms: int) -> None:
        """An attempt that was `started` has failed."""
        key = self._address_key(user, peer)
        if key != _NO_ADDRESS:
            self._count(key, now_ms)

    def succeeded(self, user: str, peer: Peer) -> None:
        """The user logged in from there, and is known there from now on."""
        self._counts.pop(("pair", user, peer.address), None)
        self._counts.pop(("user", user, ""), None)
        self._known[(user, peer.address)] = None
        self._known.move_to_end((user, peer.address))
        while len(self._known) > self._entries_max:
            self._known.popitem(last=False)

    def _count(self, key: _Key, now_ms: int) -> None:
        count = self._counts.pop(key, None)
        if count is None or self._forgotten(count, now_ms):
            count = _Count(0, now_ms, now_ms)
        count.failures += 1
        count.last_ms = now_ms
        count.refused_until_ms = now_ms + self._delay_ms(count.failures)
        self._counts[key] = count
        while len(self._counts) > self._entries_max:
            self._counts.popitem(last=False)

    def _user_key(self, user: str, peer: Peer) -> _Key:
        if (user, peer.address) in self._known:
            return "pair", user, peer.address
        return "user", user, ""

    def _address_key(self, user: str, peer: Peer) -> _Key:
        if peer.loopback or (user, peer.address) in self._known:
            return _NO_ADDRESS
        return "address", "", peer.address

    def _forgotten(self, count: _Count, now_ms: int) -> bool:
        return now_ms - count.last_ms > self.settings.forget_ms

    def _delay_ms(self, failures: int) -> int:
        beyond = failures - self.settings.free_failures
        if beyond <= 0:
            return 0
        delay = self.settings.delay_ms << min(beyond - 1, _DOUBLINGS_MAX)
        return min(delay, self.settings.delay_ms_max)
