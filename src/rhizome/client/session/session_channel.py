"""Channels of a session: they outlive the connections that they use.

When a connection is lost its channels are *suspended*: calls wait, publishes are kept. When the
session has another connection each channel *comes back* on it: it is opened and configured again,
its consumers are started again, and what was published and not confirmed is sent again, under the
same producer sequence, so that no queue accepts it twice (L5).

Transitions of a channel:

    live to suspended    its connection ended and the session continues
    suspended to live    it has come back on another connection
    any to ended         it was closed, the broker closed it, or the session is over
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from rhizome.amqp import methods
from rhizome.amqp.methods import Method
from rhizome.amqp.properties import Properties, encode_header
from rhizome.client.channel import NO_PROPERTIES, Channel, Confirmed, ReturnCallback, fail
from rhizome.client.confirm_level import Level
from rhizome.client.consumer import Consumer
from rhizome.client.errors import ConnectionLost, SendBufferFull, renewed
from rhizome.client.message import Message, ReturnedMessage
from rhizome.client.protocol_events import ContentReceived
from rhizome.client.session.held_deliveries import (
    DeliveryIdentity,
    HeldDeliveries,
    in_parts,
    kind_of,
    settlement,
)
from rhizome.client.topology_calls import Arguments
from rhizome.client.unconfirmed_publishes import ConfirmLedger
from rhizome.errors import ConnectionFault

if TYPE_CHECKING:
    from rhizome.client.connection import Connection
    from rhizome.client.session.session import Session

UNCONFIRMED_MAX: Final = 4000
"""Queues tell a gap in the sequences from a duplicate within the last 4096 of them."""

RESUME_S_MAX: Final = 10.0
"""How long brokers keep what a lost client holds; after that others may get it."""

# Work that began on one connection can't be finished on another.
_BOUND: Final = (methods.TxSelect, methods.TxCommit, methods.TxRollback, methods.BasicRecover)


@dataclass(frozen=True, slots=True)
class ChannelOptions:
    """The options with which a channel is opened again."""

    prefetch: int = 0
    confirms: bool = True


class PendingPublish:
    """A message that was published and not confirmed."""

    __slots__ = (
        "body",
        "confirmed",
        "exchange",
        "mandatory",
        "properties",
        "routing_key",
        "sequence",
    )

    def __init__(
        self,
        sequence: int,
        exchange: str,
        routing_key: str,
        properties: Properties,
        mandatory: bool,
        body: bytes,
        confirmed: Confirmed | None,
    ) -> None:
        self.sequence = sequence
        self.exchange = exchange
        self.routing_key = routing_key
        self.properties = properties
        self.mandatory = mandatory
        self.body = body
        self.confirmed = confirmed

    def check(self) -> None:
        """Raise ValueError now if it can't be sent later."""
        methods.BasicPublish(self.exchange, self.routing_key, self.mandatory).encode()
        encode_header(len(self.body), self.properties)


class ChannelIncarnation:
    """One connection's use of a channel, through which the messages of that connection are
    settled."""

    def __init__(self, channel: SessionChannel) -> None:
        self._channel = channel

    async def ack(self, delivery_tag: int, *, multiple: bool = False) -> None:
        self._channel._settle_delivery(self, methods.BasicAck(delivery_tag, multiple))

    async def nack(
        self, delivery_tag: int, *, requeue: bool = True, multiple: bool = False
    ) -> None:
        self._channel._settle_delivery(self, methods.BasicNack(delivery_tag, multiple, requeue))

    async def reject(self, delivery_tag: int, *, requeue: bool = False) -> None:
        self._channel._settle_delivery(self, methods.BasicReject(delivery_tag, requeue))


class SessionConsumer(Consumer):
    """A consumer that moves with its channel to another broker, with what was delivered to it.

    Where a broker can't resume, or it took too long, what was delivered and not taken from the
    iterator is dropped: the broker delivers it again. What was taken may come again, too, marked
    as redelivered.
    """

    incarnation: ChannelIncarnation | None = None

    def holdings_lost(self) -> None:
        """What had to be acked over a lost connection is delivered again: drop it."""
        if not self.no_ack:
            self._buffer.clear()


class SessionChannel(Channel):
    """One channel of a session; made by `Session.channel`. The same calls as `Channel`.

    With confirms on, publishes are sent again after a failover and accepted once by each queue.
    Settle messages with their own methods (`message.ack()`): a delivery tag means nothing on
    another connection. What was delivered and is not settled is presented to the next broker, and
    can be settled there. Where that can't resume, an ack of it does nothing; the message comes
    again. A transaction that a failover interrupts raises ConnectionLost and has to be begun again.

    Invariant: `_publishes` holds, in order, what is not confirmed; it was sent on this connection
    unless the channel is suspended. `_settles`: the broker knows what is held, so that settlements
    are sent at once; it does before the channel is live, which may take a takeover longer.
    """

    def __init__(
        self, session: Session, options: ChannelOptions, on_return: ReturnCallback | None
    ) -> None:
        super().__init__(session._last_connection(), 0, on_return)
        self.options = options
        self._session = session
        self._suspended = True
        self._live = asyncio.Event()
        self._publishes: dict[int, PendingPublish] = {}
        self._sent: ConfirmLedger[PendingPublish, ReturnedMessage] = ConfirmLedger()
        self._sequence = 0
        self._incarnation = ChannelIncarnation(self)
        self._returning = False
        self._awaited = 0
        self._holdings = HeldDeliveries()
        self._identity: DeliveryIdentity | None = None
        self._settles = False
        self._lost_s = 0.0
        self.confirms = options.confirms

    @property
    def is_suspended(self) -> bool:
        """Whether it waits for the session to find another broker."""
        return self._suspended and self._ended is None

    @property
    def holds(self) -> int:
        """How many messages were delivered and are not settled."""
        return len(self._holdings)

    @property
    def can_move(self) -> bool:
        """Whether it could go to another broker without anything being delivered again."""
        return self._holdings.can_be_presented and _resumes(self._connection)

    # --- publishing

    async def publish(
        self,
        body: bytes,
        *,
        exchange: str = "",
        routing_key: str = "",
        properties: Properties | None = None,
        mandatory: bool | None = None,
    ) -> Level | None:
        await self.ready()
        if not self.confirms:
            self._publish(body, exchange, routing_key, properties, mandatory)
            return None
        confirmed: Confirmed = asyncio.get_running_loop().create_future()
        self._publish(body, exchange, routing_key, properties, mandatory, confirmed)
        self._awaited += 1
        self._connection._update_reading()
        try:
            return await confirmed
        finally:
            self._awaited -= 1

    def _publish(
        self,
        body: bytes,
        exchange: str,
        routing_key: str,
        properties: Properties | None,
        mandatory: bool | None,
        confirmed: Confirmed | None = None,
    ) -> int:
        self._require_open()
        if not self.confirms:
            if self._suspended:
                raise ConnectionLost("the session looks for a broker; await channel.ready() first")
            return super()._publish(body, exchange, routing_key, properties, mandatory)
        if len(self._publishes) >= UNCONFIRMED_MAX:
            raise SendBufferFull(
                f"{UNCONFIRMED_MAX} publishes are unconfirmed; await channel.confirmed(1000), say,"
                " between publishes"
            )
        sequence = self._sequence + 1
        numbered = self._session._numbered(properties or NO_PROPERTIES, self, sequence)
        publish = PendingPublish(
            sequence, exchange, routing_key, numbered, mandatory is not False, body, confirmed
        )
        if self._suspended:
            publish.check()
        else:
            self._send_publish(publish)
        self._sequence = sequence
        self._publishes[sequence] = publish
        self._published += 1
        return sequence

    def _send_publish(self, publish: PendingPublish) -> None:
        self._connection._publish(
            self.number,
            publish.exchange,
            publish.routing_key,
            publish.mandatory,
            publish.properties,
            publish.body,
        )
        key = (publish.exchange, publish.routing_key, publish.body) if publish.mandatory else None
        self._sent.record(publish, key)

    async def ready(self) -> None:
        """Wait until the channel is live, the broker takes publishes and there is room for more."""
        while True:
            self._require_open()
            if self._suspended:
                await self._live.wait()
            elif len(self._publishes) >= UNCONFIRMED_MAX:
                await self._room()
            elif self._connection._gate.is_set() and self._flow.is_set():
                return
            else:
                await self._connection._gate.wait()
                await self._flow.wait()

    async def _room(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._settlement_waiters.append((UNCONFIRMED_MAX - 1, waiter))
        await waiter

    def _settle(
        self, sequence: int, multiple: bool, refused: bool, level: Level | None = None
    ) -> None:
        for number, publish in self._sent.settle(sequence, multiple):
            assert publish is not None
            del self._publishes[publish.sequence]
            returned = self._sent.take_returned(number)
            self._settled(publish.sequence, publish.confirmed, returned, refused, level)
        if self._settlement_waiters:
            self._wake_settlement_waiters()

    def _unconfirmed(self) -> int:
        return len(self._publishes)

    def _awaits_broker(self) -> bool:
        return self._awaited > 0 or bool(self._settlement_waiters)

    def _mark_returned(self, key: tuple[str, str, bytes], message: ReturnedMessage) -> None:
        self._sent.mark_returned(key, message)

    async def select_confirms(self) -> None:
        """Confirms of a session's channel are chosen when it is opened."""
        if not self.confirms:
            raise ValueError("open the channel with confirms=True")

    # --- consuming

    def consume(
        self,
        queue: str,
        *,
        no_ack: bool = False,
        exclusive: bool = False,
        tag: str = "",
        arguments: Arguments | None = None,
    ) -> SessionConsumer:
        tag = tag or f"ctag{next(self._tags)}"
        return SessionConsumer(self, queue, tag, no_ack, exclusive, arguments)

    async def qos(self, prefetch: int, *, shared: bool = False) -> None:
        await super().qos(prefetch, shared=shared)
        if not shared:
            self.options = replace(self.options, prefetch=prefetch)

    async def get(self, queue: str, *, no_ack: bool = False) -> Message | None:
        message = await super().get(queue, no_ack=no_ack)
        if message is not None and not no_ack and not _resumes(self._connection):
            self._holdings.add(message.delivery_tag, None, self._incarnation)
        return message

    async def ack(self, delivery_tag: int, *, multiple: bool = False) -> None:
        await self._incarnation.ack(delivery_tag, multiple=multiple)

    async def nack(
        self, delivery_tag: int, *, requeue: bool = True, multiple: bool = False
    ) -> None:
        await self._incarnation.nack(delivery_tag, requeue=requeue, multiple=multiple)

    async def reject(self, delivery_tag: int, *, requeue: bool = False) -> None:
        await self._incarnation.reject(delivery_tag, requeue=requeue)

    def _settle_delivery(
        self,
        incarnation: ChannelIncarnation,
        method: methods.BasicAck | methods.BasicNack | methods.BasicReject,
    ) -> None:
        """Settle what was delivered over one connection; does nothing if it is no longer held."""
        self._require_open()
        multiple = not isinstance(method, methods.BasicReject) and method.multiple
        tags = self._holdings.tags(incarnation, int(method.delivery_tag), multiple)
        if self._settles:
            if incarnation is self._incarnation:
                self._send(method)
            else:
                for tag in tags:
                    self._send(settlement(tag, kind_of(method)))
        self._holdings.settle(tags, kind_of(method))
        if not self._suspended:
            self._sync_if_due()
            self._session._at_rest()

    def _sync_if_due(self) -> None:
        if self._holdings.sync_is_due() and _resumes(self._connection):
            self._holdings.begin_sync()
            self._send(methods.SessionSync())

    def _method(self, method: Method) -> None:
        if isinstance(method, methods.SessionMessage):
            self._identity = DeliveryIdentity(
                int(method.queue_id), int(method.epoch), int(method.index)
            )
        elif isinstance(method, methods.SessionSyncOk):
            self._holdings.synced()
            self._sync_if_due()
        else:
            super()._method(method)

    def _content(self, event: ContentReceived) -> None:
        method = event.method
        identity, self._identity = self._identity, None
        if isinstance(method, methods.BasicDeliver):
            consumer = self._consumers.get(method.consumer_tag)
            if consumer is not None and not consumer.no_ack:
                self._holdings.add(int(method.delivery_tag), identity, self._incarnation)
        elif isinstance(method, methods.BasicGetOk) and identity is not None:
            self._holdings.add(int(method.delivery_tag), identity, self._incarnation)
        super()._content(event)

    def _give_back(self, message: object) -> None:
        if isinstance(message, Message) and self.is_open:
            back = methods.BasicNack(message.delivery_tag, False, True)
            self._settle_delivery(self._incarnation, back)

    async def _subscribe(self, consumer: Consumer) -> None:
        assert isinstance(consumer, SessionConsumer)
        self._consumers[consumer.tag] = consumer
        try:
            while True:
                await self._alive()
                if consumer.incarnation is self._incarnation:
                    # It was started when the channel came back.
                    return
                try:
                    await self._start_consumer(consumer)
                except ConnectionLost:
                    self._require_open()
                else:
                    return
        except asyncio.CancelledError:
            self._consumers.pop(consumer.tag, None)
            if self.is_open and not self._suspended:
                self._send(methods.BasicCancel(consumer.tag, no_wait=True))
            consumer.end(None)
            raise

    async def _start_consumer(self, consumer: SessionConsumer) -> None:
        request = methods.BasicConsume(
            queue=self._session._topology.present_name(consumer.queue),
            consumer_tag=consumer.tag,
            no_ack=consumer.no_ack,
            exclusive=consumer.exclusive,
            arguments=consumer.arguments,
        )
        incarnation = self._incarnation
        await self._call_once(request, (methods.BasicConsumeOk,))
        consumer.incarnation = incarnation

    async def _unsubscribe(self, consumer: Consumer) -> None:
        self._consumers.pop(consumer.tag, None)
        if not self._suspended:
            try:
                await self._call_once(methods.BasicCancel(consumer.tag), (methods.BasicCancelOk,))
            except ConnectionLost:
                self._require_open()

    # --- calls

    async def _call_any(
        self,
        method: Method,
        replies: tuple[type, ...],
        orphaned: Callable[[object], None] | None = None,
    ) -> object:
        """Send `method` and wait for its reply, on another connection if this one is lost."""
        topology = self._session._topology
        while True:
            await self._alive()
            try:
                reply = await self._call_once(topology.renamed(method), replies, orphaned)
            except ConnectionLost:
                self._require_open()
                if isinstance(method, _BOUND):
                    raise
            else:
                topology.note(method, reply)
                return reply

    async def _call_once(
        self,
        method: Method,
        replies: tuple[type, ...],
        orphaned: Callable[[object], None] | None = None,
    ) -> object:
        return await super()._call_any(method, replies, orphaned)

    async def _alive(self) -> None:
        """Wait until the channel is live; raises if it has ended."""
        while self._suspended:
            self._require_open()
            await self._live.wait()
        self._require_open()

    # --- the life of a channel

    async def close(self) -> None:
        """Close the channel; its unacknowledged deliveries are requeued."""
        self._session._forget(self)
        if self._suspended:
            self._finish(self._closed_by_us())
        await super().close()

    def _end(self, error: Exception | None) -> None:
        """The channel or its connection has ended; a lost connection only suspends it."""
        if self._ended is not None or error is None:
            self._finish(error)
        elif self._session._survives(self._connection):
            self._suspend(error)
        elif self._returning:
            # The session tries again: what it needs may come back, too.
            self._settles = False
            self._fail_calls(error)
        else:
            self._finish(error)

    def _suspend(self, error: Exception) -> None:
        if not self._suspended or self._settles:
            # Otherwise it was coming back, and brokers count from when they lost it.
            self._lost_s = asyncio.get_running_loop().time()
        self._suspended = True
        self._settles = False
        self._live.clear()
        lost = error if isinstance(error, ConnectionLost) else ConnectionLost(str(error))
        self._fail_calls(lost)
        self._sent = ConfirmLedger()
        self._flow.set()
        if not self.can_move:
            self._lose_holdings()

    def _lose_holdings(self) -> None:
        """Forget what is held: the broker delivers it again, and the application must not see it
        twice."""
        self._holdings.clear()
        for consumer in self._consumers.values():
            assert isinstance(consumer, SessionConsumer)
            consumer.holdings_lost()

    def _finish(self, error: Exception | None) -> None:
        """It is over for good."""
        self._session._forget(self)
        publishes = list(self._publishes.values())
        self._publishes.clear()
        self._holdings.clear()
        super()._end(error)
        assert self._ended is not None
        for publish in publishes:
            if publish.confirmed is not None:
                fail(publish.confirmed, renewed(self._ended))
        self._suspended = False
        self._live.set()

    async def _come_back(self, connection: Connection, presenting: ResumeBarrier) -> None:
        """Open the channel on this connection, with all its settings and consumers."""
        self._returning = True
        try:
            await self._return_to(connection, presenting)
        finally:
            self._returning = False

    async def _return_to(self, connection: Connection, presenting: ResumeBarrier) -> None:
        self._incarnation = ChannelIncarnation(self)
        self._settler = self._incarnation
        self._connection = connection
        self.number = connection._enter(self)
        await self._expect(methods.ChannelOpenOk)
        if self.options.prefetch:
            qos = methods.BasicQos(prefetch_count=self.options.prefetch)
            await self._call_once(qos, (methods.BasicQosOk,))
        if self.confirms:
            await self._call_once(methods.ConfirmSelect(), (methods.ConfirmSelectOk,))
        await self._resume()
        self._settles = True
        await presenting.done(self)
        for consumer in list(self._consumers.values()):
            assert isinstance(consumer, SessionConsumer)
            await self._start_consumer(consumer)
        for publish in self._publishes.values():
            self._send_publish(publish)
        self._suspended = False
        self._live.set()

    async def _resume(self) -> None:
        """Present what is held, if the broker can resume and it isn't too late."""
        entries = self._holdings.present()
        if not entries:
            return
        away_s = asyncio.get_running_loop().time() - self._lost_s
        if not _resumes(self._connection) or away_s > RESUME_S_MAX:
            self._lose_holdings()
            return
        first_tag = 0
        for part in in_parts(entries, self._connection._core.frame_bytes_max):
            reply = await self._call_once(methods.SessionResume(part), (methods.SessionResumeOk,))
            assert isinstance(reply, methods.SessionResumeOk)
            # The tags of later parts follow: nothing is delivered before all are presented.
            first_tag = first_tag or int(reply.first_tag)
        for tag, kind in self._holdings.resumed(first_tag):
            self._send(settlement(tag, kind))


class ResumeBarrier:
    """Channels of a client that come back together.

    Once all of them have presented what they hold, the broker requeues the rest. A channel that
    consumed before that would get younger messages first.
    """

    def __init__(
        self, channels: Iterable[SessionChannel], told: Callable[[], None] | None = None
    ) -> None:
        """``told``: called once, when all have."""
        self._left: set[SessionChannel | None] = set(channels)
        self._told = told
        self._all_done = asyncio.Event()
        self.leave()

    def leave(self, channel: SessionChannel | None = None) -> None:
        """A channel has presented what it holds, or will not."""
        self._left.discard(channel)
        if not self._left and not self._all_done.is_set():
            self._all_done.set()
            if self._told is not None:
                self._told()

    async def done(self, channel: SessionChannel) -> None:
        self.leave(channel)
        await self._all_done.wait()


def _resumes(connection: Connection) -> bool:
    """Whether the broker at the other end lets clients resume with what they hold."""
    capabilities = connection.server_properties.get("capabilities")
    return isinstance(capabilities, dict) and capabilities.get("session.resume") is True


def is_lost(error: BaseException) -> bool:
    """Whether an error means that another connection may help."""
    return isinstance(error, (OSError, ConnectionLost, ConnectionFault))
