"""How long the home of a group waits, and for whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rhizome.cluster.replication.catch_up_throttle import BACKFILL_BYTES_MAX

RESUME_PATIENCE_MS: Final = 1_500
"""Longer than a client takes to see that its broker has ended, and to connect to another one."""


@dataclass(frozen=True, slots=True)
class HomeSettings:
    """How long a home waits: for a standby that doesn't answer, for edges to attach when the home
    is new, for the root to commit a transfer, and, when the home is new, for clients that come back
    from a broker that is gone.

    ``catch_up_bytes``: how many bytes a second copies get that catch up.
    """

    sync_timeout_ms: int = 2_000
    attach_patience_ms: int = 1_700
    transfer_patience_ms: int = 2_000
    catch_up_bytes: int = BACKFILL_BYTES_MAX
    resume_patience_ms: int = RESUME_PATIENCE_MS
