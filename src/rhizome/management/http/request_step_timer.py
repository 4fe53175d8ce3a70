"""RequestStepTimer: reports what a request does between two waits to the shell, which times it.

A request shares the event loop with every connection. While it waits others run, so its total time
says nothing; each of its steps holds everybody up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from typing import Any, Final

from rhizome.management.api_context import Turns

WORDS_CHARS_MAX: Final = 200
"""The most characters of a request's path in a report."""


class RequestStepTimer:
    """Awaits another awaitable, and tells the shell when it starts and stops running."""

    def __init__(self, shell: Turns, doing: str, work: Awaitable[None]) -> None:
        self.shell = shell
        self.doing = doing[:WORDS_CHARS_MAX]
        self.work = work

    def __await__(self) -> Generator[Any, Any, None]:
        shell, doing = self.shell, self.doing
        steps = self.work.__await__()
        failure: BaseException | None = None
        while True:
            shell.step_began(doing)
            try:
                waits_for = next(steps) if failure is None else steps.throw(failure)
            except StopIteration:
                return
            finally:
                shell.step_ended()
            failure = None
            try:
                yield waits_for
            except BaseException as error:
                failure = error
