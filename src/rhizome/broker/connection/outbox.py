"""Outbox: what a connection core wants written, collected until the shell flushes it.

Small pieces are copied into one writer; contents above ``COPY_BYTES_MAX`` are handed on as they
are, so that a large body is never copied between the socket it came from and the ones it goes to.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter
from mypy_extensions import i64

COPY_BYTES_MAX: Final = 4096
WRITER_BYTES_KEPT_MAX: Final = 65536
PIECE_BYTES: Final = WRITER_BYTES_KEPT_MAX - 2 * COPY_BYTES_MAX
"""Deliveries are cut into pieces of about this size. A writer that took a whole turn's output would
be moved each time that it doubles, and would be a new one in each turn; this one is reused, and
stays in the processor's cache. One more delivery that is copied fits below the maximum."""


@final
class Outbox:
    """Bytes to write, in order: finished ``chunks``, then what is in ``writer``.

    Invariant: ``size`` is the number of bytes in both.
    """

    writer: BytesWriter
    chunks: list[bytes]
    chunk_bytes: i64

    def __init__(self) -> None:
        self.writer = BytesWriter()
        self.chunks = []
        self.chunk_bytes = 0

    def size(self) -> i64:
        return self.chunk_bytes + len(self.writer)

    def put(self, data: bytes) -> None:
        """Copy a small piece."""
        self.writer.write(data)

    def put_large(self, data: bytes) -> None:
        """Hand on a large piece without copying it."""
        if len(self.writer) > 0:
            self.seal()
        self.chunks.append(data)
        self.chunk_bytes += len(data)

    def take(self) -> list[bytes]:
        """Everything collected so far; the outbox is empty afterwards."""
        if len(self.writer) > 0:
            self.seal()
        chunks = self.chunks
        self.chunks = []
        self.chunk_bytes = 0
        return chunks

    def seal(self) -> None:
        """Make a chunk of what is in the writer."""
        size: i64 = len(self.writer)
        self.chunks.append(self.writer.getvalue())
        self.chunk_bytes += size
        if size > WRITER_BYTES_KEPT_MAX:
            self.writer = BytesWriter()
        else:
            self.writer.truncate(0)
