"""Shows messages of a stream without being a consumer of it."""

from __future__ import annotations

from rhizome.journal.errors import CorruptRecord
from rhizome.journal.streams.stream_format import (
    CHUNK_HEADER_BYTES,
    KIND_MESSAGES,
    STREAM_HEADER_BYTES,
    ChunkHead,
    StreamEntry,
    check_chunk,
    entries_of,
)
from rhizome.journal.streams.stream_log import StreamLog


def peek(log: StreamLog, offset: int, count: int, bytes_max: int) -> list[StreamEntry]:
    """Up to ``count`` visible messages from an offset on; fewer when they reach ``bytes_max``
    together."""
    found: list[StreamEntry] = []
    size = 0
    offset = max(offset, int(log.first))
    place = log.find(offset)
    segment, position = int(place.segment), int(place.position)
    while offset < log.committed and len(found) < count and size < bytes_max:
        if position >= log.end_of(segment):
            segment, position = int(log.segment_after(segment)), STREAM_HEADER_BYTES
            if segment == 0:
                raise CorruptRecord(f"no offset {offset}", position)
            continue
        head = ChunkHead(log.files.read(log.id, segment, position, CHUNK_HEADER_BYTES), 0)
        if head.first > offset:
            raise CorruptRecord(f"offset {head.first}, not {offset},", position)
        if head.kind == KIND_MESSAGES and head.first + head.count > offset:
            chunk = log.files.read(log.id, segment, position, head.size)
            if len(chunk) < head.size:
                raise CorruptRecord("a chunk that is not whole", position)
            check_chunk(chunk, 0, head.size)
            for entry in entries_of(chunk, 0, head):
                if entry.offset == offset and len(found) < count and size < bytes_max:
                    found.append(entry)
                    size += len(entry.content)
                    offset += 1
        position += int(head.size)
    return found
