"""Unfinished contents: publishes that have begun and not ended, and those of open transactions.

A content that comes whole is published at once and never counts here. A content that is large, or
mixed with frames of other channels, is collected frame by frame. Until its last frame, and in a
transaction until the commit, it is in memory, belongs to no queue and can't go to disk. So such
contents have limits of their own:

- a connection may have half of the budget, and always one message of the largest size;
- all connections together may have the budget. Beyond it the broker refuses contents and closes
  their channels. It picks the user whose contents take most, and of that user the channel that has
  waited longest for its next frame. So nobody waits for others, and nobody loses because of what
  another user has begun. By waiting time alone, a user who fills the budget and goes on sending
  would push out those who send over a slow link.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from rhizome.amqp.spec import BASIC, BASIC_PUBLISH
from rhizome.errors import ContentTooLarge

if TYPE_CHECKING:
    from rhizome.broker.access.usage_limits import Limits
    from rhizome.broker.channel.channel import Channel

FRAME_OVERHEAD_BYTES: Final = 64
"""What a frame costs beyond its bytes: the object and its place in a list."""

PUBLICATION_OVERHEAD_BYTES: Final = 512
"""What a publish in a transaction costs beyond its content: the message, and where it goes."""

UNFINISHED_BYTES_MAX: Final = 256 << 20
"""The default budget."""

SLACK_BYTES: Final = 1 << 20
"""Room for the header frame of a message."""


@final
class UserContents:
    """The unfinished contents of one user. Invariant: ``channels`` are those that have one, the one
    that has waited longest for a frame first; ``total`` is the sum of their ``content_bytes`` and
    ``transaction_bytes``."""

    total: i64
    channels: dict[Channel, None]

    def __init__(self) -> None:
        self.total = 0
        self.channels = {}


@final
class UnfinishedContents:
    """Invariant: ``users`` has every user with an unfinished content, by name. ``total`` is the sum
    of theirs, and the ``unfinished_bytes`` of a connection that of its own. ``refused`` counts the
    contents that were refused."""

    limits: Limits
    budget: i64
    total: i64
    refused: i64
    users: dict[str, UserContents]

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.budget = UNFINISHED_BYTES_MAX
        self.total = 0
        self.refused = 0
        self.users = {}

    def message_max(self) -> i64:
        """What one message of the largest size takes, even in small frames."""
        size: i64 = self.limits.message_bytes_max
        return size + size // 8 + SLACK_BYTES

    def budget_max(self) -> i64:
        return max(self.budget, self.message_max())

    def connection_max(self) -> i64:
        return max(self.budget // 2, self.message_max())

    def channels(self) -> list[Channel]:
        """All that have an unfinished content."""
        found: list[Channel] = []
        for own in self.users.values():
            found.extend(own.channels)
        return found

    def grow(self, channel: Channel, frame_bytes: i64) -> None:
        """Count a frame of a content. Raises ContentTooLarge if it is too much for its
        connection."""
        size: i64 = frame_bytes + FRAME_OVERHEAD_BYTES
        channel.content_bytes += size
        self._add(channel, size)
        if channel.connection.unfinished_bytes > self.connection_max():
            self.refused += 1
            raise ContentTooLarge(
                f"unfinished contents take more than {self.connection_max()} bytes of this "
                "connection: end the content on one channel before more begin on others",
                BASIC,
                BASIC_PUBLISH,
            )
        if self.total > self.budget_max():
            self._make_room()

    def keep(self, channel: Channel, content_bytes: i64) -> None:
        """Count a publish in the channel's transaction. Raises ContentTooLarge if it is too much
        for its connection."""
        size: i64 = content_bytes + PUBLICATION_OVERHEAD_BYTES
        channel.transaction_bytes += size
        self._add(channel, size)
        if channel.connection.unfinished_bytes > self.connection_max():
            self.refused += 1
            raise ContentTooLarge(
                f"transactions and unfinished contents take more than {self.connection_max()} "
                "bytes of this connection: commit more often",
                BASIC,
                BASIC_PUBLISH,
            )
        if self.total > self.budget_max():
            self._make_room()

    def _add(self, channel: Channel, size: i64) -> None:
        connection = channel.connection
        connection.unfinished_bytes += size
        self.total += size
        user = connection.identity.user
        own = self.users.get(user)
        if own is None:
            own = UserContents()
            self.users[user] = own
        own.total += size
        own.channels.pop(channel, None)
        own.channels[channel] = None

    def _make_room(self) -> None:
        limit = self.budget_max()
        while self.total > limit:
            idlest = self._idlest()
            self.refused += 1
            idlest.fail(
                ContentTooLarge(
                    f"unfinished contents take more than {limit} bytes of this broker "
                    "(limits.unfinished_bytes_max), those of this user take most, and this one has "
                    "waited longest for its next frame: publish it again",
                    BASIC,
                    BASIC_PUBLISH,
                )
            )
            assert idlest.content_bytes == 0, "a channel that fails gives its content up"
            assert idlest.transaction_bytes == 0, "and its transaction"

    def _idlest(self) -> Channel:
        """Of the user whose contents take most, the channel that has waited longest."""
        most = UserContents()
        for own in self.users.values():
            if own.total > most.total:
                most = own
        return next(iter(most.channels))

    def forget(self, channel: Channel) -> None:
        """A content has come to its end, or will not."""
        if channel.content_bytes > 0:
            size = channel.content_bytes
            channel.content_bytes = 0
            self._take_off(channel, size)

    def end(self, channel: Channel) -> None:
        """A transaction was committed, or will not be."""
        if channel.transaction_bytes > 0:
            size = channel.transaction_bytes
            channel.transaction_bytes = 0
            self._take_off(channel, size)

    def _take_off(self, channel: Channel, size: i64) -> None:
        self.total -= size
        connection = channel.connection
        connection.unfinished_bytes -= size
        user = connection.identity.user
        own = self.users[user]
        own.total -= size
        if channel.content_bytes == 0 and channel.transaction_bytes == 0:
            own.channels.pop(channel, None)
            if len(own.channels) == 0:
                del self.users[user]
