"""Replicator port: what a replicator needs of the broker that is home of its group."""

from __future__ import annotations

from typing import final

from mypy_extensions import i64, mypyc_attr

from rhizome.cluster.replication.catch_up_sender import LiveSource
from rhizome.cluster.replication.catch_up_throttle import BACKFILL_BYTES_MAX
from rhizome.cluster.replication.resend_window import WINDOW_BYTES_MAX
from rhizome.cluster.state.cluster_commands import Member


@mypyc_attr(allow_interpreted_subclasses=True)
class ReplicatorPort(LiveSource):
    """The broker, as the replicator of one of its groups sees it."""

    def send(self, broker: str, method: i64, parts: list[bytes]) -> bool:
        """Send a frame; False if there is no link."""
        raise NotImplementedError

    def applied(self) -> i64:
        """How far this broker has applied the cluster's log (R10)."""
        raise NotImplementedError

    def read(self, queue_id: i64, first: i64, end: i64, bytes_max: i64, found: list[bytes]) -> i64:
        """Add ENQUEUE records of the messages in [first, end) that are still alive in a queue, in
        order, until there are `bytes_max` of them; returns up to where, exclusively.

        They have their own index, name this queue alone, and neither origin nor identity.
        """
        raise NotImplementedError

    def propose(self, members: list[Member], version: i64) -> None:
        """Have the in-sync set changed, if it still has that version (G5); tell `group_changed` or
        `proposal_refused` (with the version) when it is decided."""
        raise NotImplementedError

    def damaged(self) -> list[tuple[int, int]]:
        """The messages of the group, by queue and index, that can't be read here."""
        return []

    def fetched(self, queue_id: i64, index: i64, record: bytes) -> None:
        """A broker has sent a message that can't be read here; empty: none of those asked has
        it."""

    def failed(self, name: str, error: Exception) -> None:
        """A fault of this broker itself: the standby `name` is let go and begins anew."""


@final
class ReplicatorSettings:
    """How long a home waits for a standby, how much it keeps for one, and how many bytes a second
    it sends to one that catches up while the group is in use."""

    sync_timeout_ms: i64
    unlinked_ms: i64
    window_bytes_max: i64
    backfill_bytes_max: i64

    def __init__(
        self,
        sync_timeout_ms: i64 = 2000,
        unlinked_ms: i64 = 500,
        window_bytes_max: i64 = WINDOW_BYTES_MAX,
        backfill_bytes_max: i64 = BACKFILL_BYTES_MAX,
    ) -> None:
        self.sync_timeout_ms = sync_timeout_ms
        self.unlinked_ms = unlinked_ms
        self.window_bytes_max = window_bytes_max
        self.backfill_bytes_max = backfill_bytes_max
