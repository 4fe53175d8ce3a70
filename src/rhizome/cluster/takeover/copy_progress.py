"""How far the copy of a group at a broker is, as that broker answers the root (G3).

A copy that must not become home (it is being installed, or is damaged), or isn't there, has the
index `NO_COPY`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NO_COPY: Final = -1


@dataclass(frozen=True, order=True)
class CopyProgress:
    """Epoch and index of the last record of one copy. Ordered: a copy that has more comes later."""

    epoch: int
    index: int

    def is_usable(self) -> bool:
        return self.index != NO_COPY
