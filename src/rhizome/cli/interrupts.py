"""What Ctrl-C does to a command.

Python's own handler raises KeyboardInterrupt wherever the signal strikes: amid an import, in a
destructor, between the start of a process and the note of it. That shows as a traceback, or leaves
something behind. With `install` a signal never raises. It ends the process at once with exit code
130, which is right while there is nothing to clean up. Code that has to clean up says with
`handled` what to do instead.

Imports nothing of the project: it must be installed before any slow import.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

EXIT_CODE: Final = 130
"""128 + SIGINT, as shells count it."""

Action = Callable[[], None]

_actions: Final[list[Action]] = []


def install() -> None:
    """Take over Ctrl-C, unless the parent process has it ignored."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _strike)


def _strike(number: int, frame: FrameType | None) -> None:
    if _actions:
        _actions[-1]()
    else:
        leave()


def leave() -> None:
    """End the process at once, without output."""
    os._exit(EXIT_CODE)


@contextmanager
def handled(action: Action) -> Iterator[None]:
    """In this block Ctrl-C does this instead: something that neither raises nor takes long."""
    _actions.append(action)
    try:
        yield
    finally:
        _actions.pop()


@contextmanager
def raised() -> Iterator[None]:
    """In this block Ctrl-C raises KeyboardInterrupt, for code that expects that."""

    def strike() -> None:
        raise KeyboardInterrupt

    with handled(strike):
        yield


@contextmanager
def withheld() -> Iterator[None]:
    """In this block Ctrl-C waits. A process that is started here never gets it.

    A terminal sends it to children too; a Python that starts answers with a traceback.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def starting_processes() -> Iterator[None]:
    """`withheld`, for processes of `multiprocessing`."""
    from multiprocessing import resource_tracker

    # If it started with the first process, it would unblock signals too early.
    resource_tracker.ensure_running()
    with withheld():
        yield


class Interruption:
    """Remembers Ctrl-C, for work that checks whether it should continue."""

    def __init__(self) -> None:
        self.strikes = 0

    def note(self) -> None:
        self.strikes += 1

    def check(self) -> None:
        """Raise KeyboardInterrupt if there was a Ctrl-C; called where nothing is half done."""
        if self.strikes:
            raise KeyboardInterrupt


@contextmanager
def noted() -> Iterator[Interruption]:
    """In this block Ctrl-C is only remembered."""
    interruption = Interruption()
    with handled(interruption.note):
        yield interruption
