"""Reader: what a consumer has that is not handed messages by its queue, but reads.

Those of streams read their log, those of leases what is set aside. An ack of what they deliver is
credit, and settles nothing in the queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

if TYPE_CHECKING:
    from rhizome.broker.message import Message


class Reader:
    """``next`` is what is delivered next: an offset or a position."""

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
