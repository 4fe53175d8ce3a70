"""Checkers of queue leases (docs/pipeline/queues.md; L2, L3, A2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rhizome.testing.sim.checkers.fault_timeline import Timeline
from rhizome.testing.sim.checkers.loss_and_duplicate_checkers import TODAY, MessageChecker, Promises
from rhizome.testing.sim.checkers.message_history import CONFIRMED, History, Message
from rhizome.testing.sim.checkers.queue_lease_history import HeldLease, LeaseHistory
from rhizome.testing.sim.events import application_events
from rhizome.testing.sim.events import queue_lease_events as told
from rhizome.testing.sim.world.event_scheduler import shown_time


class LeaseChecker(MessageChecker):
    """Base of the checkers of queue leases: the lease history beside the message history."""

    def __init__(
        self, history: History, timeline: Timeline, book: LeaseHistory, promises: Promises = TODAY
    ) -> None:
        super().__init__(history, timeline, promises)
        self.book = book

    def lease_of(self, seen: told.LeaseRead | told.LeaseHole | told.LeaseAnswered) -> HeldLease:
        return self.book.requests[seen.session, seen.consumer].lease

    def is_safe(self, message: Message, queue: str) -> bool:
        """Whether a message is on disk wherever it is."""
        durable = self.history.topology.queues[queue].durable
        return message.persistent and durable and message.outcome == CONFIRMED


class PositionMeansOneMessage(LeaseChecker):
    """A position of a lease names one message, however often and wherever it is read, and no other
    position names it, too. The message was sent to the queue, byte for byte.

    Excused by a publish that may be there twice.
    """

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {told.LeaseRead: self._read}

    def _read(self, seen: told.LeaseRead) -> None:
        lease = self.lease_of(seen)
        where = f"position {seen.position} of lease {lease.name} of {lease.queue}"
        message = self.history.messages.get(seen.message)
        if message is None or lease.queue not in message.queues or not seen.intact:
            self.fail(f"{seen.message} is at {where}, where nobody sent it so")
            return
        known = lease.messages[seen.position]
        if known != seen.message:
            self.fail(f"{seen.message} is at {where}, where {known} was before")
        others = [at for at, each in lease.messages.items() if each == seen.message]
        if len(others) > 1 and not self.may_be_there_twice(message, lease.queue):
            self.fail(f"{seen.message} is at the positions {others} of lease {lease.name}")


class LeasedGoesToNobodyElse(LeaseChecker):
    """What a lease holds, as far as its application has read it, goes to nobody else, by delivery
    or by another lease, until it returns to the queue: the application has asked to end the lease,
    or has sent nothing for as long as the lease is kept. What it has settled, and was told so, goes
    to nobody again. Homes that end or change are no excuse: what a lease holds is recorded (L3).

    Excused by a publish that may be there twice.
    """

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {application_events.Delivered: self._delivered, told.LeaseRead: self._read}

    def _delivered(self, seen: application_events.Delivered) -> None:
        self._goes(seen.queue, seen.message, seen.application, None)

    def _read(self, seen: told.LeaseRead) -> None:
        lease = self.lease_of(seen)
        self._goes(lease.queue, seen.message, seen.application, lease)

    def _goes(self, queue: str, id_: str, to: str, by: HeldLease | None) -> None:
        message = self.history.messages.get(id_)
        if message is None:
            return
        for lease in self.book.of(queue):
            settled = lease.has_settled(id_)
            held = lease is not by and lease.holds(id_) and lease.is_alive(self.now_us)
            if not settled and not held:
                continue
            if not self.may_be_there_twice(message, queue):
                does = "has settled" if settled else "holds"
                self.fail(
                    f"{queue} gives {id_} to {to}, which the lease {lease.name}, of which a sign "
                    f"was sent at {shown_time(lease.sign_us)}, {does}. {self.history.story(id_)}"
                )


class LeasedWasFree(LeaseChecker):
    """What a lease holds was ready in its queue: no application holds it, and none has settled it.

    The excuses are those of ExactlyOnceBetweenEdgeAndHome and of NoAckedMessageRedelivered.
    """

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {told.LeaseRead: self._read}

    def _read(self, seen: told.LeaseRead) -> None:
        lease = self.lease_of(seen)
        message = self.history.messages.get(seen.message)
        if message is None or self.may_be_there_twice(message, lease.queue):
            return
        for earlier in message.came_from(lease.queue):
            settled = self.history.is_settled(earlier)
            lost = self.verdict_may_be_lost(earlier) if settled else self.hold_may_be_lost(earlier)
            if (settled or earlier.is_held()) and not lost:
                does = "has settled" if settled else "holds"
                self.fail(
                    f"lease {lease.name} of {lease.queue} has {message.id}, which "
                    f"{earlier.session.application} {does}. {self.history.story(message.id)}"
                )


class LeasesLast(LeaseChecker):
    """A lease whose application keeps sending requests stays, with all that it holds, whatever
    happens to homes. So no request is refused, and nothing that was read is missing later, but for
    messages that were in memory only.
    """

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {told.LeaseAnswered: self._answered, told.LeaseHole: self._hole}

    def _answered(self, seen: told.LeaseAnswered) -> None:
        lease = self.lease_of(seen)
        if not seen.code:
            return
        if lease.is_alive(self.now_us):
            self.fail(
                f"lease {lease.name} of {lease.queue} is refused with {seen.code}, and a sign of "
                f"it was sent at {shown_time(lease.sign_us)}"
            )
        lease.is_over = True

    def _hole(self, seen: told.LeaseHole) -> None:
        lease = self.lease_of(seen)
        id_ = lease.messages.get(seen.position, "")
        message = self.history.messages.get(id_)
        if message is not None and self.is_safe(message, lease.queue):
            if lease.is_alive(self.now_us) and seen.position >= lease.settling:
                self.fail(
                    f"lease {lease.name} of {lease.queue} has lost {id_} at position "
                    f"{seen.position}. {self.history.story(id_)}"
                )
