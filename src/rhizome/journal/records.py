"""The format of journal records, version 1. Compiled.

    record   u32 payload length | u32 crc | u8 kind | u8 flags | u16 group | u32 epoch | u64 index
             | payload
    ENQUEUE  u64 arrived ms | i64 expiration ms | u8 priority | u8 0 | u16 n | n * u32 queue id
    MOVED    | u16 length, route tail | u32 length, content | FLAG_ORIGIN: u64 origin, u64 number
             | FLAG_IDENTITY: what the queues know the message by (dedup_state.py)
    DEQUEUE  u32 queue id | u32 n | n * (u64 first index | u32 count)
    REQUEUE  u32 queue id | u64 message index | u32 delivery count
    PURGE    u32 queue id | u64 up to this message index, inclusive
    DROP     u32 queue id
    TX       whole records, each with its own header and crc
    STATE    a command to the state machine, opaque here
    EPOCH    nothing: epoch `epoch` of `group` begins at `index`; messages from there on are void
    WATER    u32 queue id | what the queue has accepted, packed (dedup_state.py): replaces the known
    SYNCED   nothing: when this was written, all before position `index` had been synced; that was
             at `epoch` << 16 | `group` ms, unless these are 0
    END      nothing: the segment is complete
    NUMBER   u64 origin | u64 number: the last number taken from an origin; 0 forgets the origin;
             FLAG_REFUSED: a queue refused what came under it
    INSTALL  u8 1: the copy of `group` is being made from here on, not eligible; 0: it is whole
    SHOWN    u32 queue id | u8 priority | u64 message index: all up to it were delivered once
    LEASES   u32 queue id | its leases (broker/queue_leases/lease.py): replaces what was known

An origin is an incarnation of an edge (A1); 0 is none. FLAG_DURABLE says that a record of a group
belongs into the journal of each of its copies; without it a copy keeps a message in its spill and
forgets other records once they are applied. A home with no copies leaves it out.

All numbers are big-endian. The crc is CRC-32C over everything after the crc field; a wrong length
makes it fail too. A header of zeros is space that was never written. A segment file begins with

    8s magic "RHIZSEG\\0" | u32 version | u64 segment number | 16s store uuid | 24s 0
    | u32 crc of these 60 bytes (like magic and version at this place in every version)

Positions are segment << 32 | offset of the record in its file; 0 is "nowhere".
"""

from __future__ import annotations

from typing import Final, final

from crc32c import crc32c as _crc32c
from librt.strings import (
    BytesWriter,
    read_i16_be,
    read_i32_be,
    read_i64_be,
    write_i16_be,
    write_i32_be,
    write_i64_be,
)
from mypy_extensions import i16, i32, i64

from rhizome.journal.errors import CorruptRecord

# A Final is a C static in compiled code; an imported name would be looked up at every call.
crc32c: Final = _crc32c

FORMAT_VERSION: Final = 1
MAGIC: Final = b"RHIZSEG\0"

KIND_UNWRITTEN: Final = 0
KIND_ENQUEUE: Final = 1
KIND_DEQUEUE: Final = 2
KIND_REQUEUE: Final = 3
KIND_PURGE: Final = 4
KIND_DROP_QUEUE: Final = 5
KIND_TX: Final = 6
KIND_STATE: Final = 7
KIND_MOVED: Final = 8
KIND_EPOCH: Final = 9
KIND_WATERMARK: Final = 10
KIND_SYNCED: Final = 11
KIND_END: Final = 12
KIND_NUMBER: Final = 13
KIND_INSTALL: Final = 14
KIND_SHOWN: Final = 15
KIND_LEASES: Final = 16
KIND_LAST: Final = 16

FLAG_DURABLE: Final = 1
FLAG_ORIGIN: Final = 2
FLAG_IDENTITY: Final = 4
FLAG_REFUSED: Final = 8

KIND_NAMES: Final = [
    "unwritten",
    "enqueue",
    "dequeue",
    "requeue",
    "purge",
    "drop-queue",
    "tx",
    "state",
    "moved",
    "epoch",
    "watermark",
    "synced",
    "end",
    "number",
    "install",
    "shown",
    "leases",
]

SEGMENT_HEADER_BYTES: Final = 64
RECORD_HEADER_BYTES: Final = 24
CHECKED_HEADER_BYTES: Final = 16
"""The part of a record header that the crc covers."""
UNCHECKED_HEADER_BYTES: Final = 8
PAYLOAD_BYTES_MAX: Final = 0x7FFF0000
MESSAGE_META_BYTES_MIN: Final = 26
"""Payload of an ENQUEUE for no queue, without tail and content."""
ORIGIN_BYTES: Final = 16

# Results of check_record that are not a record's size.
CHECK_UNWRITTEN: Final = 0
CHECK_INCOMPLETE: Final = -1
CHECK_BAD: Final = -2


def position_of(segment: i64, offset: i64) -> i64:
    return segment << 32 | offset


def segment_of(position: i64) -> i64:
    return position >> 32


def offset_of(position: i64) -> i64:
    return position & 0xFFFFFFFF


def u16_at(data: bytes, offset: i64) -> i64:
    return i64(read_i16_be(data, offset)) & 0xFFFF


def u32_at(data: bytes, offset: i64) -> i64:
    return i64(read_i32_be(data, offset)) & 0xFFFFFFFF


def put_u16(writer: BytesWriter, number: i64) -> None:
    if number > 0x7FFF:
        number -= 0x10000
    write_i16_be(writer, i16(number))


def put_u32(writer: BytesWriter, number: i64) -> None:
    if number > 0x7FFFFFFF:
        number -= 0x100000000
    write_i32_be(writer, i32(number))


@final
class StoredMessage:
    """A message as a record holds it."""

    kind: i64
    group: i64
    epoch: i64
    index: i64
    arrived_ms: i64
    expiration_ms: i64
    priority: i64
    flags: i64
    queue_ids: list[int]
    tail: bytes
    content: bytes

    def __init__(self, kind: i64, flags: i64, group: i64, epoch: i64, index: i64) -> None:
        self.kind = kind
        self.flags = flags
        self.group = group
        self.epoch = epoch
        self.index = index
        self.arrived_ms = 0
        self.expiration_ms = -1
        self.priority = 0
        self.queue_ids = []
        self.tail = b""
        self.content = b""


# --- encoding ---------------------------------------------------------------------------------


def put_checked_header(
    writer: BytesWriter, kind: i64, flags: i64, group: i64, epoch: i64, index: i64
) -> None:
    """The part of a record header after its crc."""
    # One store for kind, flags and group instead of three.
    put_u32(writer, kind << 24 | flags << 16 | group)
    put_u32(writer, epoch)
    write_i64_be(writer, index)


def put_message_meta(
    writer: BytesWriter,
    arrived_ms: i64,
    expiration_ms: i64,
    priority: i64,
    queue_ids: list[int],
    tail: bytes,
    content_bytes: i64,
) -> None:
    """The payload of ENQUEUE and MOVED up to the content."""
    write_i64_be(writer, arrived_ms)
    write_i64_be(writer, expiration_ms)
    put_u32(writer, priority << 24 | len(queue_ids))
    for queue_id in queue_ids:
        put_u32(writer, queue_id)
    put_u16(writer, len(tail))
    writer.write(tail)
    put_u32(writer, content_bytes)


def record(body: bytes) -> bytes:
    """A whole record of its checked header and payload."""
    writer = BytesWriter()
    put_u32(writer, len(body) - CHECKED_HEADER_BYTES)
    put_u32(writer, crc32c(body))
    writer.write(body)
    return writer.getvalue()


def bare_record(kind: i64, group: i64, epoch: i64, index: i64) -> bytes:
    """A record without payload: EPOCH, SYNCED, END."""
    writer = BytesWriter()
    put_checked_header(writer, kind, 0, group, epoch, index)
    return record(writer.getvalue())


def state_record(index: i64, command: bytes) -> bytes:
    writer = BytesWriter()
    put_checked_header(writer, KIND_STATE, 0, 0, 0, index)
    writer.write(command)
    return record(writer.getvalue())


def enqueue_record(
    group: i64,
    epoch: i64,
    index: i64,
    queue_ids: list[int],
    tail: bytes,
    arrived_ms: i64,
    expiration_ms: i64,
    priority: i64,
    flags: i64,
    content: bytes,
    origin: i64 = 0,
    number: i64 = 0,
    identity: bytes = b"",
) -> bytes:
    """A message taken by `queue_ids`, the `number`-th of `origin` unless that is 0 (A1). The queues
    recognise it by its packed `identity` (L5)."""
    writer = BytesWriter()
    if origin != 0:
        flags |= FLAG_ORIGIN
    if len(identity) > 0:
        flags |= FLAG_IDENTITY
    put_checked_header(writer, KIND_ENQUEUE, flags, group, epoch, index)
    put_message_meta(writer, arrived_ms, expiration_ms, priority, queue_ids, tail, len(content))
    parts = [writer.getvalue(), content]
    if origin != 0:
        writer = BytesWriter()
        write_i64_be(writer, origin)
        write_i64_be(writer, number)
        parts.append(writer.getvalue())
    if len(identity) > 0:
        parts.append(identity)
    return joined_record(parts)


def joined_record(parts: list[bytes]) -> bytes:
    """A whole record of the parts of its checked header and payload, each copied once."""
    size: i64 = 0
    crc: i64 = 0
    for part in parts:
        size += len(part)
        crc = crc32c(part, crc)
    assert size - CHECKED_HEADER_BYTES <= PAYLOAD_BYTES_MAX, "a record holds at most 2 GiB"
    writer = BytesWriter()
    put_u32(writer, size - CHECKED_HEADER_BYTES)
    put_u32(writer, crc)
    parts.insert(0, writer.getvalue())
    return b"".join(parts)


def tx_record(group: i64, epoch: i64, index: i64, flags: i64, inner: list[bytes]) -> bytes:
    """A transaction of whole records: all of them take effect, or none."""
    writer = BytesWriter()
    put_checked_header(writer, KIND_TX, flags, group, epoch, index)
    return joined_record([writer.getvalue(), *inner])


def number_record(
    group: i64, epoch: i64, index: i64, origin: i64, number: i64, flags: i64 = 0
) -> bytes:
    """The last number taken from an origin; 0 forgets the origin."""
    writer = BytesWriter()
    put_checked_header(writer, KIND_NUMBER, flags, group, epoch, index)
    write_i64_be(writer, origin)
    write_i64_be(writer, number)
    return record(writer.getvalue())


def install_record(group: i64, epoch: i64, index: i64, installing: bool) -> bytes:
    """Whether a copy is being made: not eligible as a home until it is done (L2)."""
    writer = BytesWriter()
    put_checked_header(writer, KIND_INSTALL, FLAG_DURABLE, group, epoch, index)
    writer.append(1 if installing else 0)
    return record(writer.getvalue())


def dequeue_record(
    group: i64, epoch: i64, index: i64, queue_id: i64, indexes: list[int], flags: i64 = 0
) -> bytes:
    """A DEQUEUE of `indexes`, which must ascend."""
    return dequeue_ranges_record(group, epoch, index, queue_id, ascending_ranges(indexes), flags)


def dequeue_ranges_record(
    group: i64, epoch: i64, index: i64, queue_id: i64, ranges: list[int], flags: i64 = 0
) -> bytes:
    """A DEQUEUE of [first, count, first, count, ...]."""
    writer = BytesWriter()
    put_checked_header(writer, KIND_DEQUEUE, flags, group, epoch, index)
    put_u32(writer, queue_id)
    put_u32(writer, len(ranges) // 2)
    at: i64 = 0
    while at < len(ranges):
        write_i64_be(writer, ranges[at])
        put_u32(writer, ranges[at + 1])
        at += 2
    return record(writer.getvalue())


def ascending_ranges(indexes: list[int]) -> list[int]:
    """Compress ascending numbers to [first, count, first, count, ...]; repeated ones count once."""
    ranges: list[int] = []
    first: i64 = 0
    count: i64 = 0
    for number in indexes:
        index: i64 = number
        if count > 0 and index == first + count and count < 0xFFFFFFFF:
            count += 1
        elif count == 0 or index > first + count:
            if count > 0:
                ranges.append(first)
                ranges.append(count)
            first = index
            count = 1
        else:
            assert index >= first, "indexes to dequeue must ascend"
    if count > 0:
        ranges.append(first)
        ranges.append(count)
    return ranges


def requeue_record(
    group: i64,
    epoch: i64,
    index: i64,
    queue_id: i64,
    message_index: i64,
    delivery_count: i64,
    flags: i64 = 0,
) -> bytes:
    writer = BytesWriter()
    put_checked_header(writer, KIND_REQUEUE, flags, group, epoch, index)
    put_u32(writer, queue_id)
    write_i64_be(writer, message_index)
    put_u32(writer, delivery_count)
    return record(writer.getvalue())


def purge_record(
    group: i64, epoch: i64, index: i64, queue_id: i64, up_to_index: i64, flags: i64 = 0
) -> bytes:
    writer = BytesWriter()
    put_checked_header(writer, KIND_PURGE, flags, group, epoch, index)
    put_u32(writer, queue_id)
    write_i64_be(writer, up_to_index)
    return record(writer.getvalue())


def drop_queue_record(group: i64, epoch: i64, index: i64, queue_id: i64, flags: i64 = 0) -> bytes:
    writer = BytesWriter()
    put_checked_header(writer, KIND_DROP_QUEUE, flags, group, epoch, index)
    put_u32(writer, queue_id)
    return record(writer.getvalue())


def watermark_record(
    group: i64, epoch: i64, index: i64, queue_id: i64, packed: bytes, flags: i64 = 0
) -> bytes:
    """What a queue has accepted, as `DedupState.packed` encodes it."""
    writer = BytesWriter()
    put_checked_header(writer, KIND_WATERMARK, flags, group, epoch, index)
    put_u32(writer, queue_id)
    writer.write(packed)
    return record(writer.getvalue())


def shown_record(
    group: i64,
    epoch: i64,
    index: i64,
    queue_id: i64,
    priority: i64,
    message_index: i64,
    flags: i64 = 0,
) -> bytes:
    """The messages of a priority were delivered up to an index."""
    writer = BytesWriter()
    put_checked_header(writer, KIND_SHOWN, flags, group, epoch, index)
    put_u32(writer, queue_id)
    writer.append(int(priority))
    write_i64_be(writer, message_index)
    return record(writer.getvalue())


def leases_record(
    group: i64, epoch: i64, index: i64, queue_id: i64, packed: bytes, flags: i64 = 0
) -> bytes:
    """The leases of a queue; none if `packed` is empty."""
    writer = BytesWriter()
    put_checked_header(writer, KIND_LEASES, flags, group, epoch, index)
    put_u32(writer, queue_id)
    writer.write(packed)
    return record(writer.getvalue())


def segment_header(segment: i64, store_uuid: bytes) -> bytes:
    """The first 64 bytes of a segment file."""
    assert len(store_uuid) == 16
    writer = BytesWriter()
    writer.write(MAGIC)
    put_u32(writer, FORMAT_VERSION)
    write_i64_be(writer, segment)
    writer.write(store_uuid)
    writer.write(bytes(SEGMENT_HEADER_BYTES - 40))
    put_u32(writer, crc32c(writer.getvalue()))
    return writer.getvalue()


# --- decoding ---------------------------------------------------------------------------------


def is_newer(header: bytes) -> bool:
    """Whether a newer program wrote this header; one that fails its checksum is just damaged."""
    if len(header) < SEGMENT_HEADER_BYTES or header[:8] != MAGIC:
        return False
    return u32_at(header, 60) == crc32c(header[:60]) and u32_at(header, 8) > FORMAT_VERSION


def segment_header_fault(header: bytes, segment: i64, store_uuid: bytes) -> str:
    """What is wrong with a segment's header; empty if nothing."""
    if len(header) < SEGMENT_HEADER_BYTES:
        return "segment header is incomplete"
    if header[:8] != MAGIC:
        return "segment header has no magic"
    if u32_at(header, 60) != crc32c(header[:60]):
        return "segment header fails its checksum"
    if is_newer(header):
        version = u32_at(header, 8)
        return f"segment has format version {version}, this program knows {FORMAT_VERSION}"
    if read_i64_be(header, 12) != segment:
        return f"segment header names segment {read_i64_be(header, 12)}"
    if store_uuid and header[20:36] != store_uuid:
        return "segment belongs to another store"
    return ""


def check_record(buffer: bytes, offset: i64) -> i64:
    """Size of the valid record at `offset`, or one of CHECK_UNWRITTEN, _INCOMPLETE, _BAD."""
    limit: i64 = len(buffer)
    if offset + RECORD_HEADER_BYTES > limit:
        return CHECK_INCOMPLETE
    length: i64 = u32_at(buffer, offset)
    word: i64 = u32_at(buffer, offset + 8)
    kind: i64 = word >> 24
    if kind == KIND_UNWRITTEN:
        if length == 0 and u32_at(buffer, offset + 4) == 0 and word == 0:
            return CHECK_UNWRITTEN
        return CHECK_BAD
    if kind > KIND_LAST or length > PAYLOAD_BYTES_MAX:
        return CHECK_BAD
    end: i64 = offset + RECORD_HEADER_BYTES + length
    if end > limit:
        return CHECK_INCOMPLETE
    crc: i64 = crc32c(buffer[offset + UNCHECKED_HEADER_BYTES : end])
    if crc != u32_at(buffer, offset + 4):
        return CHECK_BAD
    return end - offset


def check_message(buffer: bytes, offset: i64) -> i64:
    """Size of the message record at `offset`; CHECK_INCOMPLETE if the buffer ends before it does.

    Raises CorruptRecord if it isn't there: then the position is wrong or the disk is.
    """
    size = check_record(buffer, offset)
    if size == CHECK_INCOMPLETE:
        return CHECK_INCOMPLETE
    if size < 0 or size == CHECK_UNWRITTEN:
        raise CorruptRecord("no valid record", offset)
    kind: i64 = u32_at(buffer, offset + 8) >> 24
    if kind != KIND_ENQUEUE and kind != KIND_MOVED:
        raise CorruptRecord(f"a {KIND_NAMES[kind]} record where a message should be", offset)
    return size


def decode_message(buffer: bytes, offset: i64) -> StoredMessage | None:
    """The message whose record is at `offset`; None if the buffer ends before it does.

    Raises CorruptRecord as check_message does.
    """
    if check_message(buffer, offset) == CHECK_INCOMPLETE:
        return None
    return parse_message(buffer, offset)


def parse_message(buffer: bytes, offset: i64) -> StoredMessage:
    """The message in a record that has been checked."""
    word: i64 = u32_at(buffer, offset + 8)
    found = StoredMessage(
        word >> 24,
        word >> 16 & 0xFF,
        word & 0xFFFF,
        u32_at(buffer, offset + 12),
        read_i64_be(buffer, offset + 16),
    )
    found.arrived_ms = read_i64_be(buffer, offset + 24)
    found.expiration_ms = read_i64_be(buffer, offset + 32)
    count_word: i64 = u32_at(buffer, offset + 40)
    found.priority = count_word >> 24
    at: i64 = offset + 44
    end: i64 = at + (count_word & 0xFFFF) * 4
    queue_ids: list[int] = []
    while at < end:
        queue_ids.append(u32_at(buffer, at))
        at += 4
    found.queue_ids = queue_ids
    end = at + 2 + u16_at(buffer, at)
    found.tail = buffer[at + 2 : end]
    at = end + 4
    found.content = buffer[at : at + u32_at(buffer, end)]
    return found


def tail_at(buffer: bytes, offset: i64) -> i64:
    """Where the route tail of the message record at `offset` begins, after its length."""
    return offset + 46 + u16_at(buffer, offset + 42) * 4


def content_bytes_at(buffer: bytes, offset: i64) -> i64:
    """Content length of the message record at `offset`, from its first bytes."""
    at: i64 = tail_at(buffer, offset)
    return u32_at(buffer, at + u16_at(buffer, at - 2))


def origin_at(buffer: bytes, offset: i64) -> i64:
    """Where origin and number of the message record at `offset` are, if it has FLAG_ORIGIN."""
    at: i64 = tail_at(buffer, offset)
    at += u16_at(buffer, at - 2)
    return at + 4 + u32_at(buffer, at)


def identity_offset(buffer: bytes, offset: i64) -> i64:
    """Where the identity of the message record at `offset` is; it must have FLAG_IDENTITY."""
    at: i64 = origin_at(buffer, offset)
    return at + ORIGIN_BYTES if u32_at(buffer, offset + 8) >> 16 & FLAG_ORIGIN != 0 else at


def decode_run(
    buffer: bytes, buffer_offset: i64, entries: list[tuple[int, int]]
) -> list[StoredMessage]:
    """The messages of leading `entries` (index, position) whose records lie whole in `buffer`.

    `buffer` holds the bytes of one segment from `buffer_offset` on. The list is shorter than
    `entries` if the buffer ends first; read on from the next entry's position then. A record that
    names another index than its entry is corrupt: it would deliver a wrong message.
    """
    found: list[StoredMessage] = []
    for index, position in entries:
        offset: i64 = (i64(position) & 0xFFFFFFFF) - buffer_offset
        if offset < 0 or offset >= len(buffer):
            break
        message = decode_message(buffer, offset)
        if message is None:
            break
        if message.index != i64(index):
            raise CorruptRecord(f"record of message {message.index}, not {index},", offset)
        found.append(message)
    return found
