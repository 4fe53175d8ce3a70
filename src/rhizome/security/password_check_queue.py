"""Examinations: passwords that are hashed, and those that wait for that.

Hashing is slow on purpose and done in threads, of which there are few: more of them would not hash
faster, only take the processor from the event loop. Logins from known addresses go first, so that a
flood of strangers makes each other wait and no application. A stranger is examined after every few
of them at the latest, since known addresses can be flooded from, too.

What waits has limits: beyond them a login is refused at once, and may be tried again. At default
cost strangers are worked off before their connections time out (`limits.handshake_timeout`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

AT_ONCE_MAX: Final = 2
"""Passwords that are hashed at the same time."""

KNOWN_WAITING_MAX: Final = 256
STRANGERS_WAITING_MAX: Final = 64
"""Different logins that wait to be examined, from known addresses and from others."""

KNOWN_IN_A_ROW_MAX: Final = 3

VerifyAsync = Callable[[Callable[[], bool], Callable[[bool], None]], None]
_Job = tuple[Callable[[], bool], Callable[[bool], None]]


def verify_inline(work: Callable[[], bool], done: Callable[[bool], None]) -> None:
    """Verify in the caller's thread, which a password hash blocks for a fifth of a second."""
    done(work())


class PasswordCheckQueue:
    """Invariant: at most AT_ONCE_MAX jobs are with ``verify_async``; if one waits, so many are."""

    def __init__(self, verify_async: VerifyAsync = verify_inline) -> None:
        self._verify_async = verify_async
        self._known: deque[_Job] = deque()
        self._strangers: deque[_Job] = deque()
        self._running = 0
        self._known_in_a_row = 0

    def __len__(self) -> int:
        """How many are under way or wait."""
        return self._running + len(self._known) + len(self._strangers)

    def has_room(self, is_known: bool) -> bool:
        if is_known:
            return len(self._known) < KNOWN_WAITING_MAX
        return len(self._strangers) < STRANGERS_WAITING_MAX

    def add(self, is_known: bool, work: Callable[[], bool], done: Callable[[bool], None]) -> None:
        """Have ``work`` done when its turn comes; ``done`` gets what came of it. Needs room."""
        assert self.has_room(is_known)
        (self._known if is_known else self._strangers).append((work, done))
        self._go_on()

    def _go_on(self) -> None:
        while self._running < AT_ONCE_MAX and (self._known or self._strangers):
            self._running += 1
            work, done = self._next().popleft()
            self._verify_async(work, self._finisher(done))

    def _next(self) -> deque[_Job]:
        if self._known and (not self._strangers or self._known_in_a_row < KNOWN_IN_A_ROW_MAX):
            self._known_in_a_row += 1
            return self._known
        self._known_in_a_row = 0
        return self._strangers

    def _finisher(self, done: Callable[[bool], None]) -> Callable[[bool], None]:
        def finish(is_right: bool) -> None:
            self._running -= 1
            try:
                done(is_right)
            finally:
                self._go_on()

        return finish
