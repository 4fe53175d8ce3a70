"""BusyPoll: polls while input comes at short intervals, and only then."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from rhizome.management.metrics import process_stats
from rhizome.server.event_loop.busy_poll import (
    HELPS_NS,
    LATE_NS,
    PAUSE_NS_MAX,
    PAUSE_NS_MIN,
    PROBES,
    SECOND_NS,
    UNTROUBLED_NS,
    USELESS_NS,
    BusyPoll,
)

WINDOW_US: Final = 300
WINDOW_NS: Final = WINDOW_US * 1000
ITERATION_NS: Final = 2_000
ITERATIONS_MAX: Final = 10_000


class Machine:
    """A loop, a clock and a processor: an iteration takes 2 us, yielding as long as we say."""

    def __init__(self, window_us: int = WINDOW_US, budget_percent: int = 100) -> None:
        self.now_ns = 10 * PAUSE_NS_MAX
        self.yields = 0
        self.yield_ns = 0
        self.waited_us = 0
        self.ready: deque[Callable[[], None]] = deque()
        self.busy_poll = BusyPoll(
            self, window_us, lambda: self.now_ns, self.yield_processor, budget_percent
        )

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.ready.append(callback)

    def yield_processor(self) -> None:
        self.yields += 1
        self.now_ns += self.yield_ns

    def input_after(self, gap_ns: int) -> None:
        """Input comes that long after what the loop had to do."""
        self.now_ns += gap_ns
        self.busy_poll.input_came()

    def pass_second(self, waited_ms: int) -> None:
        """A second in which somebody waited for a processor for so long."""
        self.now_ns += 1_000_000_000
        self.waited_us += waited_ms * 1000
        self.busy_poll.processors_waited_for(self.waited_us)

    def run_until_asleep(self) -> int:
        """Iterate until the loop would wait; the time that took."""
        begun_ns = self.now_ns
        for _ in range(ITERATIONS_MAX):
            if not self.ready:
                return self.now_ns - begun_ns
            self.ready.popleft()()
            self.now_ns += ITERATION_NS
        raise AssertionError("the loop never sleeps")

    def polls_after_two_inputs(self) -> bool:
        self.input_after(WINDOW_NS // 2)
        self.input_after(WINDOW_NS // 2)
        return bool(self.ready)


def test_the_first_input_is_not_followed_by_polling() -> None:
    machine = Machine()
    machine.input_after(0)
    assert not machine.ready


def test_inputs_further_apart_than_the_window_are_not_followed_by_polling() -> None:
    machine = Machine()
    for _ in range(10):
        machine.input_after(WINDOW_NS + 1)
        assert not machine.ready


def test_polling_ends_one_window_after_the_last_input() -> None:
    machine = Machine()
    machine.input_after(0)
    machine.input_after(WINDOW_NS)
    assert WINDOW_NS <= machine.run_until_asleep() <= WINDOW_NS + 2 * ITERATION_NS


def test_input_while_polling_prolongs_it_and_is_not_polled_for_twice() -> None:
    machine = Machine()
    assert machine.polls_after_two_inputs()
    for _ in range(5):
        machine.input_after(WINDOW_NS // 2)
        assert len(machine.ready) == 1
        machine.ready.popleft()()
    assert machine.run_until_asleep() >= WINDOW_NS


def test_every_look_at_the_sockets_yields_the_processor_once() -> None:
    machine = Machine()
    assert machine.polls_after_two_inputs()
    machine.run_until_asleep()
    assert machine.yields == machine.busy_poll.polls - 1  # the last one only stops


def test_a_window_of_nothing_never_polls() -> None:
    machine = Machine(window_us=0)
    for _ in range(3):
        machine.input_after(0)
    assert not machine.ready


def test_waiting_for_the_processor_ends_polling_for_a_while() -> None:
    machine = Machine()
    machine.yield_ns = LATE_NS
    assert machine.polls_after_two_inputs()
    machine.run_until_asleep()
    assert machine.yields == 1
    assert not machine.polls_after_two_inputs()
    machine.now_ns += PAUSE_NS_MIN
    assert machine.polls_after_two_inputs()


def test_input_that_is_seen_late_ends_polling_for_a_while() -> None:
    machine = Machine()
    assert machine.polls_after_two_inputs()
    machine.ready.popleft()()
    machine.input_after(LATE_NS)
    machine.run_until_asleep()
    assert machine.yields == 1
    assert not machine.polls_after_two_inputs()


def test_a_long_turn_of_the_broker_itself_ends_polling_for_a_while() -> None:
    machine = Machine()
    assert machine.polls_after_two_inputs()
    machine.now_ns += LATE_NS
    machine.run_until_asleep()
    assert machine.yields == 0
    assert not machine.polls_after_two_inputs()


@pytest.mark.parametrize(("untroubled_ns", "pause_ns"), [(0, 2 * PAUSE_NS_MIN), (UNTROUBLED_NS, 0)])
def test_the_pause_grows_while_the_processor_stays_wanted(
    untroubled_ns: int, pause_ns: int
) -> None:
    machine = Machine()
    machine.yield_ns = LATE_NS
    assert machine.polls_after_two_inputs()
    machine.run_until_asleep()
    machine.now_ns += PAUSE_NS_MIN + untroubled_ns
    assert machine.polls_after_two_inputs()
    machine.run_until_asleep()
    assert machine.busy_poll.pause_ns == (pause_ns or PAUSE_NS_MIN)


def test_the_pause_has_a_maximum() -> None:
    machine = Machine()
    machine.yield_ns = LATE_NS
    for _ in range(20):
        assert machine.polls_after_two_inputs()
        machine.run_until_asleep()
        machine.now_ns += machine.busy_poll.pause_ns
    assert machine.busy_poll.pause_ns == PAUSE_NS_MAX


def test_nothing_is_polled_while_processors_are_wanted() -> None:
    machine = Machine()
    machine.busy_poll.processors_waited_for(0)
    for waited_ms, polls in ((1000, False), (900, False), (10, True), (0, True)):
        machine.pass_second(waited_ms)
        assert machine.polls_after_two_inputs() is polls
        machine.run_until_asleep()


def test_polling_ends_when_processors_become_wanted() -> None:
    machine = Machine()
    machine.busy_poll.processors_waited_for(0)
    assert machine.polls_after_two_inputs()
    machine.ready.popleft()()
    machine.busy_poll.processors_waited_for(1_000_000)
    machine.run_until_asleep()
    assert machine.yields == 1


def test_where_linux_tells_nothing_of_pressure_it_is_not_assumed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(process_stats, "PROCESSOR_PRESSURE", tmp_path / "missing")
    assert process_stats.processors_waited_for_us() == 0


def test_pressure_is_read_in_microseconds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = tmp_path / "cpu"
    told.write_text("some avg10=97.93 avg60=97.46 avg300=98.36 total=7333555629\nfull total=0\n")
    monkeypatch.setattr(process_stats, "PROCESSOR_PRESSURE", told)
    assert process_stats.processors_waited_for_us() == 7_333_555_629


# ---- what it may cost, and whether it helps ------------------------------------------------------


def spend_on_a_stream(machine: Machine, seconds: int) -> int:
    """Input that comes every half window, for so long; the time that polling took."""
    spent_ns = 0
    end_ns = machine.now_ns + seconds * SECOND_NS
    while machine.now_ns < end_ns:
        machine.busy_poll.input_came()
        due_ns = machine.now_ns + WINDOW_NS // 2
        while machine.ready and machine.now_ns < due_ns:
            machine.ready.popleft()()
            machine.now_ns += ITERATION_NS
            spent_ns += ITERATION_NS
        machine.now_ns = due_ns
    return spent_ns


@pytest.mark.parametrize("percent", [1, 3, 10])
def test_a_steady_stream_is_polled_for_no_longer_than_the_budget_allows(percent: int) -> None:
    seconds = 20
    machine = Machine(budget_percent=percent)
    spent_ns = spend_on_a_stream(machine, seconds)
    assert 0 < spent_ns <= (seconds + 1) * SECOND_NS * percent // 100 + WINDOW_NS


def test_with_the_whole_processor_as_its_budget_a_stream_is_polled_for_all_the_time() -> None:
    machine = Machine(budget_percent=100)
    assert spend_on_a_stream(machine, 2) > SECOND_NS


def test_a_budget_of_nothing_never_polls_for_long() -> None:
    machine = Machine(budget_percent=0)
    assert spend_on_a_stream(machine, 2) < 100 * WINDOW_NS


def test_a_budget_that_was_used_up_is_there_again_for_the_next_dialog() -> None:
    machine = Machine(budget_percent=3)
    spend_on_a_stream(machine, 2)
    assert not machine.polls_after_two_inputs()
    machine.run_until_asleep()
    machine.now_ns += PAUSE_NS_MAX
    assert machine.polls_after_two_inputs()
    assert machine.run_until_asleep() >= WINDOW_NS


def judged(machine: Machine, wake_ns: int) -> None:
    """The watchdog wakes the sleeping loop up as often as is needed to judge."""
    assert machine.polls_after_two_inputs()
    machine.run_until_asleep()
    for _ in range(PROBES):
        assert machine.busy_poll.wants_probe()
        machine.busy_poll.woken(machine.now_ns - wake_ns)
    assert not machine.busy_poll.wants_probe()


def test_where_waking_up_takes_long_polling_goes_on() -> None:
    machine = Machine()
    judged(machine, HELPS_NS)
    assert machine.polls_after_two_inputs()


def test_where_waking_up_is_quick_nothing_is_polled_until_it_is_judged_again() -> None:
    machine = Machine()
    judged(machine, HELPS_NS - 1)
    assert not machine.polls_after_two_inputs()
    machine.now_ns += USELESS_NS
    judged(machine, HELPS_NS)
    assert machine.polls_after_two_inputs()


def test_a_broker_that_never_polls_is_not_woken_up_to_judge_it() -> None:
    machine = Machine()
    machine.input_after(0)
    assert not machine.busy_poll.wants_probe()


def test_a_loop_that_polls_says_nothing_about_waking_up() -> None:
    machine = Machine()
    assert machine.polls_after_two_inputs()
    for _ in range(2 * PROBES):
        machine.busy_poll.woken(machine.now_ns)
    machine.run_until_asleep()
    assert machine.polls_after_two_inputs()
