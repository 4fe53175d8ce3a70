"""QueueConsumer: a consumer as its queue knows it, and what delivers to it out of turn."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from rhizome.broker.message import Message

LEASE_ARGUMENT: Final = "x-lease"
"""The argument of a consumer that leases messages instead of taking them."""


class QueueConsumer:
    """A consumer that a queue delivers to. ``unacked`` counts what it holds, ``delivered`` what it
    has got; ``reached`` is the index of the last message that it got from another broker."""

    tag: str
    no_ack: bool
    exclusive: bool
    priority: i64
    unacked: i64
    delivered: i64
    reached: i64
    arguments: dict[str, object]

    def __init__(
        self,
        tag: str,
        no_ack: bool,
        exclusive: bool,
        priority: i64,
        arguments: dict[str, object],
    ) -> None:
        # Set here, not where it is inherited: compiled code that knows only this class would take
        # a priority of -113, its mark for what isn't set, for none.
        self.tag = tag
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.priority = priority
        self.unacked = 0
        self.delivered = 0
        self.reached = 0
        self.arguments = arguments

    def can_take(self) -> bool:
        """Whether a delivery fits in what the consumer may hold, and can be written."""
        raise NotImplementedError

    def is_sated(self) -> bool:
        """Whether it holds as much as it may."""
        raise NotImplementedError

    def drained_at(self) -> i64:
        """When its application last took something, in ms."""
        raise NotImplementedError

    def deliver(self, message: Message, redelivered: bool) -> None:
        raise NotImplementedError


class Reader:
    """Delivers to one consumer of a stream or a lease. ``next`` is the offset or position it
    delivers next."""

    next: i64

    def __init__(self) -> None:
        self.next = 0

    def wake(self) -> None:
        """The consumer may be able to take more."""
        raise NotImplementedError

    def settled(self, message: Message) -> None:
        """A delivery was acknowledged."""
        raise NotImplementedError

    def given_up(self) -> None:
        """A delivery was not acknowledged, and the consumer is gone."""

    def detach(self) -> None:
        """The consumer is gone."""

    def take_turn(self) -> None:
        """Continue, because this reader was marked in the turn."""
