"""Session resume: a client comes back, here or at another broker, with what it holds (J12).

Clients with the capability ``session.resume`` are told the identity of each message that they have
to ack (``session.message``, before the delivery). When such a client loses its connection, the
broker keeps what it holds for ``KEEP_MS``, neither delivered to others nor given back. On its next
connection, to any broker, the client presents what it holds and what it has settled without knowing
the outcome (``session.resume``). It continues under new delivery tags.

The broker looks for each presented message in three places: among what it kept for this client; in
the queue, where the message is ready again after a restart or a takeover; and at brokers through
which the client held it before.

The connections of such a client have rising numbers (the property ``session-visit``). A broker may
not have noticed yet that the client has left it, so its reports may come late. For an earlier visit
nothing is taken that a later visit has, and nothing is given back that is kept for a later one.

A message that is nowhere to be found is void: settling it means nothing. If the queue is active
elsewhere, this broker presents the message there like everything that its applications hold (A2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from librt.strings import read_i64_be
from mypy_extensions import i64

from rhizome.amqp.methods import (
    Method,
    SessionResume,
    SessionResumed,
    SessionResumeOk,
    SessionSync,
    SessionSyncOk,
)
from rhizome.amqp.primitives import u32_at
from rhizome.amqp.spec import SESSION
from rhizome.broker.broker_context import ClientSessions
from rhizome.broker.channel.consume_methods import restored_consumer
from rhizome.broker.channel.consumer import Consumer
from rhizome.broker.channel.resource_lookup import check_read, unimplemented
from rhizome.broker.channel.unacked import REQUEUE
from rhizome.broker.channel.unacked_lookup import Key, Place, take_held
from rhizome.broker.cluster_port import Away, Holdings, Proxy, away_of
from rhizome.broker.connection.connection_states import RUNNING
from rhizome.broker.group_log.log_port import GroupLog
from rhizome.broker.message import Message
from rhizome.broker.metadata.metadata_commands import QUEUE
from rhizome.broker.publishing.forward_port import Forward
from rhizome.broker.publishing.publisher_confirms import are_safe
from rhizome.broker.queue.queue import claim
from rhizome.broker.streams.stream_restrictions import is_stream
from rhizome.errors import SyntaxErrorFault

if TYPE_CHECKING:
    from rhizome.broker.broker_context import BrokerContext
    from rhizome.broker.channel.channel import Channel
    from rhizome.broker.connection.connection import Connection
    from rhizome.broker.queue.queue import Queue

CAPABILITY: Final = "session.resume"
KEEP_MS: Final = 10_000
"""How long a lost client's deliveries are kept for it."""
ENTRY_BYTES: Final = 8 + 4 + 8 + 1
"""A presented message: queue id, epoch, index, and 0 if it is held, else 1 + how it was settled."""
MOVING: Final = 320
"""The reply code in the connection.close of a client that comes back at another broker."""
VISIT_MAX: Final = 0x7FFFFFFFFFFFFFFF


def resume_id(user: str, properties: dict[str, object]) -> str:
    """The name by which all brokers know a client that can resume; "" if it can't.

    The first slash ends the user, and slashes in user names are escaped. So no user can choose a
    session name that makes them look like another user.
    """
    capabilities = properties.get("capabilities")
    session = properties.get("session")
    if not isinstance(capabilities, dict) or capabilities.get(CAPABILITY) is not True:
        return ""
    if not isinstance(session, str) or not session:
        return ""
    return f"{user.replace('%', '%25').replace('/', '%2F')}/{session}"


def visit_of(properties: dict[str, object]) -> int:
    """The number of this connection in its session, as the client says; 0 if it doesn't."""
    visit = properties.get("session-visit")
    return visit if isinstance(visit, int) and 0 < visit <= VISIT_MAX else 0


def is_later(visit: i64, other: i64) -> bool:
    """Whether one connection of a session is known to be later than another."""
    return visit > other > 0


@final
class SuspendedSession:
    """What a client held when its connection was lost.

    Invariant: ``places`` leads to each message that a channel of ``carrier`` holds; ``abandoned``
    are auto-delete queues that the client consumed.
    """

    broker: BrokerContext
    carrier: Connection
    until_ms: i64
    places: dict[Key, Place]
    abandoned: dict[Queue, None]

    def __init__(self, broker: BrokerContext, client: str) -> None:
        self.broker = broker
        self.carrier = broker.carry(f"kept for {client}")
        self.carrier.resume_id = client
        self.until_ms = 0
        self.places = {}
        self.abandoned = {}

    def add(self, channel: Channel) -> None:
        """Take a channel over with what it holds; nothing more is delivered to it."""
        self._leave_queues(channel)
        channel.drop_transaction()
        channel.confirms = None
        channel.drop_content()
        channel.connection = self.carrier
        self.carrier.channels[len(self.carrier.channels) + 1] = channel
        for tag in channel.unacked.tags():
            message = channel.unacked.message(tag)
            consumer = channel.unacked.consumer(tag)
            assert message is not None
            assert consumer is not None
            self.places[(int(consumer.queue.id), int(message.index))] = (channel, tag)

    def _leave_queues(self, channel: Channel) -> None:
        for consumer in list(channel.consumers.values()):
            queue = consumer.queue
            if queue.definition.auto_delete and consumer.proxy is None and not queue.deleted:
                if queue not in self.abandoned:
                    self.abandoned[queue] = None
                    queue.expected += 1
            self.broker.remove_consumer(consumer)
        channel.consumers = {}

    def take(self, queue_id: i64, index: i64) -> Message | None:
        """Take a message out; it goes on counting as unacked in its queue. Also None if another
        broker was home when it was delivered: then the queue here, or that broker, has it."""
        place = self.places.pop((int(queue_id), int(index)), None)
        if place is None:
            return None
        channel, tag = place
        consumer = channel.unacked.consumer(tag)
        message = take_held(channel, tag)
        return message if consumer is not None and consumer.proxy is None else None

    def give_back(self) -> None:
        """The client does not come back for the rest: put it back into its queues."""
        for channel in self.carrier.channels.values():
            for tag in channel.unacked.tags():
                channel.settle_one(tag, REQUEUE)
            channel.closing = True
            self.broker.cluster.channel_released(channel)
        self.carrier.channels = {}
        self.places = {}
        self.broker.connection_gone(self.carrier)
        for queue in self.abandoned:
            queue.expected -= 1
            if not queue.deleted and queue.away is None:
                self.broker.delete_if_unused(queue)
        self.abandoned = {}


@final
class Sync:
    """A wait until everything settled so far is safe: up to ``position`` of the journal here, in
    the logs of groups, and at other homes."""

    channel: Channel
    connection: Connection
    position: i64
    here: dict[GroupLog, int]
    elsewhere: dict[Forward, int]

    def __init__(self, channel: Channel, position: i64) -> None:
        self.channel = channel
        self.connection = channel.connection
        self.position = position
        self.here = {}
        self.elsewhere = {}

    def is_safe(self, durable: i64) -> bool:
        if self.position > durable:
            return False
        for log, index in self.here.items():
            if index > log.committed_disk:
                return False
        return are_safe(self.elsewhere)


@final
class SuspendedSessions(ClientSessions):
    """The suspended sessions of this broker, by the client's resume id.

    ``connected`` are the connections of clients that can resume, by the same id: mostly one each.
    ``durable`` is the position up to which the journal is on disk; ``syncs`` wait for that, or for
    other brokers.
    """

    broker: BrokerContext
    suspended_sessions: dict[str, SuspendedSession]
    connected: dict[str, dict[int, Connection]]
    durable: i64
    syncs: list[Sync]

    def __init__(self, broker: BrokerContext) -> None:
        self.broker = broker
        self.suspended_sessions = {}
        self.connected = {}
        self.durable = 0
        self.syncs = []

    def opened(self, connection: Connection) -> None:
        """A client that can resume has opened a connection."""
        if len(connection.resume_id) > 0:
            self.connected.setdefault(connection.resume_id, {})[int(connection.id)] = connection

    def closed(self, connection: Connection) -> None:
        """A connection is gone, or its client won't come back."""
        known = self.connected.get(connection.resume_id)
        if known is not None:
            known.pop(int(connection.id), None)
            if len(known) == 0:
                del self.connected[connection.resume_id]

    def carriers(self) -> list[Connection]:
        return [suspended.carrier for suspended in self.suspended_sessions.values()]

    def keeps(self, connection: Connection) -> bool:
        """Whether a connection has no client any more and only keeps what one held."""
        suspended = self.suspended_sessions.get(connection.resume_id)
        return suspended is not None and suspended.carrier is connection

    def answer_syncs(self) -> None:
        """Answer the syncs whose settlements are safe."""
        syncs = self.syncs
        self.syncs = []
        for sync in syncs:
            channel = sync.channel
            if not sync.is_safe(self.durable):
                self.syncs.append(sync)
            elif sync.connection.stage == RUNNING and channel.connection is sync.connection:
                if not channel.closing:
                    channel.send(SessionSyncOk())

    def keep(self, connection: Connection) -> None:
        """A client that can resume has lost its connection: keep what it holds."""
        client = connection.resume_id
        for number, channel in list(connection.channels.items()):
            if channel.unacked.count == 0 or channel.closing:
                continue
            suspended = self.suspended_sessions.get(client)
            if suspended is None:
                suspended = SuspendedSession(self.broker, client)
                self.suspended_sessions[client] = suspended
            suspended.until_ms = self.broker.turn.now_ms + KEEP_MS
            del connection.channels[number]
            suspended.add(channel)
            self.broker.cluster.client_left(channel)

    def take(self, client: str, queue_id: i64, index: i64) -> Message | None:
        suspended = self.suspended_sessions.get(client)
        return None if suspended is None else suspended.take(queue_id, index)

    def finish(self, client: str) -> None:
        """The client has presented everything; it no longer has the rest."""
        suspended = self.suspended_sessions.pop(client, None)
        if suspended is not None:
            suspended.give_back()

    def tick(self, now_ms: i64) -> None:
        if len(self.suspended_sessions) > 0:
            for client in list(self.suspended_sessions):
                if now_ms >= self.suspended_sessions[client].until_ms:
                    self.finish(client)


# ---- methods -----------------------------------------------------------------------------------


def sessions_of(connection: Connection) -> SuspendedSessions:
    sessions = connection.broker.sessions
    assert isinstance(sessions, SuspendedSessions), "a broker has no other sessions"
    return sessions


def handle(channel: Channel, method: Method) -> None:
    """A method of class session on a channel."""
    if len(channel.connection.resume_id) == 0:
        raise unimplemented(method)
    if isinstance(method, SessionResume):
        resume(channel, method.entries, [])
    elif isinstance(method, SessionSync):
        _sync(channel)
    else:
        raise unimplemented(method)


def handle_on_connection(connection: Connection, method: Method) -> bool:
    """Handle a method of class session on channel 0; False if the method is unknown."""
    if len(connection.resume_id) == 0 or not isinstance(method, SessionResumed):
        return False
    connection.has_resumed = True
    sessions_of(connection).finish(connection.resume_id)
    connection.broker.cluster.client_came_back(connection)
    return True


def resume(channel: Channel, entries: bytes, asked: list[Away]) -> None:
    """Let a channel continue with what its client presents. If this broker was away in the epoch of
    some of it, the home is asked first. If the home was ``asked`` and the epoch is still unknown,
    the message is void and will be delivered again."""
    if len(entries) % ENTRY_BYTES != 0:
        raise SyntaxErrorFault("session.resume is cut short", SESSION, 40)
    _end_others(channel.connection)
    if _catch_up(channel, entries, asked):
        return
    first_tag = channel.delivery_tag + 1
    presented: dict[Away, None] = {}
    settled: list[tuple[i64, i64]] = []
    elsewhere = channel.connection.broker.cluster.holdings_of(channel.connection)
    at: i64 = 0
    while at < len(entries):
        tag = channel.delivery_tag + 1
        channel.delivery_tag = tag
        queue = channel.connection.broker.shared.get(read_i64_be(entries, at))
        index = read_i64_be(entries, at + 12)
        kind: i64 = entries[at + 20]
        message: Message | None = None
        if queue is not None and queue.worker is None:
            if kind == REQUEUE + 1:
                message = _find_requeued(channel, queue, index)
            else:
                message = _find(channel, queue, u32_at(entries, at + 8), index, elsewhere)
        if queue is not None and message is not None:
            _hold(channel, tag, queue, message)
            away = away_of(queue)
            if away is not None:
                presented[away] = None
            if kind > 0:
                settled.append((tag, kind - 1))
        else:
            channel.forgive(tag)
        at += ENTRY_BYTES
    for home in presented:
        home.present(channel, first_tag)
    for tag, kind in settled:
        channel.settle_one(tag, kind)
    channel.send(SessionResumeOk(first_tag))


def _catch_up(channel: Channel, entries: bytes, asked: list[Away]) -> bool:
    """Whether the home of a presented message has to be asked."""
    for at in range(0, len(entries), ENTRY_BYTES):
        queue = channel.connection.broker.shared.get(read_i64_be(entries, at))
        away = None if queue is None else away_of(queue)
        if queue is not None and away is not None and away not in asked:
            if not away.knows(u32_at(entries, at + 8)):
                away.catch_up(channel, queue, entries, asked)
                return True
    return False


def _end_others(connection: Connection) -> None:
    """End the older of two connections of one session: it is dead, though this was not noticed
    yet."""
    connected = sessions_of(connection).connected.get(connection.resume_id)
    if connected is None:
        return
    for other in list(connected.values()):
        if other is not connection and other.stage == RUNNING:
            other.force_close("its session goes on over another connection")


def _find(
    channel: Channel, queue: Queue, epoch: i64, index: i64, elsewhere: Holdings
) -> Message | None:
    """Take a message that a client presents from where it is; None if it is void."""
    if queue.vhost != channel.connection.router.vhost or is_stream(queue.options):
        return None
    check_read(channel, QUEUE, queue.name)
    broker = channel.connection.broker
    message = sessions_of(channel.connection).take(channel.connection.resume_id, queue.id, index)
    away = away_of(queue)
    if away is not None:
        if not away.knows(epoch) or away.is_void(epoch, index):
            return None
        message = Message(broker.pager.route_last, b"", 0, 0)
        message.index = index
    elif message is None and is_same(queue.log.starts, epoch, index):
        message = claim(queue, index)
        if message is None:
            message = elsewhere.take(queue, index)
    return message


def _find_requeued(channel: Channel, queue: Queue, index: i64) -> Message | None:
    """Take a message that a client has requeued from what is kept for it here. The client doesn't
    hold it, and others may by now. So a home elsewhere isn't told of it, but only of the client: it
    gives back what it keeps when the client has presented everything."""
    away = away_of(queue)
    if away is not None:
        away.holder(channel)
        return None
    client = channel.connection.resume_id
    return sessions_of(channel.connection).take(client, queue.id, index)


def _hold(channel: Channel, tag: i64, queue: Queue, message: Message) -> None:
    """Let a channel hold a message again under a tag."""
    holder = restored_consumer(channel, queue)
    away = away_of(queue)
    proxy = None if away is None else away.holder(channel)
    if holder.proxy is not proxy and holder.unacked > 0:
        # The queue has just come home, and what was presented before is not resolved yet.
        holder = Consumer("", channel, queue, False, False, 0, 0, {})
    holder.proxy = proxy
    channel.unacked.push(tag, message, holder)
    holder.unacked += 1


def is_same(starts: list[tuple[int, int]], epoch: i64, index: i64) -> bool:
    """Whether an index means the same message now as in an earlier epoch. Later epochs may have
    begun below it, after a forced takeover or after a restart that lost records."""
    return all(i64(later) <= epoch or index < i64(start) for later, start in starts)


def _sync(channel: Channel) -> None:
    """Answer once everything that the channel has settled is as safe as it gets."""
    broker = channel.connection.broker
    broker.write_settled()
    sync = Sync(channel, broker.pager.journal.end_position())
    for log in broker.logs.values():
        if log.replicated:
            sync.here[log] = log.mark()
    proxies: dict[Proxy, None] = {}
    for consumer in [*channel.consumers.values(), *channel.pulls.values()]:
        if consumer.proxy is not None:
            proxies[consumer.proxy] = None
    for proxy in proxies:
        proxy.commit(sync.elsewhere)
    sessions_of(channel.connection).syncs.append(sync)
    sessions_of(channel.connection).answer_syncs()
