"""Link statistics: the numbers of a link, for people."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinkStatistics:
    """One open link, for people. Counts by method leave out methods that never came."""

    name: str
    address: str
    dialled: bool
    version: int
    open_ms: int
    silent_ms: int
    backlog_bytes: int
    congested: bool
    sent_frames: int
    sent_bytes: int
    received_frames: int
    received_bytes: int
    sent_by_method: dict[int, int]
    received_by_method: dict[int, int]
