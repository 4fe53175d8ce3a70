"""x-consistent-hash: every message goes to one destination, messages with one hash to the same.

The binding key is the destination's weight. Destinations are chosen by weighted rendezvous: each
gets a score from the message's hash and its own name, and the highest wins. So shares are in
proportion to the weights, nothing but names and weights decides (all brokers agree), and when a
destination comes or goes only the messages that it wins or held move.
"""

from __future__ import annotations

from math import log
from typing import Final, final
from zlib import crc32

from mypy_extensions import i64

from rhizome.amqp.field_table import encode_value
from rhizome.broker.routing.bindings_and_destinations import Binding, Destination, Walk
from rhizome.broker.routing.exchange import Exchange
from rhizome.errors import PreconditionFailed

# Properties that can be hashed are passed among the headers, under this prefix and their name with
# underscores ("\0message_id"); the prefix keeps them apart from headers of that name.
PROPERTY_PREFIX: Final = "\0"
HASHABLE_PROPERTIES: Final = ("correlation_id", "message_id", "timestamp")

_U32: Final = 0xFFFFFFFF


def mix(number: i64) -> i64:
    """Scatter the bits of a 32-bit number; the products stay below 2**63."""
    number = (((number >> 16) ^ number) * 0x45D9F3B) & _U32
    number = (((number >> 16) ^ number) * 0x45D9F3B) & _U32
    return (number >> 16) ^ number


def text_hash(text: str) -> i64:
    return mix(i64(crc32(text.encode("utf-8", "surrogateescape"))))


def _value_hash(value: object) -> i64:
    """The hash of a header's value; a header that is absent hashes like an empty string."""
    if value is None:
        return text_hash("")
    if isinstance(value, str):
        return text_hash(value)
    return mix(i64(crc32(encode_value(value))))


@final
class _Share:
    """What one destination has in the hash space: the sum of the weights of its bindings."""

    destination: Destination
    seed: i64
    weight: i64

    def __init__(self, destination: Destination) -> None:
        kind = "exchange" if destination.is_exchange else "queue"
        self.destination = destination
        self.seed = text_hash(f"{kind}:{destination.name}")
        self.weight = 0

    def score(self, number: i64) -> float:
        drawn: i64 = mix((number + self.seed) & _U32)
        return float(self.weight) / -log((float(drawn) + 0.5) / 4294967296.0)


@final
class ConsistentHashExchange(Exchange):
    """One destination per message, by a hash of its key, or of a header or property."""

    _header: str
    _shares: dict[Destination, _Share]

    def __init__(
        self,
        vhost: str,
        name: str,
        kind: str = "x-consistent-hash",
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: dict[str, object] | None = None,
    ) -> None:
        super().__init__(vhost, name, kind, durable, auto_delete, internal, arguments)
        self._header = _hashed_header(self.arguments)
        self.chooses = True
        self.reads_headers = self._header != ""
        self.reads_key = not self.reads_headers
        self._shares = {}

    def match(self, key: str, headers: dict[str, object] | None, walk: Walk) -> bool:
        if not self.reads_headers:
            number = text_hash(key)
        elif headers is None:
            number = _value_hash(None)
        else:
            number = _value_hash(headers.get(self._header))
        walk.spend(len(self._shares))
        best: Destination | None = None
        best_score = -1.0
        for share in self._shares.values():
            score = share.score(number)
            if score > best_score:
                best_score = score
                best = share.destination
        if best is None:
            return False
        walk.reach(best)
        return True

    def check_binding(self, key: str, arguments: dict[str, object]) -> None:
        weight = _weight(key)
        if weight is None:
            raise PreconditionFailed(f"The binding key must be an integer: '{key}'")
        if weight < 1:
            raise PreconditionFailed("The binding key must be greater than 0")
        if weight > _U32:
            raise PreconditionFailed(f"The binding key must be at most {_U32}: '{key}'")

    def _added(self, binding: Binding) -> None:
        destination = binding.destination
        share = self._shares.get(destination)
        if share is None:
            share = _Share(destination)
            self._shares[destination] = share
        share.weight += _known_weight(binding)

    def _removed(self, binding: Binding) -> None:
        share = self._shares[binding.destination]
        share.weight -= _known_weight(binding)
        if share.weight == 0:
            del self._shares[binding.destination]


def _weight(key: str) -> int | None:
    digits = key[1:] if key[:1] in ("-", "+") else key
    if not (digits.isascii() and digits.isdigit()):
        return None
    return int(key)


def _known_weight(binding: Binding) -> i64:
    weight = _weight(binding.key)
    assert weight is not None, "check_binding comes before _added"
    return i64(weight)


def _hashed_header(arguments: dict[str, object]) -> str:
    """The name among the headers of what is hashed, or "" for the routing key."""
    header = arguments.get("hash-header")
    if isinstance(header, str) and header:
        return header
    hashed_property = arguments.get("hash-property")
    if isinstance(hashed_property, str) and hashed_property:
        return PROPERTY_PREFIX + hashed_property
    return ""


def check_hash_arguments(arguments: dict[str, object]) -> None:
    """Raise PreconditionFailed if an x-consistent-hash exchange can't be declared with these."""
    header = arguments.get("hash-header")
    hashed_property = arguments.get("hash-property")
    if header is not None and hashed_property is not None:
        raise PreconditionFailed("hash-header and hash-property are mutually exclusive")
    if hashed_property is not None and hashed_property not in HASHABLE_PROPERTIES:
        raise PreconditionFailed(f"Unsupported property: {hashed_property}")
