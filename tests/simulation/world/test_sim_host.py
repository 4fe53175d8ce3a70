"""Programs wake up for what has come and for their deadlines, by clocks that drift."""

from __future__ import annotations

import itertools

from rhizome.testing.sim.world.event_scheduler import SECOND, World
from rhizome.testing.sim.world.sim_host import CLOCK_PARTS, Host, Process, Program
from rhizome.testing.sim.world.sim_network import Network


class Ticker(Program):
    """Wants to be woken every 100 ms of its own clock."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.ticks: list[int] = []
        self.turns = 0
        self.due_ms = host.now_ms()
        self.inputs: list[int] = []

    def tick(self, now_ms: int) -> None:
        self.ticks.append(now_ms)
        self.due_ms = now_ms + 100

    def turn(self) -> None:
        self.turns += 1

    def next_deadline_ms(self) -> int:
        return self.due_ms


def make(seed: int = 1) -> tuple[World, Process]:
    world = World(seed)
    process = Process(world, Network(world), "b1", Ticker)
    process.start()
    return world, process


def ticker(process: Process) -> Ticker:
    assert isinstance(process.program, Ticker)
    return process.program


def test_a_program_is_woken_for_its_deadline() -> None:
    world, process = make()
    world.run_until(10 * SECOND)
    ticks = ticker(process).ticks
    assert 98 <= len(ticks) <= 101
    assert all(0 <= later - earlier - 100 <= 2 for earlier, later in itertools.pairwise(ticks))


def test_what_comes_together_is_handed_over_in_one_turn() -> None:
    world, process = make()
    world.run_until(SECOND)
    program = ticker(process)
    turns = program.turns
    for number in range(5):
        program.host.soon(lambda number=number: program.inputs.append(number))
    world.run_until(world.now_us + 1_000)
    assert program.inputs == [0, 1, 2, 3, 4]
    assert program.turns <= turns + 2


def test_a_paused_program_does_nothing_and_goes_on_later() -> None:
    world, process = make()
    world.run_until(SECOND)
    process.pause()
    ticks = len(ticker(process).ticks)
    ticker(process).host.soon(lambda: ticker(process).inputs.append(1))
    world.run_until(6 * SECOND)
    assert len(ticker(process).ticks) == ticks
    process.resume()
    world.run_until(6 * SECOND + 1_000)
    assert len(ticker(process).ticks) == ticks + 1
    assert ticker(process).inputs == [1]
    later, last = ticker(process).ticks[-2:]
    assert last - later > 4_000


def test_a_clock_that_runs_fast_brings_deadlines_sooner() -> None:
    world, process = make()
    process.clock.set_rate(CLOCK_PARTS * 2)
    process.clock_changed()
    world.run_until(10 * SECOND)
    assert 190 <= len(ticker(process).ticks) <= 202


def test_a_clock_never_goes_back() -> None:
    world, process = make()
    shown = [process.clock.now_us()]
    for number in range(50):
        process.clock.set_rate(CLOCK_PARTS + (-1) ** number * 20_000)
        world.run_until(world.now_us + 12_345)
        shown.append(process.clock.now_us())
    assert shown == sorted(shown)


def test_what_came_for_a_killed_program_never_reaches_its_successor() -> None:
    world, process = make()
    world.run_until(SECOND)
    old = ticker(process)
    old.host.soon(lambda: old.inputs.append(1))
    process.kill()
    process.start()
    old.host.soon(lambda: old.inputs.append(2))
    world.run_until(2 * SECOND)
    assert old.inputs == []
    assert ticker(process) is not old
    assert old.host.is_over()


def test_what_a_killed_programs_thread_had_not_come_to_is_not_written() -> None:
    left = set()
    for seed in range(20):
        world, process = make(seed)
        world.run_until(SECOND)
        ticker(process).host.disk.open("f").append(b"x")
        process.kill()
        left.add(bytes(process.disk.open("f").content))
    assert left == {b"x", b""}


def test_a_deadline_that_moves_is_kept_where_it_is_now() -> None:
    world, process = make()
    world.run_until(SECOND)
    program = ticker(process)
    now_ms = program.host.now_ms()
    for due_ms in (now_ms + 5_000, now_ms + 2_000, now_ms + 3_000):
        program.due_ms = due_ms
        program.host.soon(lambda: None)
        world.run_until(world.now_us + 1_000)
    ticks = len(program.ticks)
    world.run_until(6 * SECOND)
    assert 0 <= program.ticks[ticks] - (now_ms + 3_000) <= 1
    assert program.ticks[ticks + 1] - program.ticks[ticks] < 110


def test_a_thread_of_the_program_needs_no_wake_up_and_stands_still_with_it() -> None:
    world, process = make()
    world.run_until(SECOND)
    program = ticker(process)
    turns = program.turns
    program.host.disk.open("f").append(b"x")
    program.host.sync_aside(["f"], lambda: program.inputs.append(1))
    world.run_until(world.now_us + 90_000)
    assert (program.inputs, bytes(program.host.disk.open("f").durable)) == ([1], b"x")
    assert program.turns <= turns + 1, "only its own deadline has woken it"
    process.pause()
    program.host.sync_aside(["f"], lambda: program.inputs.append(2))
    world.run_until(world.now_us + SECOND)
    assert program.inputs == [1]
    process.resume()
    world.run_until(world.now_us + 1_000)
    assert program.inputs == [1, 2]
