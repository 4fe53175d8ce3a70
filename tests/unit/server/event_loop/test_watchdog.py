"""What holds the event loop is noticed, described and counted; a process that stood still is not
blamed on what it was doing."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

import pytest

from rhizome.broker.turn import Turn
from rhizome.management.http.request_step_timer import RequestStepTimer
from rhizome.management.metrics.slow_turns import WAITED, WINDOW_MS, WORK, SlowTurns
from rhizome.server.event_loop.broker_driver import Shell
from rhizome.server.event_loop.busy_poll import BusyPoll
from rhizome.server.event_loop.stopwatch import Stopwatch
from rhizome.server.event_loop.watchdog import Watchdog
from rhizome.testing.in_memory_broker import make_core

MS = 1_000_000
SLOW_MS = 100
TICK_MS = 25


class World:
    """A loop whose time and processor time pass as a test wants them to."""

    def __init__(self) -> None:
        self.now_ns = 1_000 * MS
        self.cpu_ns = 5 * MS
        self.frame: FrameType | None = None
        self.turn = Turn()
        self.stopwatch = Stopwatch(self.turn, lambda: self.now_ns, lambda: self.cpu_ns)
        self.slow_turns = SlowTurns()
        self.watchdog = Watchdog(
            self.stopwatch,
            self.slow_turns,
            lambda: self.now_ns // MS,
            lambda: self.cpu_ns,
            lambda: self.frame,
        )
        self.watchdog.configure(SLOW_MS)

    def run(self, ms: float) -> None:
        """The loop's thread works for so long."""
        self.now_ns += int(ms * MS)
        self.cpu_ns += int(ms * MS)

    def stand_still(self, ms: float) -> None:
        self.now_ns += int(ms * MS)


@pytest.fixture
def world() -> World:
    return World()


def test_a_slow_turn_is_counted_with_what_it_did(world: World) -> None:
    world.stopwatch.begin()
    world.turn.doing = "timers"
    world.run(SLOW_MS + 50)
    world.stopwatch.end()
    world.watchdog.look()
    assert (world.slow_turns.work, world.slow_turns.waited) == (1, 0)
    latest = world.slow_turns.latest[0]
    assert (latest.lasted_ms, latest.ran_ms, latest.cause) == (SLOW_MS + 50, SLOW_MS + 50, WORK)
    assert latest.what == "timers"


def test_a_turn_that_its_input_made_slow_is_blamed_on_that(world: World) -> None:
    """What it does afterwards is short, and is not what people must look at."""
    world.stopwatch.begin()
    world.turn.doing = "input of somebody"
    world.run(SLOW_MS + 50)
    world.stopwatch.input_taken()
    world.turn.doing = "output"
    world.run(1)
    world.stopwatch.end()
    world.stopwatch.begin()
    world.turn.doing = "input of another"
    world.run(1)
    world.stopwatch.input_taken()
    world.turn.doing = "output"
    world.run(SLOW_MS + 50)
    world.stopwatch.end()
    world.watchdog.look()
    assert [each.what for each in world.slow_turns.latest] == ["input of somebody", "output"]


def test_a_turn_within_the_limit_is_only_the_longest_so_far(world: World) -> None:
    for ms in (3, SLOW_MS - 1, 7):
        world.stopwatch.begin()
        world.run(ms)
        world.stopwatch.end()
    world.watchdog.look()
    assert (world.slow_turns.work, world.slow_turns.waited) == (0, 0)
    assert world.slow_turns.longest_ns == (SLOW_MS - 1) * MS


def test_a_loop_that_is_held_for_ever_is_told_while_it_is(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.frame = sys._getframe()
    world.stopwatch.begin()
    world.turn.doing = "HTTP GET /api/queues"
    with caplog.at_level(logging.WARNING, "rhizome.watchdog"):
        for _ in range(100):
            world.run(50)
            world.watchdog.look()
    told = [record.getMessage() for record in caplog.records]
    assert 1 < len(told) < 5
    assert "100 ms up to now: HTTP GET /api/queues" in told[0]
    assert "event_loop/test_watchdog.py:" in told[0]
    assert world.slow_turns.work == 0  # it is counted when it ends


def test_the_sample_of_a_long_turn_is_what_its_record_says(world: World) -> None:
    world.frame = sys._getframe()
    world.stopwatch.begin()
    world.turn.doing = "the one that takes long"
    world.run(SLOW_MS + 20)
    world.watchdog.look()
    world.turn.doing = "output"
    world.run(1)
    world.stopwatch.end()
    world.watchdog.look()
    latest = world.slow_turns.latest[0]
    assert latest.what == "the one that takes long"
    assert "test_watchdog.py" in latest.where


def test_a_process_that_was_stopped_is_blamed_on_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.frame = sys._getframe()
    world.stopwatch.begin()
    world.turn.doing = "innocent"
    world.run(12)
    world.stand_still(388)
    with caplog.at_level(logging.WARNING, "rhizome.watchdog"):
        world.watchdog.look()
        world.stopwatch.end()
        world.watchdog.look()
    latest = world.slow_turns.latest[0]
    assert (latest.cause, latest.what, latest.where) == (WAITED, "", "")
    assert (world.slow_turns.work, world.slow_turns.waited) == (0, 1)
    assert [
        "400 ms, of which the event loop's thread ran 12 ms" in r.getMessage()
        for r in caplog.records
    ] == [True]
    assert "innocent" not in caplog.text


def test_what_is_not_timed_shows_in_a_tick_that_comes_late(world: World) -> None:
    stopwatch = world.stopwatch
    stopwatch.tick_ns = TICK_MS * MS
    for _ in range(3):
        stopwatch.ticked()
        world.stand_still(TICK_MS)
    stopwatch.begin()
    stopwatch.end()
    stopwatch.ticked()
    world.run(TICK_MS + SLOW_MS * 3)
    world.watchdog.look()
    stopwatch.ticked()
    world.watchdog.look()
    assert [(turn.lasted_ms, turn.cause) for turn in world.slow_turns.latest] == [(300, WORK)]


def test_a_slow_turn_is_not_counted_again_by_the_tick_that_it_made_late(world: World) -> None:
    stopwatch = world.stopwatch
    stopwatch.tick_ns = TICK_MS * MS
    stopwatch.ticked()
    stopwatch.begin()
    world.run(400)
    stopwatch.end()
    stopwatch.ticked()
    world.watchdog.look()
    assert world.slow_turns.work == 1


def test_a_loop_at_rest_is_not_held(world: World) -> None:
    stopwatch = world.stopwatch
    stopwatch.tick_ns = TICK_MS * MS
    for _ in range(100):
        stopwatch.ticked()
        stopwatch.begin()
        world.run(0.1)
        stopwatch.end()
        world.stand_still(TICK_MS - 1)
        world.watchdog.look()
    assert (world.slow_turns.work, world.slow_turns.waited) == (0, 0)


def test_lines_are_held_back_when_there_are_too_many_but_all_are_counted(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "rhizome.watchdog"):
        for _ in range(60):
            world.stopwatch.begin()
            world.run(SLOW_MS + 1)
            world.stopwatch.end()
            world.watchdog.look()
    assert world.slow_turns.work == 60
    assert len(caplog.records) < 20


def test_the_longest_of_the_last_minute_is_forgotten_after_it() -> None:
    slow_turns = SlowTurns()
    for now_ms, longest_ns in ((0, 5), (10, 90), (20, 7), (30_000, 8)):
        slow_turns.lasted(longest_ns, now_ms)
    assert slow_turns.longest_recently_ns() == 90
    slow_turns.lasted(1, WINDOW_MS + 11)
    assert (slow_turns.longest_recently_ns(), slow_turns.longest_ns) == (8, 90)


# ---- in a real loop -----------------------------------------------------------------------------


def with_shell(work: Callable[[Shell], object]) -> SlowTurns:
    """Run ``work`` in a loop with a shell whose turns are slow after 1 ms."""

    async def main() -> SlowTurns:
        core = make_core()
        loop = asyncio.get_running_loop()
        never = BusyPoll(loop, 0, time.monotonic_ns, os.sched_yield)
        broker = core.broker
        shell = Shell(broker, broker.cluster, core.store, loop, lambda: core.now_ms, never)
        watchdog = Watchdog(shell.stopwatch, SlowTurns(), lambda: 0)
        watchdog.configure(1)
        awaitable = work(shell)
        if asyncio.iscoroutine(awaitable):
            await awaitable
        while shell.scheduled:
            await asyncio.sleep(0)
        watchdog.look()
        return watchdog.slow_turns

    return asyncio.run(main())


def burn(ms: float) -> None:
    end_ns = time.thread_time_ns() + int(ms * MS)
    while time.thread_time_ns() < end_ns:
        pass


def test_a_turn_is_timed_from_its_beginning_to_its_end() -> None:
    def work(shell: Shell) -> None:
        shell.begin_turn()
        burn(5)

    slow_turns = with_shell(work)
    assert [turn.ran_ms >= 4 for turn in slow_turns.latest if turn.cause == WORK] == [True]


def test_each_step_of_a_request_is_timed_and_not_the_waiting_between() -> None:
    async def work(shell: Shell) -> None:
        async def request() -> None:
            await asyncio.sleep(0.03)
            burn(5)
            await asyncio.sleep(0.03)

        await RequestStepTimer(shell, "HTTP GET /slow", request())

    slow_turns = with_shell(work)
    assert [turn.what for turn in slow_turns.latest if turn.cause == WORK] == ["HTTP GET /slow"]


def test_a_request_that_is_cancelled_or_fails_does_so_through_its_steps() -> None:
    seen: list[str] = []

    async def work(shell: Shell) -> None:
        async def request() -> None:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise ValueError("told") from None

        async def stepped() -> None:
            await RequestStepTimer(shell, "", request())

        task = asyncio.create_task(stepped())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(ValueError, match="told"):
            await task

    with_shell(work)
    assert seen == ["cancelled"]


def test_the_thread_sees_the_stack_of_a_loop_that_is_held() -> None:
    slow_turns = SlowTurns()
    stopwatch = Stopwatch(Turn(), time.monotonic_ns, time.thread_time_ns)
    watchdog = Watchdog(stopwatch, slow_turns, lambda: time.time_ns() // MS)
    watchdog.configure(SLOW_MS)
    watchdog.start(3600)
    try:
        stopwatch.begin()
        while watchdog.sampled_ns == 0:
            burn(10)
        burn(SLOW_MS)
        stopwatch.end()
        while not slow_turns.latest:
            threading.Event().wait(0.01)
    finally:
        watchdog.stop()
    assert "test_watchdog.py" in slow_turns.latest[0].where
