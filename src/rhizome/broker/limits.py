"""Limits: how much of everything a client, a user or a vhost may use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rhizome.broker.commands import SCOPE_USER, SCOPE_VHOST
from rhizome.errors import NotAllowed, PreconditionFailed

if TYPE_CHECKING:
    from rhizome.broker.broker import Broker
    from rhizome.broker.connection import Connection


CONNECTIONS: Final = "max-connections"
CHANNELS: Final = "max-channels"

VHOST_CONNECTIONS: Final = "connections of vhosts"
USER_CONNECTIONS: Final = "connections of users"
USER_CHANNELS: Final = "channels of users"


def _nothing(kind: str, name: str) -> int:
    return 0


@dataclass
class Limits:
    """Limits of this broker; those of vhosts and users are in the state.

    ``elsewhere`` says how many of a kind (connections of a vhost, ...) other brokers have: limits
    of vhosts and users are those of the cluster.
    """

    channel_max: int = 2047
    frame_max: int = 131072
    heartbeat_s: int = 60
    message_bytes_max: int = 128 * 1024 * 1024
    connections_max: int = 0
    channels_max: int = 0
    queues_max: int = 0
    handshake_timeout_ms: int = 10_000
    consumer_timeout_ms: int = 30 * 60 * 1000
    leases_max: int = 16
    leased_messages_max: int = 1_000_000
    leased_bytes_max: int = 256 * 1024 * 1024
    broker: Broker | None = None
    elsewhere: Callable[[str, str], int] = _nothing

    def used(self) -> dict[str, dict[str, int]]:
        """How much this broker has of what has a limit, by kind and name."""
        assert self.broker is not None
        state = self.broker.state
        vhosts = {name: 0 for name, each in state.vhosts.items() if CONNECTIONS in each.limits}
        limits = state.accounts.limits
        users = {name: 0 for name, given in limits.items() if CONNECTIONS in given}
        channels = {name: 0 for name, given in limits.items() if CHANNELS in given}
        if vhosts or users or channels:
            for each in self.broker.running_connections():
                if each.router.vhost in vhosts:
                    vhosts[each.router.vhost] += 1
                if each.identity.user in users:
                    users[each.identity.user] += 1
                if each.identity.user in channels:
                    channels[each.identity.user] += len(each.channels)
        return {VHOST_CONNECTIONS: vhosts, USER_CONNECTIONS: users, USER_CHANNELS: channels}

    def check_connection(self, connection: Connection, vhost: str) -> None:
        """Raise if one more connection is too many for the broker, the vhost or the user."""
        assert self.broker is not None
        state = self.broker.state
        running = self.broker.running_connections()
        if 0 < self.connections_max <= len(running):
            raise NotAllowed(f"connection limit ({self.connections_max}) is reached", 10, 40)
        user = connection.identity.user
        limit = state.limit(SCOPE_VHOST, vhost, CONNECTIONS)
        here = sum(1 for other in running if other.router.vhost == vhost) if limit >= 0 else 0
        if 0 <= limit <= here + self.elsewhere(VHOST_CONNECTIONS, vhost):
            raise NotAllowed(
                f"access to vhost '{vhost}' refused for user '{user}': "
                f"connection limit ({limit}) is reached",
                10,
                40,
            )
        limit = state.limit(SCOPE_USER, user, CONNECTIONS)
        here = sum(1 for other in running if other.identity.user == user) if limit >= 0 else 0
        if 0 <= limit <= here + self.elsewhere(USER_CONNECTIONS, user):
            raise NotAllowed(
                f"Connection refused for user '{user}': user connection limit ({limit}) is reached",
                10,
                40,
            )

    def check_channel(self, connection: Connection) -> None:
        """Raise if one more channel is too many for the broker or the user."""
        assert self.broker is not None
        user = connection.identity.user
        limit = self.broker.state.limit(SCOPE_USER, user, CHANNELS)
        if self.channels_max == 0 and limit < 0:
            return
        running = self.broker.running_connections()
        if 0 < self.channels_max <= sum(len(other.channels) for other in running):
            raise NotAllowed(f"channel limit ({self.channels_max}) is reached", 20, 10)
        opened = sum(len(other.channels) for other in running if other.identity.user == user)
        if 0 <= limit <= opened + self.elsewhere(USER_CHANNELS, user):
            raise NotAllowed(
                f"number of channels opened for user '{user}' has reached the maximum allowed "
                f"user limit of ({limit})",
                20,
                10,
            )

    def check_queue(self) -> None:
        """Raise if one more queue is too many for this broker; the state checks its own limits."""
        assert self.broker is not None
        if self.queues_max == 0:
            return
        vhosts = self.broker.state.vhosts.values()
        if self.queues_max <= sum(len(vhost.queues) for vhost in vhosts):
            raise PreconditionFailed(f"queue limit ({self.queues_max}) of this broker is reached")
