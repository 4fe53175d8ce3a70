"""What a bridge reports: events as they happen, and counters now and then."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Final

# Names of events. They are part of `--json`, so they stay as they are.
CONNECTED: Final = "connected"
RUNNING: Final = "running"
LOST: Final = "lost"
BLOCKED: Final = "blocked"
REFUSED: Final = "refused"
ADVICE: Final = "advice"
STATUS: Final = "status"
DRAINING: Final = "draining"
STOPPED: Final = "stopped"
FAILED: Final = "failed"
READY: Final = "ready"
ADDED: Final = "added"
CHANGED: Final = "changed"
REMOVED: Final = "removed"


@dataclass(slots=True)
class Counters:
    """What a bridge has done since it was started.

    `moved` were confirmed by the destination; of `settled` the source was told to forget them, so
    they are never more than were moved, rejected or dropped; `sent_again` publishes that had been
    tried before; `recognised` redeliveries of what was already on its way or there.
    """

    moved: int = 0
    moved_bytes: int = 0
    settled: int = 0
    sent_again: int = 0
    recognised: int = 0
    returned: int = 0
    nacked: int = 0
    circles: int = 0
    rejected: int = 0
    dropped: int = 0
    source_sessions: int = 0
    destination_sessions: int = 0
    window: int = 0


@dataclass(frozen=True, slots=True)
class BridgeEvent:
    """Something that happened to a bridge, or to all of them ("").

    `text` is for people, `details` for programs.
    """

    bridge: str
    name: str
    text: str
    details: dict[str, object] = field(default_factory=dict)

    def line(self) -> str:
        """One line for people."""
        return f"{self.bridge or self.name}: {self.text}"

    def json_line(self, now_ms: int) -> str:
        """One JSON object on one line."""
        document = {"time_ms": now_ms, "bridge": self.bridge, "event": self.name, "text": self.text}
        return json.dumps({**document, **self.details}, ensure_ascii=True)


Report = Callable[[BridgeEvent], None]


class Reporter:
    """Reports the events of one bridge, and counts for it.

    Refusals come by the thousand if they come at all: of each reason only the first is told, then
    every hundredth, until something else was told.
    """

    REPEATS_UNTOLD: Final = 99

    def __init__(self, bridge: str, report: Report) -> None:
        self.counters = Counters()
        self._bridge = bridge
        self._report = report
        self._last: tuple[str, str] = ("", "")
        self._repeats = 0

    def tell(self, name: str, text: str, **details: object) -> None:
        """Report an event."""
        if name == REFUSED and (name, text) == self._last:
            self._repeats += 1
            if self._repeats % (self.REPEATS_UNTOLD + 1):
                return
        else:
            self._repeats = 0
        self._last = (name, text)
        self._report(BridgeEvent(self._bridge, name, text, details))

    def tell_status(self) -> None:
        """Report the counters."""
        counters = self.counters
        text = f"moved {counters.moved}, under way {counters.window}"
        for name in ("sent_again", "returned", "nacked", "circles", "rejected", "dropped"):
            count = getattr(counters, name)
            if count:
                text += f", {name.replace('_', ' ')} {count}"
        self._report(BridgeEvent(self._bridge, STATUS, text, asdict(counters)))
