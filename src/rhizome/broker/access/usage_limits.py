"""Usage limits: how much of each resource a client, a user or a vhost may use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rhizome.broker.access.retry_and_quorum_limits import RetryAndQuorumLimits
from rhizome.broker.metadata.metadata_commands import SCOPE_USER, SCOPE_VHOST
from rhizome.errors import NotAllowed, PreconditionFailed

if TYPE_CHECKING:
    from rhizome.broker.broker_context import BrokerContext
    from rhizome.broker.connection.connection import Connection


CONNECTIONS: Final = "max-connections"
CHANNELS: Final = "max-channels"

VHOST_CONNECTIONS: Final = "connections of vhosts"
USER_CONNECTIONS: Final = "connections of users"
USER_CHANNELS: Final = "channels of users"

QUEUES: Final = "max-queues"
VHOST_QUEUES: Final = "private queues of vhosts"
USER_QUEUES: Final = "private queues of users"


RABBITMQ_3_10: Final = "3.10"
RABBITMQ_4_3: Final = "4.3"
COMPATIBILITIES: Final = (RABBITMQ_3_10, RABBITMQ_4_3)
QUORUM_DELIVERY_LIMIT: Final = 20


def _nothing(kind: str, name: str) -> int:
    return 0


def _no_queues(kind: str, name: str, rivals: bool) -> int:
    return 0


@dataclass
class Limits(RetryAndQuorumLimits):
    """Limits of this broker; those of vhosts and users are in the state.

    Limits of vhosts and users apply to the whole cluster. So ``elsewhere`` says how many of a kind
    (connections of a vhost, ...) other brokers have. ``queues_elsewhere`` does so for private
    queues; asked for rivals, it counts those brokers only that go first when several declare at
    once.

    ``classic_consumer_timeouts`` says whether consumers of classic queues have a timeout,
    ``tells_last_death`` whether dead letters have headers x-last-death-*: see `be_compatible`.
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
    classic_consumer_timeouts: bool = True
    tells_last_death: bool = False
    transaction_parts_max: int = 100_000
    leases_max: int = 16
    leased_messages_max: int = 1_000_000
    leased_bytes_max: int = 256 * 1024 * 1024
    stream_readers_max: int = 20_000
    stream_reader_expires_ms: int = 30 * 86_400_000
    broker: BrokerContext | None = None
    elsewhere: Callable[[str, str], int] = _nothing
    queues_elsewhere: Callable[[str, str, bool], int] = _no_queues

    def be_compatible(self, release: str) -> None:
        """Behave as this release of RabbitMQ does where clients depend on it."""
        is_new = release == RABBITMQ_4_3
        self.quorum_delivery_limit = QUORUM_DELIVERY_LIMIT if is_new else -1
        self.classic_consumer_timeouts = not is_new
        self.tells_last_death = is_new
        self.tells_acquired_count = is_new

    def used(self) -> dict[str, dict[str, int]]:
        """How much this broker uses of each limited resource, by kind and name."""
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

    # ---- private queues -------------------------------------------------------------------------

    def private_queues(self) -> dict[str, dict[str, int]]:
        """The number of this broker's private queues where it is limited, by kind and name."""
        assert self.broker is not None
        state = self.broker.state
        vhosts = {name: 0 for name, each in state.vhosts.items() if QUEUES in each.limits}
        users = {name: 0 for name, given in state.accounts.limits.items() if QUEUES in given}
        if not vhosts and not users:
            return {}
        for vhost in state.vhosts.values() if users else [state.vhosts[name] for name in vhosts]:
            for queue in vhost.queues.values():
                if queue.is_private():
                    if vhost.name in vhosts:
                        vhosts[vhost.name] += 1
                    if queue.user in users:
                        users[queue.user] += 1
        return {VHOST_QUEUES: vhosts, USER_QUEUES: users}

    def counts_queues(self, vhost: str, user: str) -> bool:
        """Whether the number of a vhost's or a user's queues is limited."""
        assert self.broker is not None
        state = self.broker.state
        return (
            state.limit(SCOPE_VHOST, vhost, QUEUES) >= 0
            or state.limit(SCOPE_USER, user, QUEUES) >= 0
        )

    def check_private_queue(self, vhost: str, user: str, name: str) -> None:
        """Raise if one more private queue is too many, counting those that other brokers have
        reported.

        Queues that other brokers are about to report are counted later, when they know of this one:
        see `check_rivals`.
        """
        self._check_private(vhost, user, name, 1, False)

    def check_rivals(self, vhost: str, user: str, name: str) -> None:
        """Raise if a private queue that all brokers know of is too many, because others made some
        at the same time. Each broker reports its own queue before it answers the reports of others,
        so of two that declare at once the one that goes second knows of both."""
        self._check_private(vhost, user, name, 0, True)

    def _check_private(self, vhost: str, user: str, name: str, more: int, rivals: bool) -> None:
        assert self.broker is not None
        state = self.broker.state
        most = state.limit(SCOPE_VHOST, vhost, QUEUES)
        if most >= 0:
            here = len(state.vhosts[vhost].queues) + more
            if here + self.queues_elsewhere(VHOST_QUEUES, vhost, rivals) > most:
                raise _too_many(name, f"in vhost '{vhost}'", most)
        most = state.limit(SCOPE_USER, user, QUEUES)
        if most >= 0:
            here = more + sum(
                queue.user == user
                for each in state.vhosts.values()
                for queue in each.queues.values()
            )
            if here + self.queues_elsewhere(USER_QUEUES, user, rivals) > most:
                raise _too_many(name, f"for user '{user}'", most)


def _too_many(name: str, whose: str, most: int) -> PreconditionFailed:
    return PreconditionFailed(
        f"cannot declare queue '{name}': queue limit {whose} ({most}) is reached"
    )
