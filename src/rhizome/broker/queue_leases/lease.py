"""Lease: messages of one queue that are set aside under a name. Compiled.

The messages of a lease have *positions*. The first message it ever got has the position that its
taker began with, each further one the next. A position always means the same message, whatever the
order of indexes. So ranges of positions can be read again and again, by many readers at once, and
one number says what is settled.

A LEASES record of a queue replaces the one before:

    u8 version 1 | u16 n | n * (u8 length, name | u8 flags (1: expired) | u64 keep ms | u64 base
    | u64 positions from there on | u32 runs | runs * (varint first index, varint count))

Runs follow each other by position, with the indexes of their messages rising by one; a first index
of 0 stands for messages that are gone. An expired lease has no runs.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter, read_i64_be, write_i64_be
from mypy_extensions import i64

from rhizome.broker.message import Message
from rhizome.journal.errors import CorruptRecord
from rhizome.journal.records import put_u16, put_u32, u16_at, u32_at

LEASES_VERSION: Final = 1
FLAG_EXPIRED: Final = 1
NAME_BYTES_MAX: Final = 255


@final
class Lease:
    """Invariant: position ``base + i`` is ``messages[i]`` (None: it did not survive a restart), and
    everything below ``base`` is settled. ``size`` adds up their contents. Messages below
    ``read_to`` may have been read. An ``expired`` lease holds nothing; ``given_back`` messages were
    unsettled when it ended, and it stays known so that a reader that comes back for them is told.
    If its ``keep_ms`` is 0, somebody other than its reader ended it."""

    name: str
    keep_ms: i64
    base: i64
    messages: list[Message | None]
    size: i64
    read_to: i64
    until_ms: i64
    expired: bool
    given_back: i64

    def __init__(self, name: str, base: i64, keep_ms: i64) -> None:
        self.name = name
        self.keep_ms = keep_ms
        self.base = base
        self.messages = []
        self.size = 0
        self.read_to = base
        self.until_ms = 0
        self.expired = False
        self.given_back = 0

    def end(self) -> i64:
        """The position after the last one."""
        if self.expired:
            return self.base + self.given_back
        return self.base + len(self.messages)

    def add(self, message: Message | None) -> None:
        self.messages.append(message)
        if message is not None:
            self.size += len(message.content)

    def drop_to(self, position: i64) -> list[Message]:
        """Take out what lies below a position."""
        count: i64 = position - self.base
        gone = [message for message in self.messages[:count] if message is not None]
        del self.messages[:count]
        self.base = position
        for message in gone:
            self.size -= len(message.content)
        return gone

    def bytes_from(self, position: i64) -> i64:
        """The bytes of the contents from a position on."""
        total: i64 = 0
        at: i64 = position - self.base
        while at < len(self.messages):
            message = self.messages[at]
            if message is not None:
                total += len(message.content)
            at += 1
        return total


@final
class PackedLease:
    """A lease as the log has it; ``runs`` is [first index, count, ...]."""

    lease: Lease
    runs: list[int]

    def __init__(self, lease: Lease, runs: list[int]) -> None:
        self.lease = lease
        self.runs = runs


def pack(leases: list[Lease]) -> bytes:
    """The leases of a queue for the log; empty if there are none."""
    if len(leases) == 0:
        return b""
    writer = BytesWriter()
    writer.append(LEASES_VERSION)
    put_u16(writer, len(leases))
    for lease in leases:
        name = lease.name.encode("utf-8", "surrogateescape")
        writer.append(len(name))
        writer.write(name)
        writer.append(FLAG_EXPIRED if lease.expired else 0)
        write_i64_be(writer, lease.keep_ms)
        write_i64_be(writer, lease.base)
        write_i64_be(writer, lease.end() - lease.base)
        _put_runs(writer, lease.messages)
    return writer.getvalue()


def _put_runs(writer: BytesWriter, messages: list[Message | None]) -> None:
    runs: list[int] = []
    first: i64 = -1
    count: i64 = 0
    for message in messages:
        index: i64 = 0
        if message is not None:
            index = message.index
        after: i64 = 0
        if first > 0:
            after = first + count
        if count > 0 and index == after:
            count += 1
            continue
        if count > 0:
            runs.append(first)
            runs.append(count)
        first = index
        count = 1
    if count > 0:
        runs.append(first)
        runs.append(count)
    put_u32(writer, len(runs) // 2)
    for number in runs:
        _put_varint(writer, number)


def unpack(data: bytes) -> list[PackedLease]:
    """The leases of a queue, as the log has them."""
    found: list[PackedLease] = []
    if len(data) == 0:
        return found
    if data[0] != LEASES_VERSION:
        raise CorruptRecord(f"leases of version {data[0]}, this program knows 1,", 0)
    count: i64 = u16_at(data, 1)
    at: i64 = 3
    while count > 0:
        end: i64 = at + 1 + data[at]
        name = data[at + 1 : end].decode("utf-8", "surrogateescape")
        lease = Lease(name, read_i64_be(data, end + 9), read_i64_be(data, end + 1))
        lease.expired = data[end] & FLAG_EXPIRED != 0
        if lease.expired:
            lease.given_back = read_i64_be(data, end + 17)
        left: i64 = u32_at(data, end + 25) * 2
        at = end + 29
        runs: list[int] = []
        while left > 0:
            number: i64 = 0
            shift: i64 = 0
            while data[at] >= 0x80:
                number |= i64(data[at] & 0x7F) << shift
                shift += 7
                at += 1
            number |= i64(data[at]) << shift
            at += 1
            runs.append(number)
            left -= 1
        found.append(PackedLease(lease, runs))
        count -= 1
    return found


def _put_varint(writer: BytesWriter, number: i64) -> None:
    while number >= 0x80:
        writer.append(int(number & 0x7F | 0x80))
        number >>= 7
    writer.append(int(number))
