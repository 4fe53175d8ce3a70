"""The format of stream segments, version 1. Compiled.

A stream is a log of its own, in segments of its own. What one turn of the broker appends to it is a
chunk, which is whole or not there at all:

    chunk    4s magic "RSCK" | u32 payload length | u32 crc | u8 kind | u8 flags 0 | u16 0
             | u32 epoch | u32 count | u64 first offset | u64 number | u64 time ms
             | u64 committed | u32 largest frame | u32 0 | payload
    MESSAGES count * (u32 size of the rest | u16 tail length | u8 flags | u8 0
             | FLAG_ORIGIN: u64 origin, u64 number
             | FLAG_IDENTITY: u16 length, identity (dedup_state.py)
             | route tail | content)
    TRACKING tracking entries
    SNAPSHOT tracking entries: all that count when the segment begins; its first chunk
    FILTER   which filter values the messages of the next chunk may have (bloom_filter.py)
    INDEX    n * (u64 offset | u64 time ms | u32 position) | u64 last time ms | u32 position of this
             chunk | 4s "RIDX"; the last chunk of a complete segment
    entry    u8 kind | u8 0 | u16 name length | u64 value | name | SEEN: value bytes

The messages of a chunk have the offsets from `first` on; other chunks have none, and a count of 0.
`number` counts the chunks of a stream, `time` never falls from one to the next, and all below the
offset `committed` was safe when the chunk was made: what is damaged below that is no torn tail. An
entry's content has the header x-stream-offset already, so that it is delivered as it is;
FLAG_TABLE says that it had no headers before, and its frames have the channel CONTENT_CHANNEL.

Tracking entries: OFFSET, up to where a consumer of this name has acknowledged (value -1 forgets
it); ORIGIN, the last number taken from the edge of this name (hexadecimal, A1; 0 forgets it);
START, the first offset of the epoch of this name (decimal); EPOCH, the number of its first chunk;
SEEN, what the stream knows of its publishers (dedup_state.py, L5), without a name; FIRST, the
segment that retention has kept first; USED, when a consumer of this name was last heard of, in ms.
A release skips kinds that it does not know: USED came after the others, and version 1 stayed.

All numbers are big-endian. The crc is CRC-32C over everything after it. A segment file begins with

    8s magic "RHIZSTR\\0" | u32 version | u32 0 | u64 segment | u64 stream | u64 first offset
    | 20s 0 | u32 crc of these 60 bytes
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter, read_i64_be, write_i64_be
from mypy_extensions import i64

from rhizome.journal.errors import CorruptRecord
from rhizome.journal.records import crc32c, put_u32, u16_at, u32_at

STREAM_VERSION: Final = 1
STREAM_MAGIC: Final = b"RHIZSTR\0"
CHUNK_MAGIC: Final = b"RSCK"
CHUNK_MAGIC_NUMBER: Final = 0x5253434B
INDEX_MAGIC: Final = b"RIDX"

KIND_MESSAGES: Final = 1
KIND_TRACKING: Final = 2
KIND_SNAPSHOT: Final = 3
KIND_INDEX: Final = 4
KIND_FILTER: Final = 5
"""Releases that do not know it pass over it, as over everything that has no messages."""

STREAM_HEADER_BYTES: Final = 64
CHUNK_HEADER_BYTES: Final = 64
UNCHECKED_BYTES: Final = 12
"""The part of a chunk's header that its crc does not cover."""
ENTRY_HEADER_BYTES: Final = 8
ORIGIN_BYTES: Final = 16
INDEX_ENTRY_BYTES: Final = 20
INDEX_TRAILER_BYTES: Final = 16

FLAG_ORIGIN: Final = 1
FLAG_TABLE: Final = 2
FLAG_IDENTITY: Final = 4

NOTE_OFFSET: Final = 1
NOTE_ORIGIN: Final = 2
NOTE_START: Final = 3
NOTE_SEEN: Final = 4
NOTE_EPOCH: Final = 5
NOTE_FIRST: Final = 6
NOTE_USED: Final = 7

CONTENT_CHANNEL: Final = 1


@final
class ChunkHead:
    """The header of a chunk; ``size`` is that of the whole chunk."""

    kind: i64
    epoch: i64
    count: i64
    first: i64
    number: i64
    time_ms: i64
    committed: i64
    frame_max: i64
    size: i64

    def __init__(self, data: bytes, at: i64) -> None:
        if len(data) - at < CHUNK_HEADER_BYTES or u32_at(data, at) != CHUNK_MAGIC_NUMBER:
            raise CorruptRecord("no chunk", at)
        self.size = u32_at(data, at + 4) + CHUNK_HEADER_BYTES
        self.kind = data[at + 12]
        self.epoch = u32_at(data, at + 16)
        self.count = u32_at(data, at + 20)
        self.first = read_i64_be(data, at + 24)
        self.number = read_i64_be(data, at + 32)
        self.time_ms = read_i64_be(data, at + 40)
        self.committed = read_i64_be(data, at + 48)
        self.frame_max = u32_at(data, at + 56)


def check_chunk(data: bytes, at: i64, size: i64) -> None:
    """Raise CorruptRecord unless the ``size`` bytes at ``at`` are the chunk that was written."""
    if crc32c(data[at + UNCHECKED_BYTES : at + size]) != u32_at(data, at + 8):
        raise CorruptRecord("a chunk with a wrong checksum", at)


def chunk_bytes(
    kind: i64,
    epoch: i64,
    count: i64,
    first: i64,
    number: i64,
    time_ms: i64,
    committed: i64,
    frame_max: i64,
    payload: bytes,
) -> bytes:
    """A whole chunk."""
    head = BytesWriter()
    put_u32(head, kind << 24)
    put_u32(head, epoch)
    put_u32(head, count)
    write_i64_be(head, first)
    write_i64_be(head, number)
    write_i64_be(head, time_ms)
    write_i64_be(head, committed)
    put_u32(head, frame_max)
    put_u32(head, 0)
    checked = head.getvalue()
    crc: i64 = crc32c(payload, crc32c(checked))
    writer = BytesWriter()
    writer.write(CHUNK_MAGIC)
    put_u32(writer, len(payload))
    put_u32(writer, crc)
    writer.write(checked)
    writer.write(payload)
    return writer.getvalue()


def segment_header(segment: i64, stream: i64, first: i64) -> bytes:
    writer = BytesWriter()
    writer.write(STREAM_MAGIC)
    put_u32(writer, STREAM_VERSION)
    put_u32(writer, 0)
    write_i64_be(writer, segment)
    write_i64_be(writer, stream)
    write_i64_be(writer, first)
    writer.write(bytes(20))
    put_u32(writer, crc32c(writer.getvalue()))
    return writer.getvalue()


def read_segment_header(data: bytes, segment: i64, stream: i64) -> i64:
    """The first offset of a segment; raises CorruptRecord if this is not its header."""
    if len(data) < STREAM_HEADER_BYTES or data[:8] != STREAM_MAGIC:
        raise CorruptRecord("no header of a stream's segment", 0)
    if crc32c(data[:60]) != u32_at(data, 60):
        raise CorruptRecord("a segment header with a wrong checksum", 60)
    version = u32_at(data, 8)
    if version != STREAM_VERSION:
        raise CorruptRecord(
            f"a segment of version {version}, where this program knows {STREAM_VERSION},", 8
        )
    if read_i64_be(data, 16) != segment or read_i64_be(data, 24) != stream:
        raise CorruptRecord(
            f"segment {read_i64_be(data, 16)} of stream {read_i64_be(data, 24)}, "
            f"which does not belong here,",
            16,
        )
    return read_i64_be(data, 32)


# --- entries ----------------------------------------------------------------------------------


def entry_end(data: bytes, at: i64) -> i64:
    """Where the entry at ``at`` ends."""
    return at + 4 + u32_at(data, at)


def entry_tail_at(data: bytes, at: i64) -> i64:
    """Where the route tail of the entry at ``at`` begins; its length is at ``at + 4``."""
    flags: i64 = data[at + 6]
    at += ENTRY_HEADER_BYTES
    if flags & (FLAG_ORIGIN | FLAG_IDENTITY) == 0:
        return at
    if flags & FLAG_ORIGIN != 0:
        at += ORIGIN_BYTES
    if flags & FLAG_IDENTITY != 0:
        at += 2 + u16_at(data, at)
    return at


@final
class StreamEntry:
    """One message of a stream, as its log has it."""

    offset: i64
    time_ms: i64
    epoch: i64
    flags: i64
    tail: bytes
    content: bytes

    def __init__(
        self, offset: i64, time_ms: i64, epoch: i64, flags: i64, tail: bytes, content: bytes
    ) -> None:
        self.offset = offset
        self.time_ms = time_ms
        self.epoch = epoch
        self.flags = flags
        self.tail = tail
        self.content = content


def entries_of(data: bytes, at: i64, head: ChunkHead) -> list[StreamEntry]:
    """The messages of the chunk at ``at``, which has been checked."""
    found: list[StreamEntry] = []
    end = at + head.size
    at += CHUNK_HEADER_BYTES
    offset = head.first
    while at < end:
        tail_at = entry_tail_at(data, at)
        content_at: i64 = tail_at + u16_at(data, at + 4)
        after = entry_end(data, at)
        found.append(
            StreamEntry(
                offset,
                head.time_ms,
                head.epoch,
                i64(data[at + 6]),
                data[tail_at:content_at],
                data[content_at:after],
            )
        )
        offset += 1
        at = after
    return found


# --- tracking entries -------------------------------------------------------------------------


def put_note(writer: BytesWriter, kind: i64, name: bytes, value: i64) -> None:
    put_u32(writer, kind << 24 | len(name))
    write_i64_be(writer, value)
    writer.write(name)


def put_seen(writer: BytesWriter, packed: bytes) -> None:
    put_note(writer, NOTE_SEEN, b"", len(packed))
    writer.write(packed)


def notes_of(data: bytes, at: i64, end: i64) -> list[tuple[int, bytes, int]]:
    """The entries (kind, name, value) from ``at`` to ``end``; SEEN has its bytes as name."""
    found: list[tuple[int, bytes, int]] = []
    while at < end:
        kind: i64 = data[at]
        length = u16_at(data, at + 2)
        value = read_i64_be(data, at + 4)
        if kind == NOTE_SEEN:
            length = value
        found.append((int(kind), data[at + 12 : at + 12 + length], int(value)))
        at += 12 + length
    return found
