"""Chunks as deliveries: with ``x-stream-chunks`` a consumer gets a stream as its log is. Compiled.

For readers that want much at once (Spark's source): instead of messages it is sent whole chunks
(journal/streamformat.py), each as the body of one delivery, with times and with contents as their
publishers sent them, up to the header x-stream-offset that FLAG_TABLE tells about. The first
delivery has no body: it tells where the stream begins and ends and where the consumer starts, which
a reader may have asked for by time.

Headers: x-stream-offset, the first offset of the chunk; x-stream-count, its messages;
x-stream-first and x-stream-next, the bounds of the stream as they are now; x-stream-bytes, its size
on disk.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i64_be
from mypy_extensions import i64

from rhizome.amqp.frames import content_frames
from rhizome.amqp.properties import FLAG_HEADERS
from rhizome.amqp.spec import BASIC
from rhizome.amqp.wire import put_shortstr, put_u16, put_u32, put_u64
from rhizome.journal.streamformat import CONTENT_CHANNEL

CHUNKS_ARGUMENT: Final = "x-stream-chunks"
TIME_ARGUMENT: Final = "x-stream-time-ms"
"""Where to start by time: x-stream-offset knows seconds only."""
FRAME_BYTES_MAX: Final = 131_072
_TYPE_I64: Final = 0x6C  # l


def chunk_content(
    chunk: bytes, offset: i64, count: i64, first: i64, after: i64, size: i64
) -> bytes:
    """The content of a delivery of a chunk, or of none."""
    table = BytesWriter()
    _put_number(table, "x-stream-offset", offset)
    _put_number(table, "x-stream-count", count)
    _put_number(table, "x-stream-first", first)
    _put_number(table, "x-stream-next", after)
    _put_number(table, "x-stream-bytes", size)
    header = BytesWriter()
    put_u16(header, BASIC)
    put_u16(header, 0)
    put_u64(header, len(chunk))
    put_u16(header, FLAG_HEADERS)
    put_u32(header, len(table))
    header.write(table.getvalue())
    return content_frames(CONTENT_CHANNEL, header.getvalue(), chunk, FRAME_BYTES_MAX)


def _put_number(writer: BytesWriter, name: str, number: i64) -> None:
    put_shortstr(writer, name)
    writer.append(_TYPE_I64)
    write_i64_be(writer, number)


def chunk_tail(queue: str) -> bytes:
    """The route tail of such deliveries: the default exchange, and the stream's name as the key."""
    writer = BytesWriter()
    put_shortstr(writer, "")
    put_shortstr(writer, queue)
    return writer.getvalue()
