"""A screen of the terminal that is drawn again and again, until q or Ctrl-C."""

from __future__ import annotations

import select
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from textwrap import wrap
from typing import Final

from rhizome.cli import interrupts
from rhizome.cli.errors import CliError
from rhizome.printable_text import escaped

ALTERNATE_SCREEN: Final = "\x1b[?1049h\x1b[?25l"
NORMAL_SCREEN: Final = "\x1b[?25h\x1b[?1049l"
HOME: Final = "\x1b[H"
CLEAR_LINE: Final = "\x1b[K"
CLEAR_REST: Final = "\x1b[J"


def show_live(frame: Callable[[int, int], Sequence[str]], interval_s: float) -> None:
    """Draw the lines that `frame` gives for a width and a height, until the user quits. A failure
    is shown, and it is tried again."""
    with interrupts.noted() as interruption, _screen():
        while not interruption.strikes:
            due = time.monotonic() + interval_s
            size = shutil.get_terminal_size()
            try:
                lines = frame(size.columns, size.lines)
            except CliError as error:
                said = escaped(f"no answer: {error}")
                lines = [*wrap(said, size.columns), "", "asked again; q ends"]
            text = "".join(f"{line}{CLEAR_LINE}\r\n" for line in lines[: size.lines - 1])
            sys.stdout.write(HOME + text + CLEAR_REST)
            sys.stdout.flush()
            if _is_enough(due):
                return


def _is_enough(due: float) -> bool:
    """Wait until ``due`` for a key; whether it was q."""
    try:
        ready, _, _ = select.select([sys.stdin], [], [], max(due - time.monotonic(), 0.0))
        return bool(ready) and sys.stdin.read(1) in ("q", "Q", "\x03", "")
    except InterruptedError:
        return False


@contextmanager
def _screen() -> Iterator[None]:
    """The alternate screen of the terminal, without echo and line editing; restored at the end."""
    import termios
    import tty

    is_terminal = sys.stdin.isatty()
    before = termios.tcgetattr(sys.stdin) if is_terminal else None
    try:
        if is_terminal:
            tty.setcbreak(sys.stdin)
        sys.stdout.write(ALTERNATE_SCREEN)
        yield
    finally:
        sys.stdout.write(NORMAL_SCREEN)
        sys.stdout.flush()
        if before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
