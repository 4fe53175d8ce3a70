"""What `make build` shows: stage, module i of n, seconds; one line on a terminal, few elsewhere."""

from __future__ import annotations

import io
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))

from build_progress import COLUMNS_MAX, LINE_EVERY_S, REWRITE, BuildProgress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_line_that_is_rewritten() -> None:
    terminal, clock = Terminal(), Clock()
    with BuildProgress(terminal, clock, ticking=False) as progress:
        progress.stage("translating 3 modules to C")
        clock.now += 7
        progress.tick()
        progress.stage("compiling C files", 3)
        clock.now += 1
        progress.step("rhizome.broker.turn")
    shown = terminal.getvalue().split(REWRITE)
    assert shown[1:] == [
        "rhizome: translating 3 modules to C, 0 s",
        "rhizome: translating 3 modules to C, 7 s",
        "rhizome: compiling C files, 0 of 3, 7 s",
        "rhizome: compiling C files, 1 of 3, 8 s: rhizome.broker.turn",
        "",  # the line is empty again for what follows
    ]
    assert "\n" not in terminal.getvalue()


def test_a_line_of_a_terminal_never_wraps() -> None:
    terminal = Terminal()
    with BuildProgress(terminal, Clock(), ticking=False) as progress:
        progress.stage("compiling C files", 1)
        progress.step("rhizome." + "long." * 40)
    assert all(len(line) <= COLUMNS_MAX for line in terminal.getvalue().split(REWRITE))


def test_a_log_has_plain_lines_at_intervals() -> None:
    log, clock = io.StringIO(), Clock()
    with BuildProgress(log, clock, ticking=False) as progress:
        progress.stage("compiling C files", 40)
        for number in range(40):
            clock.now += 1
            progress.step(f"m{number}")
            progress.tick()
    lines = log.getvalue().splitlines()
    assert lines[0] == "rhizome: compiling C files, 0 of 40, 0 s"
    assert lines[1] == f"rhizome: compiling C files, 10 of 40, {LINE_EVERY_S:.0f} s: m9"
    assert len(lines) == 1 + 40 // LINE_EVERY_S
    assert "\r" not in log.getvalue()
    assert "\x1b" not in log.getvalue()


def test_seconds_go_on_while_a_stage_has_no_steps() -> None:
    log, clock = io.StringIO(), Clock()
    with BuildProgress(log, clock, ticking=False) as progress:
        progress.stage("linking")
        clock.now += LINE_EVERY_S + 1
        progress.tick()
        progress.tick()
    assert log.getvalue().splitlines() == ["rhizome: linking, 0 s", "rhizome: linking, 11 s"]


def test_nothing_is_shown_before_a_stage_or_after_the_end() -> None:
    terminal = Terminal()
    progress = BuildProgress(terminal, Clock(), ticking=False)
    progress.tick()
    progress.close()
    progress.tick()
    assert terminal.getvalue() == ""
