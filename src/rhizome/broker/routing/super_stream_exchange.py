"""x-super-stream: one stream in several partitions; a message goes to one of them, by its key.

As in RabbitMQ: the binding key is the number of the partition, and murmur3 of the routing key,
modulo the number of partitions, is the one that a message goes to. RabbitMQ's stream clients choose
with the same function, so they and this exchange agree.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from rhizome.broker.routing.bindings_and_destinations import Binding, Destination, Walk
from rhizome.broker.routing.exchange import Exchange
from rhizome.errors import PreconditionFailed

SUPER_STREAM_KIND: Final = "x-super-stream"
SEED: Final = 104729

_U32: Final = 0xFFFFFFFF


def _times(a: i64, b: i64) -> i64:
    """The product of two 32-bit numbers in 32 bits, without passing through more than 63."""
    return ((a & 0xFFFF) * b + ((((a >> 16) * b) & 0xFFFF) << 16)) & _U32


def _turned(number: i64, bits: i64) -> i64:
    return ((number << bits) | (number >> (32 - bits))) & _U32


def murmur3(data: bytes, seed: i64) -> i64:
    """MurmurHash3 of 32 bits."""
    found: i64 = seed
    size: i64 = len(data)
    at: i64 = 0
    while at + 4 <= size:
        part: i64 = data[at] | data[at + 1] << 8 | data[at + 2] << 16 | data[at + 3] << 24
        found ^= _times(_turned(_times(part, 0xCC9E2D51), 15), 0x1B873593)
        found = (_turned(found, 13) * 5 + 0xE6546B64) & _U32
        at += 4
    rest: i64 = 0
    shift: i64 = 0
    while at < size:
        rest |= i64(data[at]) << shift
        shift += 8
        at += 1
    if shift > 0:
        found ^= _times(_turned(_times(rest, 0xCC9E2D51), 15), 0x1B873593)
    found ^= size
    found = _times(found ^ (found >> 16), 0x85EBCA6B)
    found = _times(found ^ (found >> 13), 0xC2B2AE35)
    return found ^ (found >> 16)


@final
class SuperStreamExchange(Exchange):
    """One partition per message, by a hash of its key.

    Invariant: ``_partitions`` has the destinations of all bindings by their number.
    """

    _partitions: dict[str, list[Destination]]
    _count: i64

    def __init__(
        self,
        vhost: str,
        name: str,
        kind: str = SUPER_STREAM_KIND,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: dict[str, object] | None = None,
    ) -> None:
        super().__init__(vhost, name, kind, durable, auto_delete, internal, arguments)
        self.chooses = True
        self._partitions = {}
        self._count = 0

    def match(self, key: str, headers: dict[str, object] | None, walk: Walk) -> bool:
        if self._count == 0:
            return False
        number = murmur3(key.encode("utf-8", "surrogateescape"), SEED) % self._count
        found = self._partitions.get(str(number))
        if found is None:
            return False
        walk.reach(found[0])
        return True

    def check_binding(self, key: str, arguments: dict[str, object]) -> None:
        if not (key.isascii() and key.isdigit() and str(int(key)) == key):
            raise PreconditionFailed(f"The binding key must be an integer: '{key}'")

    def _added(self, binding: Binding) -> None:
        self._partitions.setdefault(binding.key, []).append(binding.destination)
        self._count += 1

    def _removed(self, binding: Binding) -> None:
        left = self._partitions[binding.key]
        left.remove(binding.destination)
        if len(left) == 0:
            del self._partitions[binding.key]
        self._count -= 1


def partitions_of(exchange: Exchange) -> list[Destination]:
    """The streams of a partitioned stream, in the order of their numbers."""
    bindings = [each for each in exchange.bindings() if each.key.isdigit()]
    bindings.sort(key=_number_of)
    return [binding.destination for binding in bindings]


def _number_of(binding: Binding) -> int:
    return int(binding.key)
