"""Lease delivery: the headers and body that the reader of a lease gets. Compiled.

Headers: x-lease-offset, the first position; x-lease-count, how many messages the body has;
x-lease-first and x-lease-next, the positions that the lease has now; x-lease-bytes, their contents;
x-lease-ready, the messages that are still ready in the queue. If the request failed,
x-lease-code and x-lease-error say why.

The body, if there are messages in it, all numbers big-endian:

    count * u32 size of an entry | count * entry
    entry    u64 index | u64 arrived ms | u8 flags (1: was delivered before) | u8 0
             | u16 length, route tail | content, as its publisher sent it

The first delivery has no body.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter, write_i64_be
from mypy_extensions import i64

from rhizome.amqp.primitives import put_shortstr, put_u16, put_u32
from rhizome.broker.message import Message
from rhizome.broker.message_batch_content import bulk_content, put_number

ENTRY_HEAD_BYTES: Final = 20
FLAG_REDELIVERED: Final = 1
_TYPE_TEXT: Final = 0x53  # S


@final
class LeaseOutcome:
    """The headers of a delivery."""

    offset: i64
    count: i64
    first: i64
    next: i64
    size: i64
    ready: i64
    code: i64
    error: str

    def __init__(self, offset: i64, ready: i64) -> None:
        self.offset = offset
        self.count = 0
        self.first = offset
        self.next = offset
        self.size = 0
        self.ready = ready
        self.code = 0
        self.error = ""

    def content(self, body: bytes) -> bytes:
        """The content of the delivery."""
        table = BytesWriter()
        put_number(table, "x-lease-offset", self.offset)
        put_number(table, "x-lease-count", self.count)
        put_number(table, "x-lease-first", self.first)
        put_number(table, "x-lease-next", self.next)
        put_number(table, "x-lease-bytes", self.size)
        put_number(table, "x-lease-ready", self.ready)
        if self.code != 0:
            put_number(table, "x-lease-code", self.code)
            put_shortstr(table, "x-lease-error")
            table.append(_TYPE_TEXT)
            text = self.error.encode("utf-8", "surrogateescape")
            put_u32(table, len(text))
            table.write(text)
        return bulk_content(table, body)


@final
class Entries:
    """The body of a delivery, while it is built."""

    count: i64
    _sizes: BytesWriter
    _entries: BytesWriter

    def __init__(self) -> None:
        self.count = 0
        self._sizes = BytesWriter()
        self._entries = BytesWriter()

    def size(self) -> i64:
        return len(self._entries)

    def add(self, message: Message, redelivered: bool) -> None:
        tail = message.route.tail
        content = message.content
        self.count += 1
        put_u32(self._sizes, ENTRY_HEAD_BYTES + len(tail) + len(content))
        writer = self._entries
        write_i64_be(writer, message.index)
        write_i64_be(writer, message.arrived_ms)
        writer.append(FLAG_REDELIVERED if redelivered else 0)
        writer.append(0)
        put_u16(writer, len(tail))
        writer.write(tail)
        writer.write(content)

    def body(self) -> bytes:
        return self._sizes.getvalue() + self._entries.getvalue()
