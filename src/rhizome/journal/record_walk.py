"""Record walk: finds where the records or messages in a log begin, many at once. Compiled.

This is for readers that process the records of a window, or the messages of some chunks, all
together. Only finding and checking them has to be done one after the other.
"""

from __future__ import annotations

from librt.strings import BytesWriter, write_i64_be
from mypy_extensions import i64

from rhizome.journal.errors import CorruptRecord
from rhizome.journal.records import (
    KIND_LAST,
    KIND_UNWRITTEN,
    PAYLOAD_BYTES_MAX,
    RECORD_HEADER_BYTES,
    check_record,
    u32_at,
)
from rhizome.journal.streams.stream_format import (
    CHUNK_HEADER_BYTES,
    KIND_MESSAGES,
    ChunkHead,
    check_chunk,
    entry_end,
)


def walk(data: bytes, start: i64) -> tuple[bytes, i64]:
    """Offsets of the valid records from `start` on, as big-endian numbers of 8 bytes, and the
    offset where the first invalid one is. Every record's checksum is verified."""
    found = BytesWriter()
    offset: i64 = start
    size: i64 = check_record(data, offset)
    while size > 0:
        write_i64_be(found, offset)
        offset += size
        size = check_record(data, offset)
    return found.getvalue(), offset


def walk_kind(data: bytes, start: i64, kind: i64) -> bytes:
    """Offsets of the valid records of one kind from `start` on, as `walk` gives them.

    Only their checksums are verified. The lengths of other records are trusted, and the walk ends
    at the first bytes that can't be a record: this is for records that are rare among millions.
    """
    found = BytesWriter()
    limit: i64 = len(data)
    offset: i64 = start
    while offset + RECORD_HEADER_BYTES <= limit:
        length: i64 = u32_at(data, offset)
        this: i64 = u32_at(data, offset + 8) >> 24
        if this == KIND_UNWRITTEN or this > KIND_LAST or length > PAYLOAD_BYTES_MAX:
            break
        if this == kind:
            if check_record(data, offset) <= 0:
                break
            write_i64_be(found, offset)
        offset += RECORD_HEADER_BYTES + length
    return found.getvalue()


def walk_chunks(data: bytes) -> tuple[bytes, bytes]:
    """The messages in some whole chunks of a stream: offsets of their entries, and of each chunk
    (count, first offset, time in ms), as big-endian numbers of 8 bytes.

    Every chunk's checksum is verified; raises CorruptRecord.
    """
    entries = BytesWriter()
    chunks = BytesWriter()
    at: i64 = 0
    size: i64 = len(data)
    while at < size:
        head = ChunkHead(data, at)
        end: i64 = at + head.size
        if end > size:
            raise CorruptRecord("a chunk that is not whole", at)
        check_chunk(data, at, head.size)
        if head.kind == KIND_MESSAGES:
            write_i64_be(chunks, head.count)
            write_i64_be(chunks, head.first)
            write_i64_be(chunks, head.time_ms)
            entry: i64 = at + CHUNK_HEADER_BYTES
            while entry < end:
                write_i64_be(entries, entry)
                entry = entry_end(data, entry)
        at = end
    return entries.getvalue(), chunks.getvalue()
