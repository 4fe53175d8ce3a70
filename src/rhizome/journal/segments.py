"""What is known of a segment without reading it. Compiled."""

from __future__ import annotations

from typing import final

from mypy_extensions import i64


@final
class SegmentCount:
    """A segment's size, live references, and references that were ever made to it."""

    segment: i64
    size: i64
    live: i64
    total: i64

    def __init__(self, segment: i64, size: i64, live: i64, total: i64) -> None:
        self.segment = segment
        self.size = size
        self.live = live
        self.total = total


def bytes_within(pieces: list[bytes], offset: i64, length: i64) -> bytes:
    """Up to `length` bytes of what the pieces are together, from `offset` on."""
    found: list[bytes] = []
    for piece in pieces:
        size: i64 = len(piece)
        if offset < size and length > 0:
            part = piece[offset : offset + length]
            found.append(part)
            length -= len(part)
        offset = max(offset - size, 0)
    return b"".join(found)
