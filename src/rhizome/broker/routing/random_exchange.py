"""x-random, x-local-random and x-modulus-hash: each message goes to one of all bound destinations.

x-random draws one, x-local-random one of those that are active on the broker to which the message
was published; the binding keys don't count. x-modulus-hash takes the hash of the routing key modulo
the number of destinations, so one key goes to one destination as long as the bindings stay. The
core has no chance of its own: draws are the scattered bits of a counter.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from rhizome.broker.routing.bindings_and_destinations import Binding, Destination, Walk
from rhizome.broker.routing.consistent_hash_exchange import mix, text_hash
from rhizome.broker.routing.exchange import Exchange

RANDOM_KIND: Final = "x-random"
LOCAL_RANDOM_KIND: Final = "x-local-random"
MODULUS_HASH_KIND: Final = "x-modulus-hash"
CHOOSING_KINDS: Final = (RANDOM_KIND, LOCAL_RANDOM_KIND, MODULUS_HASH_KIND)

_U32: Final = 0xFFFFFFFF


@final
class ChoosingExchange(Exchange):
    """One destination per message, whatever the binding keys are.

    Invariant: ``_counts`` has the number of bindings of each destination, and ``_ordered`` the
    destinations by kind and name, so that every broker has the same order.
    """

    _counts: dict[Destination, int]
    _ordered: list[Destination]
    _drawn: i64
    _local: bool
    _hashes: bool

    def __init__(
        self,
        vhost: str,
        name: str,
        kind: str = RANDOM_KIND,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: dict[str, object] | None = None,
        routing: str = RANDOM_KIND,
    ) -> None:
        super().__init__(vhost, name, kind, durable, auto_delete, internal, arguments)
        self.chooses = True
        self._hashes = routing == MODULUS_HASH_KIND
        self._local = routing == LOCAL_RANDOM_KIND
        self.reads_key = self._hashes
        # A route that is drawn can't be kept for the next message.
        self.reads_headers = not self._hashes
        self._counts = {}
        self._ordered = []
        self._drawn = text_hash(name)

    def match(self, key: str, headers: dict[str, object] | None, walk: Walk) -> bool:
        among = self._ordered
        if self._local:
            walk.spend(len(among))
            among = [each for each in among if each.is_active_here()]
        count: i64 = len(among)
        if count == 0:
            return False
        if self._hashes:
            walk.reach(among[text_hash(key) % count])
        else:
            self._drawn = (self._drawn + 1) & _U32
            walk.reach(among[mix(self._drawn) % count])
        return True

    def _added(self, binding: Binding) -> None:
        destination = binding.destination
        self._counts[destination] = self._counts.get(destination, 0) + 1
        if self._counts[destination] == 1:
            self._ordered.append(destination)
            self._ordered.sort(key=_place)

    def _removed(self, binding: Binding) -> None:
        destination = binding.destination
        left = self._counts[destination] - 1
        if left == 0:
            del self._counts[destination]
            self._ordered.remove(destination)
        else:
            self._counts[destination] = left


def _place(destination: Destination) -> tuple[bool, str]:
    return destination.is_exchange, destination.name
