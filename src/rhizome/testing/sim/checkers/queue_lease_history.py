"""The queue leases of a run, as the applications that hold them saw them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from rhizome.testing.sim.checkers.checker import Checker
from rhizome.testing.sim.events import queue_lease_events as told
from rhizome.testing.sim.world.event_scheduler import MS

DRIFT: Final = 0.95
"""How much sooner a lease may end by the clock of a home."""
NEVER_US: Final = -1


@dataclass(slots=True)
class HeldLease:
    """A lease as its application knows it. `messages` are those that were read, by position. The
    application has settled all below `settling`; below `settled` that was answered. `sign_us` is
    when the last request that was answered was sent, `keep_us` for how long it counts. `is_over`:
    its end was requested, or it was refused."""

    queue: str
    name: str
    messages: dict[int, str] = field(default_factory=dict)
    settling: int = 0
    settled: int = 0
    sign_us: int = NEVER_US
    keep_us: int = 0
    is_over: bool = False

    def is_alive(self, now_us: int) -> bool:
        """Whether its home must still have it."""
        age_us = now_us - self.sign_us
        return not self.is_over and self.sign_us >= 0 and age_us < self.keep_us * DRIFT

    def holds(self, message: str) -> bool:
        return any(
            each == message for position, each in self.messages.items() if position >= self.settling
        )

    def has_settled(self, message: str) -> bool:
        return any(
            each == message for position, each in self.messages.items() if position < self.settled
        )


@dataclass(slots=True)
class Request:
    lease: HeldLease
    asked: told.LeaseAsked
    at_us: int
    answer: told.LeaseAnswered | None = None


class LeaseHistory(Checker):
    """Keeps what applications report of leases; it never raises a violation."""

    def __init__(self) -> None:
        super().__init__()
        self.leases: dict[tuple[str, str], HeldLease] = {}
        self.requests: dict[tuple[int, str], Request] = {}

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {
            told.LeaseAsked: self._asked,
            told.LeaseAnswered: self._answered,
            told.LeaseRead: self._read,
        }

    def of(self, queue: str) -> list[HeldLease]:
        return [lease for lease in self.leases.values() if lease.queue == queue]

    def _asked(self, seen: told.LeaseAsked) -> None:
        key = (seen.queue, seen.lease)
        lease = self.leases.setdefault(key, HeldLease(seen.queue, seen.lease))
        lease.settling = max(lease.settling, seen.settle)
        lease.is_over = lease.is_over or bool(seen.ends)
        now_us = self.watch.world.now_us
        self.requests[seen.session, seen.consumer] = Request(lease, seen, now_us)

    def _answered(self, seen: told.LeaseAnswered) -> None:
        request = self.requests[seen.session, seen.consumer]
        lease, request.answer = request.lease, seen
        if seen.code:
            return
        lease.settled = max(lease.settled, request.asked.settle)
        if request.at_us >= lease.sign_us:
            lease.sign_us, lease.keep_us = request.at_us, request.asked.keep_ms * MS

    def _read(self, seen: told.LeaseRead) -> None:
        lease = self.requests[seen.session, seen.consumer].lease
        lease.messages.setdefault(seen.position, seen.message)
