"""How long the home of a group waits, and for whom."""

from __future__ import annotations

from dataclasses import dataclass

from rhizome.cluster.replication.catch_up_throttle import BACKFILL_BYTES_MAX


@dataclass(frozen=True, slots=True)
class HomeSettings:
    """How long a home waits: for a standby that doesn't answer, for edges to attach when the home
    is new, and for the root to commit a transfer.

    ``catch_up_bytes``: how many bytes a second copies get that catch up.
    """

    sync_timeout_ms: int = 2_000
    attach_patience_ms: int = 1_700
    transfer_patience_ms: int = 2_000
    catch_up_bytes: int = BACKFILL_BYTES_MAX
