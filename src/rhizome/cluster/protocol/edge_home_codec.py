"""Payloads between edges and homes that are written and read by offset.

They come once per message or turn, or in an attach. The catalogue describes them byte by byte; all
other frames between the two are tables.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter, write_i64_be
from mypy_extensions import i64

from rhizome.amqp.primitives import put_shortstr, put_u16, put_u32, put_u64
from rhizome.broker.connection.outbox import Outbox
from rhizome.broker.message import Message
from rhizome.broker.publishing.forward_port import Bundle, Target
from rhizome.cluster.link.frame_codec import begin_frame, end_frame, put_frame, put_part
from rhizome.cluster.protocol.catalogue import (
    CONFIRM,
    CREDIT,
    DELIVER,
    HAS_SETTLED,
    HELD,
    PUBLISH,
    ROUTE,
    SETTLE,
)
from rhizome.journal.dedup_state import is_users

FLAG_PERSISTENT: Final = 1
FLAG_STEERED: Final = 2
FLAG_MANDATORY: Final = 4
FLAG_IDENTITY: Final = 8
"""Queues may recognise the message (L5); by its publisher's number, too, with FLAG_SEQUENCE."""
FLAG_SEQUENCE: Final = 16
FLAG_LETTER: Final = 32
"""The message's identity is not in its content but before it: a group sends it (A1), or a user who
numbers messages (L5)."""

FLAG_REDELIVERED: Final = 1

PUBLISH_FIXED: Final = 2 + 1 + 4
NUMBER_BYTES: Final = 8
COPIED_AT: Final = 2 + NUMBER_BYTES
CONFIRM_FIXED: Final = COPIED_AT + 1
STEERED_FIXED: Final = 9
DELIVER_FIXED: Final = 4 + 8 + 8 + 1 + 4 + 2
SETTLE_FIXED: Final = 2 + 4 + 1 + 8 + 4
RANGE_BYTES: Final = 16
HELD_FIXED: Final = 2 + 4 + 8 + 4
HELD_RANGE_BYTES: Final = 4 + 8 + RANGE_BYTES
HAS_SETTLED_FIXED: Final = 2 + 1 + 8 + 8 + 4


def put_route(outbox: Outbox, slot: i64, targets: list[Target], tail: bytes, applied: i64) -> None:
    writer = BytesWriter()
    write_i64_be(writer, applied)
    put_u16(writer, slot)
    put_shortstr(writer, targets[0].vhost)
    writer.write(tail)
    writer.append(len(targets))
    for target in targets:
        put_u16(writer, target.forward.group)
        put_u16(writer, len(target.queue_ids))
        for queue_id in target.queue_ids:
            put_u64(writer, queue_id)
        if target.forward.group == 0:
            _put_names(writer, target.exchanges)
            _put_names(writer, target.keys)
            _put_names(writer, target.names)
            writer.append(1 if target.relay else 0)
    put_frame(outbox, ROUTE, writer.getvalue())


def _put_names(writer: BytesWriter, names: list[str]) -> None:
    put_u16(writer, len(names))
    for name in names:
        put_shortstr(writer, name)


def put_publish(
    outbox: Outbox, slot: i64, number: i64, message: Message, mandatory: bool, by_user: bool
) -> None:
    """Write PUBLISH for a slot of one target. ``by_user``: the other end knows that producers
    belong to users."""
    steered = message.expiration_ms >= 0 or message.priority > 0
    named = _named(message, by_user)
    _begin_publish(outbox, slot, 1, message, steered, mandatory, named)
    write_i64_be(outbox.writer, number)
    _end_publish(outbox, message, steered, named)


def put_bundle(outbox: Outbox, bundle: Bundle, message: Message, by_user: bool) -> None:
    """Write PUBLISH for the message that each of the bundle's forward queues was sent last."""
    steered = message.expiration_ms >= 0 or message.priority > 0
    named = _named(message, by_user)
    _begin_publish(outbox, bundle.slot, len(bundle.targets), message, steered, False, named)
    for target in bundle.targets:
        write_i64_be(outbox.writer, target.forward.sent)
    _end_publish(outbox, message, steered, named)


def _named(message: Message, by_user: bool) -> bytes:
    """The identity that stands before the content, of a message from a group's outbox or of a
    user's numbered message; empty if there is none. A broker that doesn't know of users reads it
    from the headers, as for what it takes from its own applications."""
    identity = message.identity
    if identity is None or len(identity.producer) == 0 or identity.producer[0] != 0:
        return b""
    if not by_user and is_users(identity.producer):
        return b""
    return identity.packed()


def _begin_publish(
    outbox: Outbox,
    slot: i64,
    numbers: i64,
    message: Message,
    steered: bool,
    mandatory: bool,
    named: bytes,
) -> None:
    flags: i64 = FLAG_PERSISTENT if message.persistent else 0
    size: i64 = PUBLISH_FIXED + numbers * NUMBER_BYTES + len(message.content)
    if mandatory:
        flags |= FLAG_MANDATORY
    if message.identity is not None:
        flags |= FLAG_IDENTITY
        if len(message.identity.producer) > 0:
            flags |= FLAG_SEQUENCE
            if len(named) > 0:
                flags |= FLAG_LETTER
                size += len(named)
    if steered:
        flags |= FLAG_STEERED
        size += STEERED_FIXED
    writer = outbox.writer
    begin_frame(outbox, PUBLISH, size)
    put_u16(writer, slot)
    writer.append(int(flags))
    put_u32(writer, message.frame_bytes_max)


def _end_publish(outbox: Outbox, message: Message, steered: bool, named: bytes) -> None:
    if steered:
        write_i64_be(outbox.writer, message.expiration_ms)
        outbox.writer.append(int(message.priority))
    if len(named) > 0:
        outbox.writer.write(named)
    put_part(outbox, message.content)
    end_frame(outbox)


def put_number(outbox: Outbox, method: i64, group: i64, number: i64) -> None:
    """Write REFUSE, UNROUTED, FENCE or SETTLED."""
    writer = outbox.writer
    begin_frame(outbox, method, 2 + NUMBER_BYTES)
    put_u16(writer, group)
    write_i64_be(writer, number)
    end_frame(outbox)


def put_confirm(outbox: Outbox, group: i64, number: i64, copied: bool) -> None:
    writer = outbox.writer
    begin_frame(outbox, CONFIRM, CONFIRM_FIXED)
    put_u16(writer, group)
    write_i64_be(writer, number)
    writer.append(1 if copied else 0)
    end_frame(outbox)


def put_delivery(
    outbox: Outbox, consumer: i64, tag: i64, redelivered: bool, message: Message, tail: bytes
) -> None:
    """Write DELIVER; ``tail`` is empty if the delivery before was of the same route."""
    content = message.content
    writer = outbox.writer
    begin_frame(outbox, DELIVER, DELIVER_FIXED + len(tail) + len(content))
    put_u32(writer, consumer)
    write_i64_be(writer, tag)
    write_i64_be(writer, message.index)
    writer.append(FLAG_REDELIVERED if redelivered else 0)
    put_u32(writer, message.frame_bytes_max)
    put_u16(writer, len(tail))
    writer.write(tail)
    put_part(outbox, content)
    end_frame(outbox)


def put_credit(outbox: Outbox, consumer: i64, size: i64) -> None:
    writer = outbox.writer
    begin_frame(outbox, CREDIT, 12)
    put_u32(writer, consumer)
    write_i64_be(writer, size)
    end_frame(outbox)


def put_settled(
    outbox: Outbox, group: i64, session: i64, kind: i64, number: i64, tags: list[int]
) -> None:
    """Write SETTLE for tags in any order, as ranges."""
    ranges = ranges_of(tags)
    writer = outbox.writer
    begin_frame(outbox, SETTLE, SETTLE_FIXED + len(ranges))
    put_u16(writer, group)
    put_u32(writer, session)
    writer.append(int(kind))
    write_i64_be(writer, number)
    put_u32(writer, len(ranges) // RANGE_BYTES)
    writer.write(ranges)
    end_frame(outbox)


def put_has_settled(
    outbox: Outbox, group: i64, kind: i64, number: i64, queue_id: i64, indexes: list[int]
) -> None:
    """Write HAS_SETTLED for indexes in any order, as ranges."""
    ranges = ranges_of(indexes)
    writer = outbox.writer
    begin_frame(outbox, HAS_SETTLED, HAS_SETTLED_FIXED + len(ranges))
    put_u16(writer, group)
    writer.append(int(kind))
    write_i64_be(writer, number)
    write_i64_be(writer, queue_id)
    put_u32(writer, len(ranges) // RANGE_BYTES)
    put_part(outbox, ranges)
    end_frame(outbox)


def ranges_of(numbers: list[int]) -> bytes:
    """Numbers as pairs of first and last; this sorts the numbers."""
    numbers.sort()
    ranges = BytesWriter()
    first: i64 = numbers[0]
    last: i64 = first
    at: i64 = 1
    while at < len(numbers):
        number: i64 = numbers[at]
        if number != last + 1:
            write_i64_be(ranges, first)
            write_i64_be(ranges, last)
            first = number
        last = number
        at += 1
    write_i64_be(ranges, first)
    write_i64_be(ranges, last)
    return ranges.getvalue()


@final
class HeldWriter:
    """Collects what a session holds, in order, and writes HELD.

    Invariant: ``count`` messages were added; ``ranges`` lacks the last ones, of one consumer and
    queue, from ``first`` to ``last``, if ``last`` isn't -1.
    """

    group: i64
    session: i64
    share: i64
    ranges: BytesWriter
    count: i64
    consumer: i64
    queue_id: i64
    first: i64
    last: i64

    def __init__(self, group: i64, session: i64, share: i64) -> None:
        self.group = group
        self.session = session
        self.share = share
        self.ranges = BytesWriter()
        self.count = 0
        self.consumer = 0
        self.queue_id = 0
        self.first = 0
        self.last = -1

    def add(self, consumer: i64, queue_id: i64, index: i64) -> i64:
        """Add a message; returns its tag."""
        if (
            self.last < 0
            or index != self.last + 1
            or consumer != self.consumer
            or queue_id != self.queue_id
        ):
            self._close()
            self.consumer = consumer
            self.queue_id = queue_id
            self.first = index
        self.last = index
        self.count += 1
        return self.count

    def _close(self) -> None:
        if self.last >= 0:
            put_u32(self.ranges, self.consumer)
            write_i64_be(self.ranges, self.queue_id)
            write_i64_be(self.ranges, self.first)
            write_i64_be(self.ranges, self.last)

    def put(self, outbox: Outbox) -> None:
        self._close()
        ranges = self.ranges.getvalue()
        writer = outbox.writer
        begin_frame(outbox, HELD, HELD_FIXED + len(ranges))
        put_u16(writer, self.group)
        put_u32(writer, self.session)
        write_i64_be(writer, self.share)
        put_u32(writer, len(ranges) // HELD_RANGE_BYTES)
        put_part(outbox, ranges)
        end_frame(outbox)
