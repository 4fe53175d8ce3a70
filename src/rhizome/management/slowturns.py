"""SlowTurns: the times at which something held the event loop for too long, as the API shows them.

The server's watchdog writes them, from its own thread; each change is one assignment.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from rhizome.management.declared import NUMBER, TEXT, many, one_of, record

WORK: Final = "work"
WAITED: Final = "waited"
KEPT_MAX: Final = 50
WINDOW_MS: Final = 60_000

SLOW_TURN: Final = record(
    "SlowTurn",
    {
        "number": NUMBER,
        "ended_ms": NUMBER,
        "lasted_ms": NUMBER,
        "ran_ms": NUMBER,
        "cause": one_of(WORK, WAITED),
        "what": TEXT,
        "where": TEXT,
    },
)
SLOW_TURNS: Final = record(
    "SlowTurns",
    {
        "limit_ms": NUMBER,
        "work": NUMBER,
        "waited": NUMBER,
        "longest_ms": NUMBER,
        "longest_recently_ms": NUMBER,
        "latest": many(SLOW_TURN),
    },
)


@dataclass(frozen=True, slots=True)
class SlowTurn:
    """One of them. ``ran_ms`` is the processor time of the loop's thread; a turn whose cause is
    `waited` ran for so little of its time that what it did is not to blame."""

    number: int
    ended_ms: int
    lasted_ms: int
    ran_ms: int
    cause: str
    what: str
    where: str

    def row(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class SlowTurns:
    """Those since the broker started; the latest KEPT_MAX are described.

    ``longest_ns`` is that of all turns, slow or not.
    """

    limit_ms: int = 0
    work: int = 0
    waited: int = 0
    longest_ns: int = 0
    latest: deque[SlowTurn] = field(default_factory=lambda: deque(maxlen=KEPT_MAX))
    _recent: deque[tuple[int, int]] = field(default_factory=deque)

    def add(self, turn: SlowTurn) -> None:
        if turn.cause == WORK:
            self.work += 1
        else:
            self.waited += 1
        self.latest.append(turn)

    def lasted(self, longest_ns: int, now_ms: int) -> None:
        """The longest turn since the last call, in ``now_ms``. Keeps the falling maxima of the last
        minute, so that a few numbers are enough."""
        self.longest_ns = max(self.longest_ns, longest_ns)
        recent = self._recent
        while recent and recent[-1][1] <= longest_ns:
            recent.pop()
        recent.append((now_ms, longest_ns))
        while now_ms - recent[0][0] > WINDOW_MS:
            recent.popleft()

    def longest_recently_ns(self) -> int:
        """The longest turn of the last minute."""
        return self._recent[0][1] if self._recent else 0

    def row(self) -> dict[str, object]:
        return {
            "limit_ms": self.limit_ms,
            "work": self.work,
            "waited": self.waited,
            "longest_ms": self.longest_ns // 1_000_000,
            "longest_recently_ms": self.longest_recently_ns() // 1_000_000,
            "latest": [turn.row() for turn in list(self.latest)],
        }
