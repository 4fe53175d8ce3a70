"""One queue of an adoption, and the bridge that brings its messages across, if any.

    at rest     a direction is wanted                       crossing
    crossing    another one, or none, is wanted             draining: nothing more is taken
    draining    all that was under way has arrived          at rest, or crossing the other way

Both ends call themselves by one name, so the bridge sees no circle in a message that returns: which
way a queue goes is decided here, and never both ways at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final, Protocol
from urllib.parse import quote

from rhizome.adopt.queue_direction import Direction
from rhizome.adopt.queue_listing import OWN_TAG, QueueKey
from rhizome.bridge import BridgeError, BridgeEvent, BridgeSettings
from rhizome.bridge.bridge_events import BLOCKED, FAILED, LOST, RUNNING, Report, Reporter
from rhizome.bridge.settings import ID_BYTES_MAX, PREFETCH_DEFAULT
from rhizome.shovel_parameters import split_uri

PLACE: Final = "adoption"
"""The name of both ends: within one place nothing is added to `x-bridged`, and no circle seen."""
PRIORITY: Final = -100
"""Of the bridge as a consumer: an application that subscribes gets what it has credit for."""
AGAIN_S: Final = 5.0
"""Before a bridge that has failed is tried again."""
TROUBLES: Final = (LOST, BLOCKED, FAILED)


@dataclass(frozen=True, slots=True)
class Ends:
    """Both sides, for a login that may enter all vhosts; the paths of the URIs don't count."""

    source_uri: str
    target_uri: str
    prefetch: int = PREFETCH_DEFAULT
    retry_s_max: float = 10.0

    def settings(self, key: QueueKey, direction: Direction) -> BridgeSettings:
        """The bridge of a queue in one direction."""
        source = uri_of_vhost(self.source_uri, key.vhost)
        target = uri_of_vhost(self.target_uri, key.vhost)
        is_back = direction is Direction.BACK
        return BridgeSettings(
            id=_bridge_id(key),
            source_uri=target if is_back else source,
            destination_uri=source if is_back else target,
            queue=key.name,
            prefetch=self.prefetch,
            source_name=PLACE,
            destination_name=PLACE,
            retry_s_max=self.retry_s_max,
            consumer_tag=OWN_TAG,
            priority=PRIORITY,
        )


def uri_of_vhost(uri: str, vhost: str) -> str:
    """The same URI for another vhost."""
    return split_uri(uri)._replace(path=quote(vhost, safe="")).text


def _bridge_id(key: QueueKey) -> str:
    """Also the beginning of the message-ids that the bridge gives; long names give way to a sum."""
    whole = f"adopt.{key.label}"
    if len(whole.encode("utf-8", "surrogateescape")) <= ID_BYTES_MAX and whole.isprintable():
        return whole
    return f"adopt.{blake2b(repr(key).encode(), digest_size=16).hexdigest()}"


@dataclass(slots=True)
class Moved:
    """How many messages were brought across in each direction, as confirmed by where they went."""

    forward: int = 0
    back: int = 0
    dropped: int = 0
    in_doubt: int = 0
    """Left without an answer at the end of a bridge: they stay where they were, and may be at the
    other side as well."""
    sent_again: int = 0
    """Of what arrived: published more than once, after a lost connection or a refusal."""
    taken: int = 0
    """What the sides that messages came from were told to forget.

    Invariant: never more than what was brought or dropped; else messages were lost.
    """

    @property
    def lost(self) -> int:
        """What was taken from one side and not brought to the other."""
        return max(0, self.taken - self.forward - self.back - self.dropped)


class RunnableBridge(Protocol):
    """As much of a Bridge as is needed here."""

    @property
    def reporter(self) -> Reporter: ...

    async def run(self, stop: asyncio.Event) -> None: ...


Make = Callable[[BridgeSettings, Report], RunnableBridge]


class QueueCrossing:
    """Runs the bridge that is wanted.

    Invariant: at most one bridge of the queue runs, and none once the task has ended.
    """

    def __init__(self, key: QueueKey, ends: Ends, report: Report, make: Make, moved: Moved) -> None:
        self.key = key
        self.trouble = ""
        self._ends = ends
        self._report_further = report
        self._make = make
        self._moved = moved
        self._wanted = Direction.REST
        self._direction = Direction.REST
        self._changed = asyncio.Event()
        self._stop = asyncio.Event()
        self._bridge: RunnableBridge | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def direction(self) -> Direction:
        """Of the bridge that runs, also while it drains."""
        return self._direction

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing runs or is wanted."""
        return self._task is None or self._task.done()

    @property
    def window(self) -> int:
        """How many messages are under way."""
        return 0 if self._bridge is None else self._bridge.reporter.counters.window

    @property
    def moved(self) -> Moved:
        """Since the adoption began, with what the running bridge has brought so far."""
        return self._with_running()

    def want(self, direction: Direction) -> None:
        """Go this way from now on; nothing happens if it does already."""
        if direction is self._wanted:
            return
        self._wanted = direction
        self._changed.set()
        self._stop.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def ended(self) -> None:
        """Wait until no bridge runs, after REST was wanted."""
        if self._task is not None:
            await self._task

    def raise_defect(self) -> None:
        """Raise what has ended the task, if something has that is no failure of a bridge."""
        if self._task is not None and self._task.done():
            self._task.result()

    def give_up(self) -> None:
        """End at once; what is under way stays where it was."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while self._wanted is not Direction.REST:
            self._changed.clear()
            self._stop = asyncio.Event()
            if not await self._bring(self._wanted):
                await self._changed_within(AGAIN_S)
        self.trouble = ""

    async def _bring(self, direction: Direction) -> bool:
        """Run a bridge until another direction is wanted; False if it has failed."""
        self._direction = direction
        self._bridge = self._make(self._ends.settings(self.key, direction), self._report)
        try:
            await self._bridge.run(self._stop)
        except BridgeError:
            return False
        else:
            return True
        finally:
            self._moved = self._with_running()
            self._moved.in_doubt += self.window
            self._bridge = None
            self._direction = Direction.REST

    async def _changed_within(self, wait_s: float) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _with_running(self) -> Moved:
        found = replace(self._moved)
        if self._bridge is not None:
            counters = self._bridge.reporter.counters
            found.sent_again += counters.sent_again
            found.taken += counters.settled
            found.dropped += counters.dropped + counters.rejected
            if self._direction is Direction.FORWARD:
                found.forward += counters.moved
            else:
                found.back += counters.moved
        return found

    def _report(self, event: BridgeEvent) -> None:
        if event.name in TROUBLES:
            self.trouble = str(event.details.get("reason", ""))
        elif event.name == RUNNING:
            self.trouble = ""
        self._report_further(event)
