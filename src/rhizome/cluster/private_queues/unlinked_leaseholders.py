"""Unlinked leaseholders: primaries that may hold a lease and have no link with this broker (A3).

They admit publishes, and don't know what private queues here are bound to. So a binding waits for
them, and a broker that gets a lease again admits no publish before it has heard their
meta-bindings. The root tells who they are: primaries whose lease isn't known to be over. The wait
ends when the network lets them link, or when the root sees the end of their lease.

Two brokers may be unable to link though both reach the root. Whatever waits for such a link waits
at most `PATIENCE_MS`: then a binding counts as known, and publishes are admitted. From then on what
the one publishes reaches no private queue of the other, as on any link that is down.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rhizome.cluster.private_queues.meta_bindings import AwaitedAcknowledgement

PATIENCE_MS: Final = 10_000
"""Longer than any lease: by then a dead broker is known to be dead."""


class UnlinkedLeaseholders:
    """The primaries that may hold a lease, and what waits for those without a link.

    Invariant: a broker with something in ``waiting`` is in ``leased`` and has no link.
    """

    def __init__(self, me: str) -> None:
        self.me = me
        self.leased: Sequence[str] = ()
        self.waiting: dict[str, list[tuple[int, AwaitedAcknowledgement]]] = {}

    def set_leased(self, names: Sequence[str]) -> list[AwaitedAcknowledgement]:
        """The root tells who may hold a lease; returns what waits no longer."""
        self.leased = names
        released: list[AwaitedAcknowledgement] = []
        for name in list(self.waiting):
            if name not in names:
                released += self.came(name)
        return released

    def missing(self, linked: Collection[str]) -> list[str]:
        return [name for name in self.leased if name != self.me and name not in linked]

    def await_(self, name: str, awaited: AwaitedAcknowledgement, now_ms: int) -> None:
        """Let something wait for a broker that it counts already."""
        self.waiting.setdefault(name, []).append((now_ms, awaited))

    def came(self, name: str) -> list[AwaitedAcknowledgement]:
        """The broker has a link: nobody needs to wait for it any more."""
        return [awaited for _, awaited in self.waiting.pop(name, ())]

    def give_up(self, now_ms: int) -> list[AwaitedAcknowledgement]:
        """Return what has waited for long enough."""
        released: list[AwaitedAcknowledgement] = []
        for name, waiting in list(self.waiting.items()):
            while waiting and now_ms - waiting[0][0] >= PATIENCE_MS:
                released.append(waiting.pop(0)[1])
            if not waiting:
                del self.waiting[name]
        return released
