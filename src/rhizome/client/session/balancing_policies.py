"""Load-balancing policies: in which order a session tries the brokers that it knows (J9).

A policy is a callable that gets the addresses and returns them in the order to try. A session calls
it when it connects for the first time, and for each round of tries after its broker was lost. Then
it ranks only the brokers that the failover map doesn't: first comes the current broker, then those
that take over from it.

Example:
    def nearest_first(addresses: Sequence[Address]) -> Sequence[Address]:
        return sorted(addresses, key=lambda address: not address.host.startswith("10.1."))

    async with open_session("amqp://b1,b2,b3/", policy=nearest_first) as orders: ...
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from rhizome.client.connection_uri import Address

Policy = Callable[[Sequence[Address]], Sequence[Address]]


def in_order(addresses: Sequence[Address]) -> Sequence[Address]:
    """As they were given."""
    return addresses


def at_random(addresses: Sequence[Address]) -> Sequence[Address]:
    """A random order for each session, so that many sessions spread over the brokers."""
    return random.sample(list(addresses), len(addresses))


class RoundRobin:
    """Begins with the next address each time. Sessions that share it are spread evenly."""

    def __init__(self) -> None:
        self._turn = 0

    def __call__(self, addresses: Sequence[Address]) -> Sequence[Address]:
        if not addresses:
            return addresses
        first = self._turn % len(addresses)
        self._turn += 1
        return [*addresses[first:], *addresses[:first]]


_NAMED: Final[dict[str, Callable[[], Policy]]] = {
    "in-order": lambda: in_order,
    "random": lambda: at_random,
    "round-robin": RoundRobin,
}


def policy_of(wanted: str | Policy) -> Policy:
    """A policy by its name, or the one that was given."""
    if not isinstance(wanted, str):
        return wanted
    made = _NAMED.get(wanted)
    if made is None:
        raise ValueError(f"there is no policy '{wanted}'; known are {', '.join(_NAMED)}")
    return made()
