"""Chunk delivery: with ``x-stream-chunks`` a consumer gets a stream chunk by chunk. Compiled.

This is for readers that want much at once, such as Spark's source. Instead of messages the consumer
gets whole chunks (journal/streams/stream_format.py), each as the body of one delivery, with times,
and with contents as their publishers sent them, except for the header x-stream-offset that
FLAG_TABLE tells about. The first delivery has no body: it says where the stream begins and ends and
where the consumer starts, which a reader may have asked for by time.

Headers: x-stream-offset, the first offset of the chunk; x-stream-count, its messages;
x-stream-first and x-stream-next, the bounds of the stream as they are now; x-stream-bytes, its size
on disk.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from rhizome.amqp.primitives import put_shortstr
from rhizome.broker.message_batch_content import bulk_content, put_number

CHUNKS_ARGUMENT: Final = "x-stream-chunks"
TIME_ARGUMENT: Final = "x-stream-time-ms"
"""Where to start, as a time in ms: x-stream-offset has seconds only."""


def chunk_content(
    chunk: bytes, offset: i64, count: i64, first: i64, after: i64, size: i64
) -> bytes:
    """The content of a delivery of a chunk, or of none."""
    table = BytesWriter()
    put_number(table, "x-stream-offset", offset)
    put_number(table, "x-stream-count", count)
    put_number(table, "x-stream-first", first)
    put_number(table, "x-stream-next", after)
    put_number(table, "x-stream-bytes", size)
    return bulk_content(table, chunk)


def chunk_tail(queue: str) -> bytes:
    """The route tail of such deliveries: the default exchange, and the stream's name as the key."""
    writer = BytesWriter()
    put_shortstr(writer, "")
    put_shortstr(writer, queue)
    return writer.getvalue()
