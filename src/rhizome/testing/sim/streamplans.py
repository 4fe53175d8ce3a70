"""The streams of a seed, and what each of them does with its messages."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

SEGMENT_BYTES: Final = 4096
"""As small as a segment can be, so that streams have many."""
RETAINED_BYTES: Final = 24 * 1024


@dataclass(frozen=True)
class StreamPlan:
    """How a stream is declared. `retained_bytes` 0: it keeps everything. `dedup`: it takes one
    message of an id. `is_passing`: somebody makes and deletes it during the run."""

    name: str
    segment_bytes: int = 0
    retained_bytes: int = 0
    dedup: bool = False
    is_passing: bool = False

    def arguments(self) -> dict[str, object]:
        found: dict[str, object] = {"x-queue-type": "stream"}
        if self.segment_bytes:
            found["x-stream-max-segment-size-bytes"] = self.segment_bytes
        if self.retained_bytes:
            found["x-max-length-bytes"] = self.retained_bytes
        if self.dedup:
            found["x-dedup"] = "message-id"
        return found


KEEPS: Final = (
    StreamPlan("events"),
    StreamPlan("clicks", segment_bytes=SEGMENT_BYTES),
    StreamPlan("entries", segment_bytes=SEGMENT_BYTES, dedup=True),
)
RETAINS: Final = StreamPlan("ticks", segment_bytes=SEGMENT_BYTES, retained_bytes=RETAINED_BYTES)
RETAINS_CHANCE: Final = 0.6


def drawn_streams(chance: random.Random) -> dict[str, StreamPlan]:
    """One or two of them."""
    plans = [KEEPS[int(chance.random() * len(KEEPS))]]
    if chance.random() < RETAINS_CHANCE:
        plans.append(RETAINS)
    return {plan.name: plan for plan in plans}
