"""Run: paged entries of one segment whose records one read can fetch. Compiled."""

from __future__ import annotations

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i32, i64

USUAL_SLACK_BYTES: Final = 256
"""Records of a queue differ in size by a little: the length of a key or of a number."""


@final
class Run:
    """Entries of one segment at rising offsets, the first of them at `offset`.

    The record of the last entry begins `span` bytes after `offset` and extends beyond. Indexes and
    offsets are packed: a backlog is drained through here, and objects would cost more than the
    decoding of its messages.
    """

    segment: i64
    offset: i64
    span: i64
    count: i64
    indexes: vec[i64]
    offsets: vec[i32]

    def __init__(self, segment: i64, offset: i64) -> None:
        self.segment = segment
        self.offset = offset
        self.span = 0
        self.count = 0
        self.indexes = vec[i64]()
        self.offsets = vec[i32]()

    def takes(self, offset: i64, span_bytes_max: i64) -> bool:
        """Whether the record at `offset` lies behind the others and within the span."""
        distance: i64 = offset - self.offset
        return self.count == 0 or self.span < distance <= span_bytes_max

    def push(self, index: i64, offset: i64) -> None:
        self.indexes = append(self.indexes, index)
        self.offsets = append(self.offsets, i32(offset))
        self.span = offset - self.offset
        self.count += 1

    def bytes_wanted(self, single_bytes: i64) -> i64:
        """How much to read from `offset` on: the span, and a record of the usual size.

        A last record that is longer is left for the next run. Of a single record nothing is known
        but its place: `single_bytes` are read.
        """
        if self.count < 2:
            return single_bytes
        return self.span + self.span // (self.count - 1) + USUAL_SLACK_BYTES
