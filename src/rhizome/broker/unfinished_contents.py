"""Unfinished contents: publishes that have begun, and whose content has not come to its end.

A content that comes whole is published at once and never counts here. One that is large, or mixed
with frames of other channels, is collected frame by frame; until its last frame it is in memory,
belongs to no queue and can't go to disk. So it has limits of its own:

- a connection may have half of the budget, and always one message of the largest size;
- all connections together may have the budget. Beyond it a content is refused, and its channel
  closed: of the user whose contents take most, the one that has waited longest for its next frame.
  Nobody waits for others here, and nobody loses for what another user has begun: by the waiting
  alone, a user who fills the budget and goes on sending would have those thrown out who send over
  a slow link.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from rhizome.amqp.spec import BASIC, BASIC_PUBLISH
from rhizome.errors import ContentTooLarge

if TYPE_CHECKING:
    from rhizome.broker.channel import Channel
    from rhizome.broker.limits import Limits

FRAME_OVERHEAD_BYTES: Final = 64
"""What a frame costs beyond its bytes: the object and its place in a list."""

UNFINISHED_BYTES_MAX: Final = 256 << 20
"""The budget, unless somebody sets another."""

SLACK_BYTES: Final = 1 << 20
"""Room for the header of a message."""


@final
class UserContents:
    """The unfinished contents of one user. Invariant: ``channels`` are those that have one, the one
    that has waited longest for a frame first; ``total`` is the sum of their ``content_bytes``."""

    total: i64
    channels: dict[Channel, None]

    def __init__(self) -> None:
        self.total = 0
        self.channels = {}


@final
class UnfinishedContents:
    """Invariant: ``users`` has whoever has an unfinished content, by name; ``total`` is the sum of
    theirs, and the ``unfinished_bytes`` of a connection that of its own. ``refused`` counts the
    contents that had to go."""

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
        """What one message of the largest size takes, in small frames, too."""
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
        """A frame of a content has come. Raises ContentTooLarge if it is too much of its
        connection."""
        size: i64 = frame_bytes + FRAME_OVERHEAD_BYTES
        connection = channel.connection
        channel.content_bytes += size
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
        if connection.unfinished_bytes > self.connection_max():
            self.refused += 1
            raise ContentTooLarge(
                f"unfinished contents take more than {self.connection_max()} bytes of this "
                "connection: end the content on one channel before more begin on others",
                BASIC,
                BASIC_PUBLISH,
            )
        if self.total > self.budget_max():
            self._make_room()

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
            self.total -= channel.content_bytes
            connection = channel.connection
            connection.unfinished_bytes -= channel.content_bytes
            user = connection.identity.user
            own = self.users[user]
            own.total -= channel.content_bytes
            own.channels.pop(channel, None)
            if len(own.channels) == 0:
                del self.users[user]
            channel.content_bytes = 0
