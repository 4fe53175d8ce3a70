"""The header x-stream-offset, which a content gets once, when it is appended. Compiled."""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i16_be, write_i64_be
from mypy_extensions import i64, u8

from rhizome.amqp.field_table import raw_entries
from rhizome.amqp.frames import frame_end
from rhizome.amqp.primitives import put_u16, put_u32, u16_at, u32_at
from rhizome.amqp.properties import FLAG_CONTENT_ENCODING, FLAG_CONTENT_TYPE, FLAG_HEADERS
from rhizome.amqp.spec import FRAME_HEADER, FRAME_HEADER_SIZE
from rhizome.broker.message import HEADER_FLAGS_OFFSET
from rhizome.broker.streams.stream_filters import value_in
from rhizome.journal.streams.stream_format import CONTENT_CHANNEL, FLAG_TABLE

NAME: Final = "x-stream-offset"
ENTRY_PREFIX: Final = b"\x0fx-stream-offsetl"
ENTRY_BYTES: Final = 25
NAMES_PREFIX: Final = b"x-stream-"
"""The prefix of all headers that mean something to a stream: most messages have none of them."""
CHANNEL_HIGH: Final = 0
CHANNEL_LOW: Final = 1


def has_headers(content: bytes) -> bool:
    return i64(read_i16_be(content, HEADER_FLAGS_OFFSET)) & FLAG_HEADERS != 0


def entry_flags(content: bytes) -> i64:
    """The flags of a content's entry in the log, before it is stamped."""
    return 0 if has_headers(content) else FLAG_TABLE


def stamped(content: bytes, offset: i64, filters: list[bytes]) -> bytes:
    """The content with its offset among the headers, in frames of the channel CONTENT_CHANNEL.

    An offset that was there before (the message was read from a stream) is replaced. A filter value
    among the headers is added to ``filters``.
    """
    header_end = frame_end(content, 0)
    flags: i64 = i64(read_i16_be(content, HEADER_FLAGS_OFFSET)) & 0xFFFF
    at: i64 = HEADER_FLAGS_OFFSET + 2
    if flags & FLAG_CONTENT_TYPE != 0:
        at += 1 + content[at]
    if flags & FLAG_CONTENT_ENCODING != 0:
        at += 1 + content[at]
    writer = BytesWriter()
    writer.append(FRAME_HEADER)
    put_u16(writer, CONTENT_CHANNEL)
    size: i64 = header_end - FRAME_HEADER_SIZE - 1 + ENTRY_BYTES
    if flags & FLAG_HEADERS == 0:
        put_u32(writer, size + 4)
        writer.write(content[FRAME_HEADER_SIZE:HEADER_FLAGS_OFFSET])
        put_u16(writer, flags | FLAG_HEADERS)
        writer.write(content[HEADER_FLAGS_OFFSET + 2 : at])
        put_u32(writer, ENTRY_BYTES)
        writer.write(ENTRY_PREFIX)
        write_i64_be(writer, offset)
        writer.write(content[at:header_end])
    else:
        after: i64 = at + 4 + u32_at(content, at)
        table = content[at + 4 : after]
        if table.find(NAMES_PREFIX) >= 0:
            value = value_in(table)
            if len(value) > 0:
                filters.append(value)
            if table.find(ENTRY_PREFIX[:16]) >= 0:
                table = without_offset(table)
        put_u32(writer, size - (after - at - 4) + len(table))
        writer.write(content[FRAME_HEADER_SIZE:at])
        put_u32(writer, len(table) + ENTRY_BYTES)
        writer.write(ENTRY_PREFIX)
        write_i64_be(writer, offset)
        writer.write(table)
        writer.write(content[after:header_end])
    _put_body(writer, content, header_end)
    return writer.getvalue()


def _put_body(writer: BytesWriter, content: bytes, at: i64) -> None:
    """Append the body frames, which begin at ``at``."""
    end: i64 = len(content)
    if at == end:
        return
    base: i64 = len(writer) - at
    writer.write(content[at:])
    if u16_at(content, at + 1) == CONTENT_CHANNEL:
        return
    while at < end:
        writer[base + at + 1] = u8(CHANNEL_HIGH)
        writer[base + at + 2] = u8(CHANNEL_LOW)
        at = frame_end(content, at)


def without_offset(table: bytes) -> bytes:
    """The entries of a table but for the offset."""
    writer = BytesWriter()
    begin: i64 = 0
    for name, _, end in raw_entries(table, 0, len(table)):
        if name != NAME:
            writer.write(table[begin:end])
        begin = end
    return writer.getvalue()
