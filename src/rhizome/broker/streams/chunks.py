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

from librt.strings import BytesWriter
from mypy_extensions import i64

from rhizome.amqp.wire import put_shortstr
from rhizome.broker.bulk import bulk_content, put_number

CHUNKS_ARGUMENT: Final = "x-stream-chunks"
TIME_ARGUMENT: Final = "x-stream-time-ms"
"""Where to start by time: x-stream-offset knows seconds only."""


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
