"""ConsumerReader: delivers to one consumer what isn't taken out of its queue at once."""

from __future__ import annotations

from mypy_extensions import i64

from rhizome.broker.message import Message


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
