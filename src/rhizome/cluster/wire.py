"""The frames that carry messages between brokers, byte by byte.

Frames are AMQP method frames of a private class on channel 0. What is per message is written and
read by offset here; everything else between brokers is a table (`messages.py`).

    ROUTE     applied u64, slot u16, vhost shortstr, tail (exchange and routing key as shortstrs),
              queues u16 and their ids u64, exchanges u16 and their names shortstr, further
              keys u16 and each shortstr, private queues u16 and their names shortstr, relay u8
    PUBLISH   slot u16, number u64, flags u8, largest frame u32, [expiration i64, priority u8],
              content
    CONFIRM   number u64                      everything up to it is safe
    REFUSE    number u64                      a queue refused it
    FENCE     number u64                      confirmed once all settled before it is safe
    UNROUTED  number u64                      it was mandatory, and nobody took it
    DELIVER   consumer u32, tag u64, redelivered u8, largest frame u32, tail u16 and its bytes,
              content
    SETTLE    session u32, kind u8, ranges u32, each first u64 and last u64
    CREDIT    consumer u32, bytes u64

``applied`` is how far the sender has applied the cluster's log: a receiver that is behind waits
(R10). A number is that of a `Forward`: consecutive per edge and home. A slot of ROUTE may be given
again; since a link keeps the order of its frames, both ends always mean the same by it.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i64_be
from mypy_extensions import i64

from rhizome.amqp.wire import put_shortstr, put_u16, put_u32, put_u64
from rhizome.broker.message import Message
from rhizome.broker.outbox import Outbox
from rhizome.broker.targets import Target
from rhizome.cluster.link.frames import begin_frame, end_frame, put_frame, put_part

ROUTE: Final = 16
PUBLISH: Final = 17
CONFIRM: Final = 18
REFUSE: Final = 19
DELIVER: Final = 20
SETTLE: Final = 21
CREDIT: Final = 22
UNROUTED: Final = 23
FENCE: Final = 24

FLAG_PERSISTENT: Final = 1
FLAG_STEERED: Final = 2
FLAG_MANDATORY: Final = 4
FLAG_IDENTITY: Final = 8
"""Queues may know the message again (L5); by its publisher's number, too, with FLAG_SEQUENCE."""
FLAG_SEQUENCE: Final = 16

PUBLISH_FIXED: Final = 2 + 8 + 1 + 4
STEERED_FIXED: Final = 9
DELIVER_FIXED: Final = 4 + 8 + 1 + 4 + 2


def put_route(outbox: Outbox, slot: i64, target: Target, tail: bytes, applied: i64) -> None:
    writer = BytesWriter()
    write_i64_be(writer, applied)
    put_u16(writer, slot)
    put_shortstr(writer, target.vhost)
    writer.write(tail)
    put_u16(writer, len(target.queue_ids))
    for queue_id in target.queue_ids:
        put_u64(writer, queue_id)
    _put_names(writer, target.exchanges)
    _put_names(writer, target.keys)
    _put_names(writer, target.names)
    writer.append(1 if target.relay else 0)
    put_frame(outbox, ROUTE, writer.getvalue())


def _put_names(writer: BytesWriter, names: list[str]) -> None:
    put_u16(writer, len(names))
    for name in names:
        put_shortstr(writer, name)


def put_publish(outbox: Outbox, slot: i64, number: i64, message: Message, mandatory: bool) -> None:
    content = message.content
    steered = message.expiration_ms >= 0 or message.priority > 0
    flags: i64 = FLAG_PERSISTENT if message.persistent else 0
    size: i64 = PUBLISH_FIXED + len(content)
    if mandatory:
        flags |= FLAG_MANDATORY
    if message.identity is not None:
        flags |= FLAG_IDENTITY
        if len(message.identity.producer) > 0:
            flags |= FLAG_SEQUENCE
    if steered:
        flags |= FLAG_STEERED
        size += STEERED_FIXED
    writer = outbox.writer
    begin_frame(outbox, PUBLISH, size)
    put_u16(writer, slot)
    write_i64_be(writer, number)
    writer.append(int(flags))
    put_u32(writer, message.frame_bytes_max)
    if steered:
        write_i64_be(writer, message.expiration_ms)
        writer.append(int(message.priority))
    put_part(outbox, content)
    end_frame(outbox)


def put_number(outbox: Outbox, method: i64, number: i64) -> None:
    """Write CONFIRM, REFUSE, UNROUTED or FENCE."""
    writer = outbox.writer
    begin_frame(outbox, method, 8)
    write_i64_be(writer, number)
    end_frame(outbox)


def put_delivery(
    outbox: Outbox, consumer: i64, tag: i64, redelivered: bool, message: Message
) -> None:
    content = message.content
    tail = message.route.tail
    writer = outbox.writer
    begin_frame(outbox, DELIVER, DELIVER_FIXED + len(tail) + len(content))
    put_u32(writer, consumer)
    write_i64_be(writer, tag)
    writer.append(1 if redelivered else 0)
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


def put_settled(outbox: Outbox, session: i64, kind: i64, tags: list[int]) -> None:
    """Write SETTLE for tags in whatever order, as ranges."""
    tags.sort()
    ranges = BytesWriter()
    count: i64 = 0
    first: i64 = tags[0]
    last: i64 = first
    at: i64 = 1
    while at < len(tags):
        tag: i64 = tags[at]
        if tag != last + 1:
            write_i64_be(ranges, first)
            write_i64_be(ranges, last)
            count += 1
            first = tag
        last = tag
        at += 1
    write_i64_be(ranges, first)
    write_i64_be(ranges, last)
    count += 1
    writer = outbox.writer
    begin_frame(outbox, SETTLE, 9 + count * 16)
    put_u32(writer, session)
    writer.append(int(kind))
    put_u32(writer, count)
    writer.write(ranges.getvalue())
    end_frame(outbox)
