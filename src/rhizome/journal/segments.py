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
