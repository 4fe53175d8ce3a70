"""Replication status: the state of a group's copies, for people and metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StandbyStatus:
    """One standby.

    ``in_sync`` is `whole`, `disk`, or "" if confirms don't wait for it. ``lag`` is how many records
    it hasn't answered, and ``waited_ms`` for how long something has been due and nothing new was
    answered. The bytes count what was sent since the home began.
    """

    name: str
    incarnation: str
    stage: str
    in_sync: str
    linked: bool
    lag: int
    lag_bytes: int
    waited_ms: int
    records_bytes: int
    live_bytes: int
    backfill_bytes: int
    backfill_messages: int


@dataclass(frozen=True)
class ReplicationStatus:
    """The copies of one group.

    ``waits_for``: whose answers confirms wait for; ``too_few``: there are fewer copies than the
    policy demands (G10).
    """

    standbys: list[StandbyStatus]
    waits_for: list[str]
    too_few: bool
    window_bytes: int
