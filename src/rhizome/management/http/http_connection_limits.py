"""ConnectionTable: the open HTTP connections of a broker, and who gets one when there are too many.

A stranger may open any number of sockets and say nothing. So a new connection is never refused
because of an idle one. When an address has its maximum, its own connection that has been idle for
longest is closed; when the broker has its maximum, that of the address with the most idle ones.
Only if every connection has a request in progress does a new one go into the reserve, which answers
health checks and nothing else: orchestrators must not restart a broker because it is busy.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Final, Protocol

RESERVE_MAX: Final = 64
"""Connections beyond the maximum, for health checks."""

RESERVE_PER_ADDRESS_MAX: Final = 8


IPV6_PREFIX: Final = 64
"""How many bits of an IPv6 address count: one host has all addresses that begin with them."""


def party_of(address: str) -> str:
    """The key under which the connections of an address are counted."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((int(found), IPV6_PREFIX), strict=False))


class HttpLimits(Protocol):
    @property
    def connections_max(self) -> int: ...
    @property
    def connections_per_address_max(self) -> int: ...


class Place:
    """One connection in the table. Invariant: it is among the idle ones of its address while it has
    no whole request in progress."""

    __slots__ = ("address", "close", "reserved")

    def __init__(self, address: str, close: Callable[[str], None], reserved: bool) -> None:
        self.address = address
        self.close = close
        self.reserved = reserved


class _Address:
    """The connections of one address. ``idle`` has those without a request, longest first."""

    __slots__ = ("idle", "open")

    def __init__(self) -> None:
        self.open = 0
        self.idle: dict[Place, None] = {}


class ConnectionTable:
    """Invariants: no more than `connections_max` ordinary connections, of one address no more than
    `connections_per_address_max`, and no more than the maxima above in the reserve."""

    def __init__(self, limits: Callable[[], HttpLimits]) -> None:
        self._limits = limits
        self._ordinary: dict[str, _Address] = {}
        self._reserve: dict[str, _Address] = {}
        self._ordinary_count = 0
        self._reserve_count = 0

    def __len__(self) -> int:
        return self._ordinary_count + self._reserve_count

    def enter(self, address: str, close: Callable[[str], None]) -> Place | None:
        """A place for a new connection, which is idle; None if there is none even in the reserve.

        ``close`` is called with the reason if the place is needed for another.
        """
        limits = self._limits()
        address = party_of(address)
        if self._has_room(self._ordinary, address, limits.connections_per_address_max, limits):
            return self._placed(Place(address, close, False))
        if self._has_room(self._reserve, address, RESERVE_PER_ADDRESS_MAX, None):
            return self._placed(Place(address, close, True))
        return None

    def begin_request(self, place: Place) -> None:
        """A whole request has come."""
        self._holder(place).idle.pop(place, None)

    def end_request(self, place: Place) -> None:
        """The request is answered."""
        self._holder(place).idle[place] = None

    def leave(self, place: Place) -> None:
        """The connection is closed; a second call has no effect."""
        table = self._reserve if place.reserved else self._ordinary
        holder = table.get(place.address)
        if holder is None or place.close is _gone:
            return
        place.close = _gone
        holder.idle.pop(place, None)
        holder.open -= 1
        if not holder.open:
            del table[place.address]
        if place.reserved:
            self._reserve_count -= 1
        else:
            self._ordinary_count -= 1

    def _has_room(
        self,
        table: dict[str, _Address],
        address: str,
        per_address_max: int,
        limits: HttpLimits | None,
    ) -> bool:
        """Whether one more fits, if need be in place of an idle one."""
        own = table.get(address)
        if own is not None and own.open >= per_address_max:
            return self._evict(own, "its address has too many")
        count = self._reserve_count if limits is None else self._ordinary_count
        if count < (RESERVE_MAX if limits is None else limits.connections_max):
            return True
        most = max(table.values(), key=lambda each: len(each.idle), default=None)
        return most is not None and self._evict(most, "there are too many")

    def _evict(self, holder: _Address, why: str) -> bool:
        longest = next(iter(holder.idle), None)
        if longest is None:
            return False
        close = longest.close
        self.leave(longest)
        close(f"{why} connections, and it was idle for longest")
        return True

    def _placed(self, place: Place) -> Place:
        table = self._reserve if place.reserved else self._ordinary
        holder = table.setdefault(place.address, _Address())
        holder.open += 1
        holder.idle[place] = None
        if place.reserved:
            self._reserve_count += 1
        else:
            self._ordinary_count += 1
        return place

    def _holder(self, place: Place) -> _Address:
        table = self._reserve if place.reserved else self._ordinary
        return table.get(place.address) or _Address()


def _gone(why: str) -> None:
    """Takes the place of `Place.close` once the connection is closed."""
