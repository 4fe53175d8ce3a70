"""How the root deals with groups: its patience, and whether homes go back by themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

OFF: Final = "off"
IDLE: Final = "idle"
EAGER: Final = "eager"
REBALANCES: Final = (OFF, IDLE, EAGER)


@dataclass(frozen=True, slots=True)
class RootSettings:
    """The root's settings.

    ``whole_patience_ms``: how long a whole copy has to show itself before one that has only what is
    on disk takes over (G3). ``replace_patience_ms``: how long a broker may be away before others
    keep copies in its place. ``rebalance``: whether homes are spread over the brokers again after
    a failure, and whether groups in use move, too (G11). ``unlinked_patience_ms``: how long two
    brokers that hold leases may have no link before their groups move to one that reaches both.
    ``full_disk_patience_ms``: how long the disk of a home may be full before its groups move to
    standbys with room. With 0 for either of the last two the groups stay.
    """

    whole_patience_ms: int = 3_000
    replace_patience_ms: int = 300_000
    rebalance: str = EAGER
    unlinked_patience_ms: int = 2_000
    full_disk_patience_ms: int = 2_000
