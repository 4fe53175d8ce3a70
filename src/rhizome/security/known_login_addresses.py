"""Known logins: from where each user has logged in with its password or certificate before.

Failures of strangers don't count against a user at a known address (`throttle`), so whoever wants
to keep an application out must not be able to make a broker forget what it knows. It survives
restarts, in a file of the data directory that only the broker's user can read, and brokers of a
cluster tell each other, so an application that fails over is known where it arrives.

The file is not encrypted: the store beside it names the users, and the log their addresses. It
holds no secret, and somebody who could write it could write the store.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from typing import Final

KNOWN_MAX: Final = 10_000
"""Pairs of user and address. When there are more, the user with most addresses loses its oldest."""

KNOWN_PER_USER_MAX: Final = 512
"""Addresses of one user; its oldest goes first."""

TOLD_AT_ONCE_MAX: Final = 100
"""Pairs that one broker tells the others at a time, about once a second."""

USER_BYTES_MAX: Final = 255
ADDRESS_CHARACTERS_MAX: Final = 64
IPV6_PREFIX_BITS: Final = 64
"""What one customer is usually given: whoever has one IPv6 address has 2**64 of them."""


def network_of(address: str) -> str:
    """What an address counts as: itself, or of IPv6 its network of 64 bits."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:ADDRESS_CHARACTERS_MAX]
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    if parsed.is_loopback:
        return str(parsed)
    return str(ipaddress.ip_network((parsed, IPV6_PREFIX_BITS), strict=False))


class KnownLogins:
    """Invariant: at most KNOWN_MAX pairs, and KNOWN_PER_USER_MAX of one user; a user's addresses
    are in the order in which it was last seen there.

    ``changed``: there is a pair that is not in the file. Only successful logins add pairs, here or
    at another broker of the cluster, and nobody adds them to another user.
    """

    def __init__(self, known_max: int = KNOWN_MAX, per_user_max: int = KNOWN_PER_USER_MAX) -> None:
        self._known_max = known_max
        self._per_user_max = per_user_max
        self._addresses: dict[str, OrderedDict[str, None]] = {}
        self._count = 0
        self._untold: OrderedDict[tuple[str, str], None] = OrderedDict()
        self.changed = False

    def __len__(self) -> int:
        return self._count

    def __contains__(self, pair: tuple[str, str]) -> bool:
        return pair[1] in self._addresses.get(pair[0], ())

    def pairs(self) -> list[tuple[str, str]]:
        return [(user, each) for user, addresses in self._addresses.items() for each in addresses]

    def add(self, user: str, address: str) -> None:
        """A user has logged in from an address; a pair that is new is told to the other brokers."""
        addresses = self._addresses.setdefault(user, OrderedDict())
        if address in addresses:
            addresses.move_to_end(address)
            return
        addresses[address] = None
        self._count += 1
        self.changed = True
        self._untold[(user, address)] = None
        if len(addresses) > self._per_user_max:
            self._drop_oldest(user)
        while self._count > self._known_max:
            self._drop_oldest(max(self._addresses, key=lambda each: len(self._addresses[each])))

    def _drop_oldest(self, user: str) -> None:
        address, _ = self._addresses[user].popitem(last=False)
        self._untold.pop((user, address), None)
        self._count -= 1
        if not self._addresses[user]:
            del self._addresses[user]

    # ---- between brokers ------------------------------------------------------------------------

    def tell_all(self) -> None:
        """Another broker has come, which may know nothing."""
        self._untold = OrderedDict.fromkeys(self.pairs())

    def take_untold(self) -> list[tuple[str, str]]:
        """Some pairs that the other brokers may not know; they count as told then."""
        told: list[tuple[str, str]] = []
        while self._untold and len(told) < TOLD_AT_ONCE_MAX:
            told.append(self._untold.popitem(last=False)[0])
        return told

    def hear(self, told: object) -> None:
        """What another broker has told, or a file holds: pairs. Anything else is ignored."""
        if not isinstance(told, list):
            return
        for pair in told[: self._known_max]:
            if isinstance(pair, list) and len(pair) == 2 and _is_pair(*pair):
                if (pair[0], pair[1]) not in self:
                    self.add(pair[0], pair[1])


def _is_pair(user: object, address: object) -> bool:
    return (
        isinstance(user, str)
        and isinstance(address, str)
        and 0 < len(user.encode("utf-8", "surrogateescape")) <= USER_BYTES_MAX
        and 0 < len(address) <= ADDRESS_CHARACTERS_MAX
    )
