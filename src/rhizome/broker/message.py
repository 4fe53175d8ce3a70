"""Messages and routes: what travels through the broker core.

A message's content is kept as the wire bytes that came from its publisher: the content-header frame
and the body frames, with their own frame headers and end octets. Delivering it is one copy into the
consumer's outbox; only the channel number may have to be patched. Properties are looked at by
offset and only when their flag says that a feature needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from librt.strings import read_i64_be
from mypy_extensions import i64

from rhizome.amqp.primitives import u16_at, u32_at
from rhizome.amqp.properties import (
    FLAG_DELIVERY_MODE,
)
from rhizome.journal.dedup_state import DedupIdentity

if TYPE_CHECKING:
    from rhizome.broker.port import GroupLog
    from rhizome.broker.publishing.remote_targets import Target
    from rhizome.broker.queue.queue import Queue

NO_EXPIRATION: Final = -1

SPILL_POSITION_FIRST: Final = 1 << 62
"""Positions from here on are in spill segments (segment numbers from 1 << 30)."""

DELIVERY_MODE_ONLY: Final = FLAG_DELIVERY_MODE

HEADER_FLAGS_OFFSET: Final = 7 + 12
"""Where the property flags stand in a content-header frame (frame header, class, weight, size)."""

MESSAGE_OVERHEAD_BYTES: Final = 184
"""What a resident message costs beyond its content: the object, the bytes header, its place in a
ring."""


@final
class Part:
    """The queues of a route that share a log, and what a record in that log names of them.

    A local log names durable queues only, a replicated log all of them.
    """

    log: GroupLog
    queues: list[Queue]
    ids: list[int]
    durable: bool
    work: i64
    """What a message for these queues adds to the work of its turn."""

    def __init__(self, log: GroupLog) -> None:
        self.log = log
        self.queues = []
        self.ids = []
        self.durable = False
        self.work = 0

    def add(self, queue: Queue) -> None:
        self.queues.append(queue)
        if queue.durable or self.log.replicated:
            self.ids.append(queue.id)
        if queue.durable:
            self.durable = True


@final
class Route:
    """Where one (exchange, routing key) leads, and how a delivery names it.

    Invariant: ``queues`` (active here) and ``targets`` (on other brokers) are what the router
    answered at topology epoch ``epoch``; ``parts`` are the queues by log; ``unrouted`` says that
    all of them are taps; ``level`` is what they have in common (`reliability_levels.py`). A route
    of an older epoch is never used to publish, but messages go on referring to it for ``tail``.
    """

    exchange: str
    key: str
    tail: bytes
    epoch: i64
    queues: list[Queue]
    parts: list[Part]
    targets: list[Target]
    plain: bool
    unrouted: bool
    mandatory: bool
    immediate: bool
    by_headers: bool
    delayed: bool
    level: i64

    def __init__(self, exchange: str, key: str, tail: bytes) -> None:
        self.exchange = exchange
        self.key = key
        self.tail = tail
        self.epoch = -1
        self.queues = []
        self.parts = []
        self.targets = []
        self.plain = False
        self.unrouted = False
        self.mandatory = False
        self.immediate = False
        self.by_headers = False
        self.delayed = False
        self.level = 0


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
