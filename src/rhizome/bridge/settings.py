"""What one bridge is to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from rhizome.bridge.errors import InvalidBridge
from rhizome.client import InvalidUri, parse_uris

PREFETCH_DEFAULT: Final = 500
PREFETCH_MAX: Final = 65_535
HOPS_MAX_DEFAULT: Final = 4
RETRY_S_MAX_DEFAULT: Final = 10.0
CONFIRM_TIMEOUT_S_DEFAULT: Final = 60.0
DRAIN_S_DEFAULT: Final = 30.0
# The name of the bridge's queue and its message ids, with what is added, fit in a short string.
ID_BYTES_MAX: Final = 128
KEY_DEFAULT: Final = "#"


class Refused(Enum):
    """What becomes of a message that the destination won't take.

    KEEP: it stays where it is, and with it what is behind; the bridge tries again and again.
    DEAD_LETTER: it is rejected, and goes to the dead letter exchange of the queue that it is in.
    DROP: it is acknowledged, and gone.
    """

    KEEP = "keep"
    DEAD_LETTER = "dead-letter"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class BridgeSettings:
    """One bridge: from a queue or an exchange to a queue or an exchange.

    Exactly one of `queue` and `exchange` is set, and exactly one of `to_queue` and `to_exchange`
    has an effect: by default the destination has the name and kind of the source.
    `routing_key` None keeps the key that a message came with.

    With `makes_queue` and `makes_to_queue` the queues of either end are declared, durable and with
    `arguments` or `to_arguments`, if they are missing. `unbinds` are pairs of exchange and key that
    the bridge's own queue had once. `forwarded` is put before what the header `x-shovelled` lists.
    `consumer_tag` names the consumer at the source, for those who list consumers; with a `priority`
    below 0 other consumers of the queue come first.
    """

    id: str
    source_uri: str = field(repr=False)
    destination_uri: str = field(repr=False)
    queue: str = ""
    exchange: str = ""
    keys: tuple[str, ...] = ()
    to_queue: str = ""
    to_exchange: str = ""
    to_key: str | None = None
    prefetch: int = PREFETCH_DEFAULT
    dedup: bool = True
    content_ids: bool = False
    hops_max: int = HOPS_MAX_DEFAULT
    refused: Refused = Refused.KEEP
    exclusive: bool = False
    arguments: dict[str, object] = field(default_factory=dict)
    source_name: str = ""
    destination_name: str = ""
    retry_s_max: float = RETRY_S_MAX_DEFAULT
    confirm_timeout_s: float = CONFIRM_TIMEOUT_S_DEFAULT
    drain_s: float = DRAIN_S_DEFAULT
    makes_queue: bool = False
    makes_to_queue: bool = False
    to_arguments: dict[str, object] = field(default_factory=dict)
    unbinds: tuple[tuple[str, str], ...] = ()
    forwarded: dict[str, object] = field(default_factory=dict)
    consumer_tag: str = ""
    priority: int = 0

    @property
    def source_queue(self) -> str:
        """The queue that is consumed; a bridge that starts at an exchange has one of its own."""
        return self.queue or f"bridge.{self.id}"

    @property
    def consumer_arguments(self) -> dict[str, object] | None:
        """What the consumer at the source is subscribed with."""
        return {"x-priority": self.priority} if self.priority else None

    @property
    def binding_keys(self) -> tuple[str, ...]:
        """The keys that bind the bridge's own queue to the exchange."""
        return self.keys or (KEY_DEFAULT,)

    @property
    def target_queue(self) -> str:
        """The queue to publish to, or "" if it is an exchange."""
        return self.to_queue or ("" if self.to_exchange else self.queue)

    @property
    def target_exchange(self) -> str:
        """The exchange to publish to; "" is the default one, for a target queue."""
        return "" if self.target_queue else self.to_exchange or self.exchange

    @property
    def source_label(self) -> str:
        """The source in words."""
        return f"queue '{self.queue}'" if self.queue else f"exchange '{self.exchange}'"

    @property
    def target_label(self) -> str:
        """The destination in words."""
        if self.target_queue:
            return f"queue '{self.target_queue}'"
        return f"exchange '{self.target_exchange}'"

    def check(self) -> None:
        """Raise InvalidBridge with the first thing that is wrong."""
        for problem in self._problems():
            raise InvalidBridge(f"bridge '{self.id}': {problem}")

    def _problems(self) -> Iterator[str]:
        if not self.id or len(self.id.encode()) > ID_BYTES_MAX:
            yield f"the id must have 1 to {ID_BYTES_MAX} bytes; give a short one"
        yield from _uri_problems("from", self.source_uri)
        yield from _uri_problems("to", self.destination_uri)
        if bool(self.queue) == bool(self.exchange):
            yield "give either a queue or an exchange to take messages from"
        if self.queue and self.keys:
            yield "keys bind to an exchange; leave them out, or give an exchange instead of a queue"
        if self.queue and self.arguments and not self.makes_queue:
            yield "arguments are for the bridge's own queue; leave them out, or give an exchange"
        if self.to_queue and (self.to_exchange or self.to_key is not None):
            yield "a queue is its own destination: leave out the exchange and key to publish with"
        if self.target_queue and self.to_key is not None:
            yield "a key to publish with needs an exchange to publish to"
        if not 1 <= self.prefetch <= PREFETCH_MAX:
            yield f"prefetch is {self.prefetch}; it must be 1 to {PREFETCH_MAX}"
        if self.content_ids and not self.dedup:
            yield "ids from contents are for deduplication; leave out one of the two options"
        if self.hops_max < 1:
            yield f"max-hops is {self.hops_max}; it must be 1 or more"


def _uri_problems(side: str, uri: str) -> Iterator[str]:
    if not uri:
        yield f"give the cluster to bridge {side}, like amqp://guest:guest@b1:5672,b2:5672/"
        return
    try:
        parse_uris(uri)
    except InvalidUri as error:
        yield f"{side}: {error}"
