"""Broker bootstrap: makes a broker core from an open store, and the definitions of a new store."""

from __future__ import annotations

import hashlib
import logging
from typing import Final

from rhizome import __version__
from rhizome.broker.access.application_cluster_token import ApplicationTokens
from rhizome.broker.access.auth_interface import AccessEpoch, Authenticator
from rhizome.broker.access.usage_limits import Limits
from rhizome.broker.broker import Broker
from rhizome.broker.broker_context import BrokerSettings
from rhizome.broker.group_log.local_group_log import LOCAL_GROUP, LocalGroupLog
from rhizome.broker.metadata.metadata_commands import (
    SCOPE_USER,
    SCOPE_VHOST,
    Command,
    PutLimit,
    PutPermission,
    PutTopicPermission,
    PutUser,
    PutVhost,
    decode,
)
from rhizome.broker.metadata.metadata_state import State
from rhizome.broker.observer import Observer
from rhizome.broker.publishing.recent_history import RecentHistories
from rhizome.broker.queue.pager import Pager, SegmentReader
from rhizome.broker.queue.queue import Queue
from rhizome.broker.queue.queue_recovery import restore_queue
from rhizome.broker.single_node_cluster import SingleNodeCluster
from rhizome.broker.streams.active_streams import StreamsPort
from rhizome.journal.record_replay import GroupReplay
from rhizome.journal.recovery import Recovered
from rhizome.journal.store import Store
from rhizome.journal.streams.stream_log import StreamLog
from rhizome.security.password_hashes import SALT_BYTES, ScryptCost, hash_password
from rhizome.server.config.broker_config import Config
from rhizome.server.config.cluster_section import read_keys
from rhizome.server.config.config_sections import UserDefinition

logger = logging.getLogger("rhizome.server")

SEED_BYTES: Final = 32
STARTS_MAX: Final = 64
"""How many restarts a client may miss and still be told what became of the messages it held."""


class StoreReader(SegmentReader):
    """Reads paged messages back from the store."""

    store: Store

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store

    def read(self, segment: int, offset: int, length: int) -> bytes:
        return self.store.read(segment, offset, length)


class StoreStreams(StreamsPort):
    """Keeps streams in the store."""

    store: Store

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store

    def open(self, stream: int) -> StreamLog:
        log = self.store.streams.open(int(stream), self.store.options.accept_corruption)
        if log.torn_bytes > 0:
            logger.warning(
                "stream %d: a torn end of %d bytes was cut off; it goes on with offset %d",
                stream,
                log.torn_bytes,
                log.next,
            )
        return log

    def has(self, stream: int) -> bool:
        return self.store.streams.has(int(stream))

    def cut(self, log: StreamLog, number: int) -> StreamLog:
        return self.store.streams.cut(log, int(number))

    def touch(self, log: StreamLog) -> None:
        self.store.streams.touch(log)

    def remove_segments(self, log: StreamLog, segments: list[int]) -> None:
        self.store.streams.remove_segments(int(log.id), segments)

    def remove(self, log: StreamLog) -> None:
        self.store.streams.remove(log)

    def clear(self, stream: int) -> None:
        self.store.streams.clear(int(stream))

    def remove_others(self, streams: list[int]) -> None:
        self.store.streams.remove_others(streams)

    def durable(self) -> int:
        return self.store.streams.durable


def make_log(store: Store) -> LocalGroupLog:
    """The log of the local group, in a new epoch, because indexes of lost messages are used
    again."""
    group = store.recovered.groups.get(LOCAL_GROUP) or GroupReplay()
    epoch = int(group.epoch) + 1
    next_index = int(group.index) + 1
    store.journal.epoch(LOCAL_GROUP, epoch, next_index)
    log = LocalGroupLog(store.journal, epoch, next_index)
    log.starts = [*group.starts[-STARTS_MAX:], (epoch, next_index)]
    return log


def make_broker(
    config: Config,
    store: Store,
    log: LocalGroupLog,
    authenticator: Authenticator,
    epoch: AccessEpoch,
    observer: Observer,
    now_ms: int,
    seed: bytes,
) -> Broker:
    """Make the core, with the state and the messages that the store holds.

    All randomness comes from ``seed``, so that a simulation can be repeated. In production it is
    SEED_BYTES that nobody can guess.
    """
    broker = make_empty_broker(config, store, log, authenticator, epoch, observer, now_ms, seed)
    _restore_state(broker, store.recovered)
    index = store.recovered.commands[-1][0] if store.recovered.commands else 0
    broker.cluster = SingleNodeCluster(broker, store.journal, index)
    if config.cluster.demand_key:
        broker.cluster.demand(ApplicationTokens(True, read_keys(config.cluster)))
    broker.state.sizes.bytes_max = config.cluster.state_size_max_bytes
    if not broker.state.vhosts:
        # One transaction: a power cut must not leave users without their permissions.
        store.journal.begin_tx(LOCAL_GROUP, log.epoch)
        for command in first_definitions(config, seed):
            broker.cluster.propose(command, None)
        store.journal.end_tx()
    _restore_messages(broker, store.recovered)
    broker.streams.forget_others()
    broker.delayed.recover()
    return broker


def make_empty_broker(
    config: Config,
    store: Store,
    log: LocalGroupLog,
    authenticator: Authenticator,
    epoch: AccessEpoch,
    observer: Observer,
    now_ms: int,
    seed: bytes,
) -> Broker:
    """Make the core without anything in it yet."""
    pager = Pager(
        StoreReader(store), store.journal, store.spill, config.memory.resident_budget_bytes
    )
    broker = Broker(
        BrokerSettings(
            config.broker.name,
            __version__,
            config.cluster.name or config.broker.name,
            config.amqp.announce_version,
        ),
        log,
        pager,
        authenticator,
        epoch,
        make_limits(config),
        observer,
        seed,
        now_ms,
    )
    broker.streams.port = StoreStreams(store)
    broker.histories = RecentHistories(broker)
    return broker


def make_limits(config: Config) -> Limits:
    limits = Limits(message_bytes_max=config.limits.message_bytes_max)
    apply_limits(limits, config)
    return limits


def apply_limits(limits: Limits, config: Config) -> None:
    """Set what can change while a broker runs; existing connections keep what they negotiated."""
    section = config.limits
    limits.channel_max = section.channel_max
    limits.frame_max = section.frame_max_bytes
    limits.heartbeat_s = section.heartbeat_ms // 1000
    limits.connections_max = section.connections_max
    limits.channels_max = section.channels_max
    limits.queues_max = section.queues_max
    limits.handshake_timeout_ms = section.handshake_timeout_ms
    limits.consumer_timeout_ms = config.consumers.timeout_ms
    limits.be_compatible(config.queues.compatibility)
    limits.transaction_parts_max = section.transaction_parts_max
    limits.leases_max = section.leases_max
    limits.leased_messages_max = section.leased_messages_max
    limits.leased_bytes_max = section.leased_bytes_max
    limits.stream_readers_max = section.stream_readers_max
    limits.stream_reader_expires_ms = section.stream_reader_expires_ms


def _restore_state(broker: Broker, recovered: Recovered) -> None:
    if recovered.snapshot:
        broker.state = State.restore(recovered.snapshot, broker.make_queue)
    for _, data in recovered.commands:
        broker.state.apply(decode(data))


def _restore_messages(broker: Broker, recovered: Recovered) -> None:
    """Give each durable queue its messages; messages of no queue are dropped for good."""
    queues = {
        destination.id: destination
        for vhost in broker.state.vhosts.values()
        for destination in vhost.destinations.values()
        if isinstance(destination, Queue)
    }
    for queue_id, found in recovered.queues.items():
        queue = queues.get(queue_id)
        if queue is None:
            for level in found.levels.values():
                broker.pager.release_paged(level)
            broker.log.drop(queue_id)
        else:
            restore_queue(queue, found, not recovered.clean)


# ---- definitions of a new store -----------------------------------------------------------------


def first_definitions(config: Config, seed: bytes) -> list[Command]:
    """The vhosts, users and policies that configuration gives a new store.

    ``seed`` salts the passwords.
    """
    commands: list[Command] = []
    for name, vhost in config.vhosts.items():
        commands.append(PutVhost(name, vhost.description))
        commands.extend(_limits_of(SCOPE_VHOST, name, vhost.connections_max, "max-connections"))
        commands.extend(_limits_of(SCOPE_VHOST, name, vhost.queues_max, "max-queues"))
    for name, user in config.users.items():
        commands.extend(_user_commands(name, user, seed, config.password_cost()))
    for name, policy in config.policies.items():
        commands.append(policy.command(name))
    return commands


def _user_commands(name: str, user: UserDefinition, seed: bytes, cost: ScryptCost) -> list[Command]:
    password_hash = user.password_hash
    if not password_hash and user.password:
        salt = hashlib.sha256(seed + b"salt of " + repr(name).encode()).digest()[:SALT_BYTES]
        password_hash = hash_password(user.password.encode(), salt=salt, cost=cost)
    commands: list[Command] = [PutUser(name, password_hash, user.kind, tuple(user.tags))]
    for vhost, rule in user.permissions.items():
        commands.append(PutPermission(name, vhost, rule.configure, rule.write, rule.read))
    for topic in user.topic_permissions:
        commands.append(
            PutTopicPermission(name, topic.vhost, topic.exchange, topic.write, topic.read)
        )
    commands.extend(_limits_of(SCOPE_USER, name, user.connections_max, "max-connections"))
    commands.extend(_limits_of(SCOPE_USER, name, user.channels_max, "max-channels"))
    return commands


def _limits_of(scope: str, name: str, value: int, limit: str) -> list[Command]:
    return [PutLimit(scope, name, limit, value)] if value > 0 else []
