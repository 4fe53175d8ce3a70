"""The adoption while it runs: looks at both sides, decides, and has bridges follow.

Neither side keeps anything of it, so a run may end at any moment and the next one goes on. While a
side doesn't tell of its queues, nothing changes: bridges go on the way they were.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from rhizome.adopt.adoption_state import AdoptionState
from rhizome.adopt.errors import SiteUnavailable
from rhizome.adopt.queue_crossing import Ends, Make, Moved, QueueCrossing
from rhizome.adopt.queue_direction import Course, Decision, Direction, admitted, decide_all
from rhizome.adopt.queue_listing import Listing, QueueCounts, QueueKey
from rhizome.bridge import BridgeEvent
from rhizome.bridge.bridge_events import CONNECTED, LOST, READY, Report

DIRECTION: Final = "direction"
"""The event that a queue goes another way."""
LOOK_S_DEFAULT: Final = 1.0
BRIDGES_MAX_DEFAULT: Final = 256
PAUSE_FACTOR: Final = 2.0
"""The least pause between two looks, in times of what a look takes."""
WAITS: Final = "waits for a bridge: more queues have something to move than --bridges allows"

NEWCOMERS_ASKED_MAX: Final = 100
"""Queues that are asked over AMQP at one look."""

Save = Callable[[AdoptionState], None]


@dataclass(frozen=True, slots=True)
class Pace:
    """Between two looks, and how many bridges run at a time."""

    look_s: float = LOOK_S_DEFAULT
    bridges_max: int = BRIDGES_MAX_DEFAULT

    def pause_s(self, took_s: float) -> float:
        """How long to wait after a look. A listing of many thousand queues is hard work for the
        HTTP API of RabbitMQ, which others use as well."""
        return max(self.look_s, took_s * PAUSE_FACTOR)


class Observer(Protocol):
    """Who tells of the queues of both sides."""

    async def read(self) -> Listing:
        """Raises SiteUnavailable, or AdoptionError if asking again is of no use."""

    async def source_consumers(self, keys: list[QueueKey]) -> Mapping[QueueKey, int]:
        """How many consumers these have at the source at this moment; none if it can't be told."""


class Adoption:
    """Moves messages until it is stopped.

    Invariant: of each queue there is one crossing at most, and with it one bridge.
    """

    def __init__(
        self, observer: Observer, ends: Ends, course: Course, pace: Pace, state: AdoptionState
    ) -> None:
        self.state = state
        self._observer = observer
        self._ends = ends
        self._course = course
        self._pace = pace
        self._crossings: dict[QueueKey, QueueCrossing] = {}
        self._told: dict[QueueKey, Decision] = {}
        self._lost_text = ""
        self._was_read = False

    async def run(self, stop: asyncio.Event, report: Report, make: Make, save: Save) -> None:
        """Follow the consumers until `stop` is set, then let arrive what is under way.

        Raises AdoptionError if a side refuses to tell of its queues at the start.
        """
        stopping = asyncio.create_task(stop.wait())
        self.state.begin_run()
        try:
            while not stop.is_set():
                began_s = asyncio.get_running_loop().time()
                await self._look(report, make)
                save(self.state)
                took_s = asyncio.get_running_loop().time() - began_s
                await asyncio.wait([stopping], timeout=self._pace.pause_s(took_s))
            await self._end()
        except BaseException:
            for crossing in self._crossings.values():
                crossing.give_up()
            raise
        finally:
            stopping.cancel()
        self._note(None)
        self.state.is_running = False
        save(self.state)

    async def _end(self) -> None:
        for crossing in self._crossings.values():
            crossing.want(Direction.REST)
        for crossing in self._crossings.values():
            await crossing.ended()

    async def _look(self, report: Report, make: Make) -> None:
        try:
            listing = await self._with_newcomers(await self._observer.read())
        except SiteUnavailable as error:
            self._tell_silence(str(error), report)
            return
        decisions = decide_all(listing, self._course)
        running = {key for key, each in self._crossings.items() if not each.is_at_rest}
        allowed = admitted(decisions, listing, running, self._pace.bridges_max)
        for key, decision in decisions.items():
            direction = decision.direction if key in allowed else Direction.REST
            self._follow(key, direction, report, make)
        for key in running - decisions.keys():
            self._crossings[key].want(Direction.REST)
        self._tell(decisions, report)
        self._note(_Look(listing, decisions, allowed))

    async def _with_newcomers(self, listing: Listing) -> Listing:
        """The listing with consumers that the source's HTTP API doesn't tell of yet, of queues
        whose messages at the target wait for them.

        Only of queues at rest: then no consumer that is counted is a bridge.
        """
        waiting = [
            key
            for key, target in listing.target.items()
            if target.messages and not target.consumers and self._is_unattended(key, listing)
        ]
        if not waiting:
            return listing
        counted = await self._observer.source_consumers(waiting[:NEWCOMERS_ASKED_MAX])
        source = dict(listing.source)
        for key, consumers in counted.items():
            source[key] = replace(source[key], consumers=consumers)
        return Listing(source, listing.target)

    def _is_unattended(self, key: QueueKey, listing: Listing) -> bool:
        source, crossing = listing.source.get(key), self._crossings.get(key)
        is_at_rest = crossing is None or crossing.is_at_rest
        return source is not None and source.is_shared and not source.consumers and is_at_rest

    def _follow(self, key: QueueKey, direction: Direction, report: Report, make: Make) -> None:
        crossing = self._crossings.get(key)
        if crossing is None:
            if direction is Direction.REST:
                return
            moved = self.state.moved.get(key, Moved())
            crossing = QueueCrossing(key, self._ends, report, make, moved)
            self._crossings[key] = crossing
        crossing.raise_defect()
        crossing.want(direction)

    # --- telling

    def _tell_silence(self, text: str, report: Report) -> None:
        """The same is told once."""
        if text != self._lost_text:
            self._lost_text = text
            whole = f"{text}; bridges go on as they are, and it is asked again"
            report(BridgeEvent("", LOST, whole, {"reason": text}))

    def _tell(self, decisions: dict[QueueKey, Decision], report: Report) -> None:
        if self._lost_text:
            self._lost_text = ""
            report(BridgeEvent("", CONNECTED, "both sides tell of their queues again"))
        for key, decision in decisions.items():
            before = self._told.get(key)
            is_new = before is None and decision.direction is Direction.REST
            if not is_new and (before is None or before.direction is not decision.direction):
                text = f"{decision.direction.value}: {decision.why}"
                details = {"direction": decision.direction.value, "why": decision.why}
                report(BridgeEvent(key.label, DIRECTION, text, {"vhost": key.vhost, **details}))
        self._told = decisions
        if not self._was_read:
            self._was_read = True
            report(BridgeEvent("", READY, f"{len(decisions)} queues to look after"))

    def _note(self, look: _Look | None) -> None:
        """Keep what was moved, and what was seen for those who ask."""
        for key, crossing in self._crossings.items():
            self.state.moved[key] = crossing.moved
        if look is not None:
            self.state.rows = [self._row(key, look) for key in look.decisions]

    def _row(self, key: QueueKey, look: _Look) -> dict[str, Any]:
        decision, crossing = look.decisions[key], self._crossings.get(key)
        moved = self.state.moved.get(key, Moved())
        waits = decision.direction is not Direction.REST and key not in look.allowed
        return {
            **key._asdict(),
            "direction": decision.direction.value,
            "why": WAITS if waits else decision.why,
            "source": _counts_row(look.listing.source.get(key)),
            "target": _counts_row(look.listing.target.get(key)),
            "forward": moved.forward,
            "back": moved.back,
            "under_way": 0 if crossing is None else crossing.window,
            "trouble": "" if crossing is None else crossing.trouble,
        }


@dataclass(frozen=True, slots=True)
class _Look:
    """What one look has seen and decided."""

    listing: Listing
    decisions: dict[QueueKey, Decision]
    allowed: set[QueueKey]


def _counts_row(counts: QueueCounts | None) -> dict[str, Any] | None:
    if counts is None:
        return None
    return {
        "messages": counts.messages,
        "unacked": counts.unacked,
        "consumers": counts.consumers,
        "publish_rate": counts.publish_rate,
    }
