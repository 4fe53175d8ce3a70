"""What Ctrl-C does to a command.

Python's own handler raises KeyboardInterrupt wherever the signal strikes: amid an import, in a
destructor, between the start of a process and the note of it. That shows as a traceback, or leaves
something behind. With `install` a signal never raises. It ends the process at once with exit code
130, which is right while there is nothing to tidy up; who has to tidy up says with `handled` what
is to be done instead.

Imports nothing of the project: it must be in force before anything that takes time is imported.
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
    """Take over Ctrl-C, unless whoever started the process wants it ignored."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _strike)


def _strike(number: int, frame: FrameType | None) -> None:
    if _actions:
        _actions[-1]()
    else:
        leave()


def leave() -> None:
    """End the process at once, without a word."""
    os._exit(EXIT_CODE)


@contextmanager
def handled(action: Action) -> Iterator[None]:
    """Meanwhile Ctrl-C does this: something that neither raises nor takes long."""
    _actions.append(action)
    try:
        yield
    finally:
        _actions.pop()


@contextmanager
def raised() -> Iterator[None]:
    """Meanwhile Ctrl-C raises KeyboardInterrupt: for code that knows nothing else."""

    def strike() -> None:
        raise KeyboardInterrupt

    with handled(strike):
        yield


@contextmanager
def withheld() -> Iterator[None]:
    """Meanwhile Ctrl-C waits. A process that is started in here never sees any.

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

    # Started along with the first process it would let signals through again, too early.
    resource_tracker.ensure_running()
    with withheld():
        yield


class Interruption:
    """Takes note of Ctrl-C, for work that looks whether it is wanted any longer."""

    def __init__(self) -> None:
        self.strikes = 0

    def note(self) -> None:
        self.strikes += 1

    def check(self) -> None:
        """Raise KeyboardInterrupt, here where nothing is half done, if there was one."""
        if self.strikes:
            raise KeyboardInterrupt


@contextmanager
def noted() -> Iterator[Interruption]:
    """Meanwhile Ctrl-C is only noted."""
    interruption = Interruption()
    with handled(interruption.note):
        yield interruption
