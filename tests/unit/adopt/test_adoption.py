"""The adoption between two sides in memory: what moves, and what a silent side changes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhizome.adopt.adoption import DIRECTION, Adoption, Pace
from rhizome.adopt.adoption_state import AdoptionState
from rhizome.adopt.errors import AdoptionError, SiteUnavailable
from rhizome.adopt.queue_crossing import PLACE, Ends
from rhizome.adopt.queue_direction import Course, Direction
from rhizome.adopt.queue_listing import OWN_TAG, Listing, QueueCounts, QueueKey
from rhizome.bridge import BridgeEvent, BridgeFailed, BridgeSettings
from rhizome.bridge.bridge_events import FAILED, RUNNING, Report, Reporter

SECONDS_MAX = 20
SOURCE, TARGET = "amqp://u:p@old:5672/", "amqp://u:p@new:5672/"
KEY = QueueKey("/", "orders")


class World:
    """One queue at both sides: its messages, who consumes it, and what became of the messages."""

    def __init__(self, course: Course | None = None) -> None:
        self.messages: dict[str, deque[int]] = {"old": deque(), "new": deque()}
        self.consumers = {"old": 0, "new": 0}
        self.listed: dict[str, int] = {}
        """What the HTTP API tells instead, which may be late."""
        self.consumed: list[int] = []
        self.error: Exception | None = None
        self.fails = False
        self.defect: Exception | None = None
        self.holds = asyncio.Event()
        self.holds.set()
        self.bridges: list[MovingBridge] = []
        self.events: list[BridgeEvent] = []
        self.saved: list[AdoptionState] = []
        self.looks = 0
        self.stop = asyncio.Event()
        self.adoption = Adoption(
            self,
            Ends(SOURCE, TARGET),
            course or Course(),
            Pace(look_s=0.001),
            AdoptionState("old", "new"),
        )

    async def source_consumers(self, keys: list[QueueKey]) -> dict[QueueKey, int]:
        return dict.fromkeys(keys, self.consumers["old"])

    async def read(self) -> Listing:
        self.looks += 1
        if self.error is not None:
            raise self.error
        old, new = (
            {
                KEY: QueueCounts(
                    self.listed.get(side, self.consumers[side]), len(self.messages[side])
                )
            }
            for side in ("old", "new")
        )
        return Listing(old, new)

    def _make(self, settings: BridgeSettings, report: Report) -> MovingBridge:
        self.bridges.append(MovingBridge(settings, report, self))
        return self.bridges[-1]

    async def run(self) -> None:
        await self.adoption.run(self.stop, self.events.append, self._make, self._save)

    def _save(self, state: AdoptionState) -> None:
        self.saved.append(replace(state))

    def consume(self) -> None:
        """Consumers take what is at their side."""
        for side, count in self.consumers.items():
            while count and self.messages[side]:
                self.consumed.append(self.messages[side].popleft())

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS_MAX):
            while not condition():
                self.consume()
                await asyncio.sleep(0)

    async def looked(self) -> None:
        wanted = self.looks + 2
        await self.until(lambda: self.looks >= wanted)

    @property
    def running(self) -> list[MovingBridge]:
        return [each for each in self.bridges if each.is_running]


class MovingBridge:
    """Moves one message at a time; one that it has taken arrives before it ends."""

    def __init__(self, settings: BridgeSettings, report: Report, world: World) -> None:
        self.settings = settings
        self.reporter = Reporter(settings.id, report)
        self.is_running = False
        self._world = world
        self._from, self._to = ("old", "new") if "@old" in settings.source_uri else ("new", "old")

    async def run(self, stop: asyncio.Event) -> None:
        assert not self._world.running, "two bridges of one queue"
        self.is_running = True
        try:
            if self._world.fails:
                self.reporter.tell(FAILED, "no queue", reason="no queue")
                raise BridgeFailed("no queue")
            self.reporter.tell(RUNNING, "running")
            while not stop.is_set():
                await self._move_one()
                await asyncio.sleep(0)
        finally:
            self.is_running = False

    async def _move_one(self) -> None:
        if self._world.defect is not None:
            raise self._world.defect
        if not self._world.messages[self._from]:
            return
        message = self._world.messages[self._from].popleft()
        self.reporter.counters.window = 1
        await self._world.holds.wait()
        self._world.messages[self._to].append(message)
        self.reporter.counters.moved += 1
        self.reporter.counters.window = 0


def run(
    scenario: Callable[[World], Coroutine[Any, Any, None]], course: Course | None = None
) -> World:
    async def limited() -> World:
        world = World(course)
        async with asyncio.timeout(SECONDS_MAX):
            working = asyncio.create_task(world.run())
            await scenario(world)
            world.stop.set()
            await working
        return world

    return asyncio.run(limited())


def test_messages_follow_the_consumers_there_and_back() -> None:
    async def scenario(world: World) -> None:
        world.messages["old"].extend(range(10))
        world.consumers["new"] = 1
        await world.until(lambda: len(world.consumed) == 10)
        world.consumers.update(old=1, new=0)
        world.messages["new"].extend(range(10, 20))
        await world.until(lambda: len(world.consumed) == 20)

    world = run(scenario)
    assert world.consumed == list(range(20))
    moved = world.saved[-1].moved[KEY]
    assert (moved.forward, moved.back, moved.in_doubt) == (10, 10, 0)
    told = [event.details["direction"] for event in world.events if event.name == DIRECTION]
    assert told[0] == "forward"
    assert "back" in told
    assert not world.saved[-1].is_running


def test_a_bridge_hides_from_the_consumers_and_sees_no_circle() -> None:
    async def scenario(world: World) -> None:
        world.consumers["new"] = 1
        await world.until(lambda: bool(world.running))

    (bridge,) = run(scenario).bridges
    settings = bridge.settings
    assert settings.consumer_tag == OWN_TAG
    assert settings.priority < 0
    assert settings.source_name == settings.destination_name == PLACE


def test_a_direction_begins_when_what_is_under_way_the_other_way_has_arrived() -> None:
    async def scenario(world: World) -> None:
        world.holds.clear()
        world.messages["old"].append(1)
        world.consumers["new"] = 1
        await world.until(lambda: not world.messages["old"])
        world.consumers.update(old=1, new=0)
        await world.looked()
        assert len(world.bridges) == 1
        world.holds.set()
        await world.until(lambda: len(world.bridges) == 2 and world.consumed == [1])

    run(scenario)


def test_nothing_moves_while_both_sides_have_consumers_or_none_has() -> None:
    async def scenario(world: World) -> None:
        for count in (1, 0):
            world.consumers.update(old=count, new=count)
            await world.looked()
            assert world.bridges == []

    run(scenario)


def test_a_consumer_at_the_source_that_the_api_does_not_tell_of_yet_is_found() -> None:
    async def scenario(world: World) -> None:
        world.listed["old"] = 0
        world.consumers["old"] = 1
        await world.looked()
        assert world.bridges == [], "nobody waits for it: there are no messages at the target"
        world.messages["new"].extend(range(5))
        await world.until(lambda: len(world.consumed) == 5)

    assert run(scenario).saved[-1].moved[KEY].back == 5


def test_a_side_that_falls_silent_changes_nothing_and_is_told_once() -> None:
    async def scenario(world: World) -> None:
        world.consumers["new"] = 1
        await world.until(lambda: bool(world.running))
        world.error = SiteUnavailable("no answer")
        world.consumers.update(old=1, new=0)
        await world.looked()
        assert len(world.bridges) == 1
        assert world.running
        world.error = None
        await world.until(lambda: len(world.bridges) == 2)

    world = run(scenario)
    assert [event.name for event in world.events if event.bridge == ""] == [
        "ready",
        "lost",
        "connected",
    ]


def test_a_refusal_ends_it_and_its_bridges() -> None:
    async def scenario() -> None:
        world = World()
        world.consumers["new"] = 1
        working = asyncio.create_task(world.run())
        await world.until(lambda: bool(world.running))
        world.error = AdoptionError("wrong password")
        with pytest.raises(AdoptionError, match="wrong password"):
            await working
        await world.until(lambda: not world.running)

    asyncio.run(scenario())


def test_a_bridge_that_fails_is_told_of_and_the_trouble_is_shown() -> None:
    async def scenario(world: World) -> None:
        world.fails = True
        world.consumers["new"] = 1
        await world.until(lambda: bool(world.saved and world.saved[-1].rows[0]["trouble"]))
        assert world.saved[-1].rows[0]["trouble"] == "no queue"
        world.consumers.update(old=1, new=0)
        world.fails = False
        await world.until(lambda: bool(world.running))

    run(scenario)


def test_a_defect_of_a_bridge_is_not_kept_quiet() -> None:
    async def scenario() -> None:
        world = World()
        world.consumers["new"] = 1
        working = asyncio.create_task(world.run())
        await world.until(lambda: bool(world.running))
        world.defect = ZeroDivisionError("a bug")
        with pytest.raises(ZeroDivisionError):
            await working

    asyncio.run(scenario())


def test_looks_that_take_long_are_seldom() -> None:
    pace = Pace(look_s=1.0)
    assert pace.pause_s(0.1) == 1.0
    assert pace.pause_s(3.0) == 6.0


def test_a_killed_run_is_counted_by_the_next_one() -> None:
    state = AdoptionState("old", "new")
    state.begin_run()
    assert (state.runs, state.ends_unclean) == (1, 0)
    state.begin_run()
    assert (state.runs, state.ends_unclean) == (2, 1)


@given(
    steps=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 3)), max_size=12)
)
def test_whoever_comes_and_goes_no_message_is_lost_or_doubled(
    steps: list[tuple[int, int, int]],
) -> None:
    published = 0

    async def scenario(world: World) -> None:
        nonlocal published
        for old, new, count in steps:
            world.consumers.update(old=old, new=new)
            for number in range(count):
                side = "old" if (published + number) % 2 else "new"
                world.messages[side].append(published + number)
            published += count
            await world.looked()
        world.consumers.update(old=0, new=1)
        await world.until(lambda: len(world.consumed) >= published)

    world = run(scenario, Course(Direction.FORWARD, ("*",)))
    assert sorted(world.consumed) == list(range(published))
    assert not world.messages["old"]
