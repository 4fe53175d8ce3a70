"""BusyPoll: polls while input comes at short intervals, and only then."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import pytest

from rhizome.server.busypoll import PAUSE_NS_MAX, PAUSE_NS_MIN, YIELD_LOST_NS, BusyPoll

WINDOW_US: Final = 300
WINDOW_NS: Final = WINDOW_US * 1000
ITERATION_NS: Final = 2_000
ITERATIONS_MAX: Final = 10_000


class Machine:
    """A loop, a clock and a processor: an iteration takes 2 us, yielding as long as we say."""

    def __init__(self, window_us: int = WINDOW_US) -> None:
        self.now_ns = 10 * PAUSE_NS_MAX
        self.yields = 0
        self.yield_ns = 0
        self.ready: deque[Callable[[], None]] = deque()
        self.busy_poll = BusyPoll(self, window_us, lambda: self.now_ns, self.yield_processor)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.ready.append(callback)

    def yield_processor(self) -> None:
        self.yields += 1
        self.now_ns += self.yield_ns

    def input_after(self, gap_ns: int) -> None:
        """Input comes that long after what the loop had to do."""
        self.now_ns += gap_ns
        self.busy_poll.input_came()

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
    machine.yield_ns = YIELD_LOST_NS
    assert machine.polls_after_two_inputs()
    machine.run_until_asleep()
    assert machine.yields == 1
    assert not machine.polls_after_two_inputs()
    machine.now_ns += PAUSE_NS_MIN
    assert machine.polls_after_two_inputs()


@pytest.mark.parametrize(("untroubled_ns", "pause_ns"), [(0, 2 * PAUSE_NS_MIN), (PAUSE_NS_MAX, 0)])
def test_the_pause_grows_while_the_processor_stays_wanted(
    untroubled_ns: int, pause_ns: int
) -> None:
    machine = Machine()
    machine.yield_ns = YIELD_LOST_NS
    assert machine.polls_after_two_inputs()
    machine.run_until_asleep()
    machine.now_ns += PAUSE_NS_MIN + untroubled_ns
    assert machine.polls_after_two_inputs()
    machine.run_until_asleep()
    assert machine.busy_poll.pause_ns == (pause_ns or PAUSE_NS_MIN)


def test_the_pause_has_a_maximum() -> None:
    machine = Machine()
    machine.yield_ns = YIELD_LOST_NS
    for _ in range(20):
        assert machine.polls_after_two_inputs()
        machine.run_until_asleep()
        machine.now_ns += machine.busy_poll.pause_ns
    assert machine.busy_poll.pause_ns == PAUSE_NS_MAX
