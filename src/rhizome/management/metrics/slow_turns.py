"""SlowTurns: the occasions when something held the event loop for too long, as the API shows them.

The server's watchdog writes them, from its own thread; each change is one assignment.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from rhizome.management.openapi.endpoint_shapes import NUMBER, TEXT, fields, many, one_of, record

WORK: Final = "work"
WAITED: Final = "waited"
KEPT_MAX: Final = 50
WINDOW_MS: Final = 60_000

SLOW_TURN: Final = record(
    "SlowTurn",
    {
        **fields(NUMBER, "number ended_ms lasted_ms ran_ms"),
        "cause": one_of(WORK, WAITED),
        **fields(TEXT, "what where"),
    },
)
SLOW_TURNS: Final = record(
    "SlowTurns",
    {
        **fields(NUMBER, "limit_ms work waited longest_ms longest_recently_ms"),
        "latest": many(SLOW_TURN),
    },
)


@dataclass(frozen=True, slots=True)
class SlowTurn:
    """One slow turn. ``ran_ms`` is the processor time of the loop's thread. A turn whose cause is
    `waited` ran for so little of its time that its work is not to blame."""

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
    """The slow turns since the broker started; the latest KEPT_MAX are described.

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
