"""The times and limits of the consensus core. Every broker of a cluster should have the same."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from rhizome.errors import RhizomeError

NEVER_MS: Final = 1 << 62
"""A deadline that doesn't come."""

STALL_MS: Final = 250
"""A driver that ticks as often as it should is never away for this long; one that is away longer
has stood still, or had no processor."""

EXCUSES_MAX: Final = 4
"""How often a broker that stood still may take that as the reason for not having heard of another,
until it hears of it."""

KIB: Final = 1024
MIB: Final = 1024 * 1024


class SettingsError(RhizomeError):
    """Settings under which the rules don't hold; the text says which, and what to change."""


@dataclass(frozen=True, slots=True)
class ConsensusSettings:
    """All times in milliseconds of the broker's own monotonic clock.

    Invariant: ``home_lease_ms > root_lease_ms + election_patience_ms``, so that homes keep their
    leases through an election (R9).
    """

    heartbeat_ms: int = 150
    root_lease_ms: int = 900
    election_patience_ms: int = 400
    startup_patience_ms: int = 3000
    home_lease_ms: int = 1600
    max_drift: float = 0.05
    retire_ms: int = 60_000
    """How long a registered broker that doesn't vote may be away before it is retired."""

    rest_ms: int = 0
    """Last man standing (R4): how long a voter may be away before it doesn't count until it is
    back; 0: it always counts."""

    log_entries_max: int = 4096
    """Applied entries in the log at which the application is asked for a snapshot."""
    log_bytes_max: int = 8 * MIB
    log_entries_kept: int = 512
    """Entries left in the log at a snapshot, so that a broker a little behind needs no snapshot."""
    append_bytes_max: int = 256 * KIB
    append_entries_max: int = 1024
    appends_in_flight_max: int = 8
    snapshot_chunk_bytes: int = 256 * KIB
    uncommitted_bytes_max: int = 16 * MIB
    reserve_bytes: int = 4 * MIB
    """Beyond ``uncommitted_bytes_max``, for what must not be refused (R11)."""

    def __post_init__(self) -> None:
        if self.home_lease_ms <= self.root_lease_ms + self.election_patience_ms:
            raise SettingsError(
                f"home_lease ({self.home_lease_ms} ms) must be longer than root_lease and "
                f"election_patience together ({self.root_lease_ms + self.election_patience_ms} ms),"
                " or homes stop at every election: raise home_lease"
            )
        if self.heartbeat_ms * 3 > self.root_lease_ms:
            raise SettingsError(
                f"root_lease ({self.root_lease_ms} ms) must be at least three heartbeats of "
                f"{self.heartbeat_ms} ms, or one late answer costs the root its office"
            )
        if 0 < self.rest_ms <= self.home_lease_ms:
            raise SettingsError(
                f"last_man_standing ({self.rest_ms} ms) must be longer than home_lease "
                f"({self.home_lease_ms} ms), or a broker that restarts loses its vote: raise it"
            )
        if not 0 <= self.max_drift < 1:
            raise SettingsError(f"max_drift is {self.max_drift}: it must be in [0, 1)")

    def honoured_ms(self, lease_ms: int) -> int:
        """How long the grantor keeps to a lease: longer than its holder does (R9).

        It is one more millisecond because clocks are read in whole ones.
        """
        return ceil(lease_ms * (1 + self.max_drift)) + 1
