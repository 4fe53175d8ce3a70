"""Messages and routes: what travels through the broker core.

A message's content is kept as the wire bytes that came from its publisher: the content-header frame
and the body frames, with their own frame headers and end octets. Delivering it is one copy into the
consumer's outbox; only the channel number may have to be patched. Properties are looked at by
offset and only when their flag says that a feature needs them.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import read_i64_be
from mypy_extensions import i64

from rhizome.amqp.primitives import u16_at, u32_at
from rhizome.amqp.properties import (
    FLAG_DELIVERY_MODE,
)
from rhizome.journal.dedup_state import DedupIdentity

NO_EXPIRATION: Final = -1

SPILL_POSITION_FIRST: Final = 1 << 62
"""Positions from here on are in spill segments (segment numbers from 1 << 30)."""

DELIVERY_MODE_ONLY: Final = FLAG_DELIVERY_MODE

HEADER_FLAGS_OFFSET: Final = 7 + 12
"""Where the property flags stand in a content-header frame (frame header, class, weight, size)."""

MESSAGE_OVERHEAD_BYTES: Final = 184
"""What a resident message costs beyond its content: the object, the bytes header, its place in a
ring."""


class Route:
    """How a delivery names where its message came from: ``tail`` is the exchange and the routing
    key as the wire has them.

    ``mandatory``: the publisher wants a message back that no queue takes; ``by_headers``: its
    headers say where it goes; ``delayed``: its exchange holds messages until they are due.
    """

    exchange: str
    key: str
    tail: bytes
    mandatory: bool
    by_headers: bool
    delayed: bool

    def __init__(self, exchange: str, key: str, tail: bytes) -> None:
        self.exchange = exchange
        self.key = key
        self.tail = tail
        self.mandatory = False
        self.by_headers = False
        self.delayed = False


@final
class Message:
    """One message in the memory of this broker, shared by all local queues of one log that took it.

    Invariant: ``index`` orders messages within their group and is the message's place in each of
    its queues; a requeued message goes back to that place. ``position`` is where its record is (0:
    nowhere). It counts as one reference per queue that the record names or, for a message read back
    from the spill, as the one reference of the queue that read it. ``spilled`` only remembers where
    a copy was written for the first queue that paged it, so that others share it.

    ``shared`` says that its record names several queues. ``cost`` is what each queue that has it in
    memory is charged. ``identity`` is what its queues know it by (L5), until they have it. ``tag``
    is that of its delivery at its home, if that is another broker.
    """

    route: Route
    content: bytes
    channel: i64
    frame_bytes_max: i64
    index: i64
    position: i64
    spilled: i64
    arrived_ms: i64
    expiration_ms: i64
    priority: i64
    persistent: bool
    shared: bool
    cost: i64
    identity: DedupIdentity | None
    tag: i64

    def __init__(self, route: Route, content: bytes, channel: i64, frame_bytes_max: i64) -> None:
        self.route = route
        self.content = content
        self.channel = channel
        self.frame_bytes_max = frame_bytes_max
        self.index = 0
        self.position = 0
        self.spilled = 0
        self.arrived_ms = 0
        self.expiration_ms = NO_EXPIRATION
        self.priority = 0
        self.persistent = False
        self.shared = False
        self.cost = len(content) + MESSAGE_OVERHEAD_BYTES
        self.identity = None
        self.tag = 0

    def kept_identity(self) -> bytes:
        """The identity that the record of this message contains; empty if none."""
        identity = self.identity
        return b"" if identity is None or not identity.is_kept() else identity.packed()


def copy_of(message: Message) -> Message:
    """The same message for another log, which gives it another index."""
    copy = Message(message.route, message.content, message.channel, message.frame_bytes_max)
    copy.arrived_ms = message.arrived_ms
    copy.expiration_ms = message.expiration_ms
    copy.priority = message.priority
    copy.persistent = message.persistent
    copy.identity = message.identity
    return copy


def content_channel(content: bytes) -> i64:
    """The channel number in the frames of a content."""
    return u16_at(content, 1)


def largest_frame(content: bytes) -> i64:
    """Size of the largest frame in a content, frame header and end included."""
    offset: i64 = 0
    largest: i64 = 0
    end: i64 = len(content)
    while offset < end:
        size: i64 = u32_at(content, offset + 3) + 8
        if size > largest:
            largest = size
        offset += size
    return largest


def body_bytes(content: bytes) -> i64:
    """Body size of a content, as its header frame states it."""
    return read_i64_be(content, 11)


def is_journaled(message: Message) -> bool:
    return 0 < message.position < SPILL_POSITION_FIRST
