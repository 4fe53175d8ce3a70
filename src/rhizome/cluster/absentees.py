"""Absentees: primaries that may hold a lease and that there is no link with (A3).

They admit publishes, and don't know what private queues here are bound to. So a binding waits for
them, and a broker that comes back to a lease admits no publish before it has heard of them what
they want. The root tells who they are: primaries whose lease isn't known to be over. They come when
the network lets them, or the root sees the end of their lease.

Two brokers may be unable to link though both reach the root. What waits for such a link waits
`PATIENCE_MS` at most: then a binding counts as known, and publishes are admitted. What the one
publishes reaches no private queue of the other then, as on any link that is down.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rhizome.cluster.interests import Awaited

PATIENCE_MS: Final = 10_000
"""Longer than any lease: whoever is dead is known to be by then."""


class Absentees:
    """Invariant: whoever has somebody in ``waiting`` is in ``leased`` and has no link."""

    def __init__(self, me: str) -> None:
        self.me = me
        self.leased: Sequence[str] = ()
        self.waiting: dict[str, list[tuple[int, Awaited]]] = {}

    def set_leased(self, names: Sequence[str]) -> list[Awaited]:
        """The root tells who may hold a lease; answers what waits no longer."""
        self.leased = names
        released: list[Awaited] = []
        for name in list(self.waiting):
            if name not in names:
                released += self.came(name)
        return released

    def missing(self, linked: Collection[str]) -> list[str]:
        return [name for name in self.leased if name != self.me and name not in linked]

    def await_(self, name: str, awaited: Awaited, now_ms: int) -> None:
        """Something that counts a broker already waits for it."""
        self.waiting.setdefault(name, []).append((now_ms, awaited))

    def came(self, name: str) -> list[Awaited]:
        """Nobody needs to wait for its link any more."""
        return [awaited for _, awaited in self.waiting.pop(name, ())]

    def give_up(self, now_ms: int) -> list[Awaited]:
        """What has waited for long enough."""
        released: list[Awaited] = []
        for name, waiting in list(self.waiting.items()):
            while waiting and now_ms - waiting[0][0] >= PATIENCE_MS:
                released.append(waiting.pop(0)[1])
            if not waiting:
                del self.waiting[name]
        return released
