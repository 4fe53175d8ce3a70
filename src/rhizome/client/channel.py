"""A channel: it publishes, consumes, settles, and runs transactions."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rhizome.amqp import methods
from rhizome.amqp.methods import Method
from rhizome.amqp.properties import Properties
from rhizome.client.confirm_level import Level, LevelCallback
from rhizome.client.consumer import BUFFERED_MESSAGES_MAX, Consumer
from rhizome.client.errors import MessageReturned, PublishNacked, SendBufferFull, renewed
from rhizome.client.message import Message, ReturnedMessage, Settler
from rhizome.client.protocol_events import ContentReceived
from rhizome.client.topology_calls import Arguments, TopologyCalls
from rhizome.client.unconfirmed_publishes import ConfirmLedger, MandatoryKey

if TYPE_CHECKING:
    from rhizome.client.connection import Connection

# Refused publishes of publish_soon are remembered until `confirmed` reports them, the latest ones.
REFUSED_PUBLISHES_MAX: Final = 10_000
SEND_BUFFER_BYTES_MAX: Final = 64 * 1024 * 1024
NO_PROPERTIES: Final = Properties()

Confirmed = asyncio.Future[Level | None]
"""Done when a publish is confirmed, with the level if the broker tells."""

ReturnCallback = Callable[[ReturnedMessage], None]


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """A snapshot of what a channel has done."""

    published: int
    unconfirmed: int
    delivered: int
    consumers: int


class Channel(TopologyCalls):
    """One AMQP channel; made by `Connection.channel`.

    Errors that the broker states (404, 406, ...) close the channel: the call that caused them
    raises the class of that code, as does every later call.

    Example:
        async with connection.channel(prefetch=100, confirms=True) as channel:
            await channel.declare_queue("orders", durable=True)
            await channel.publish(b"one", routing_key="orders")  # returns when it is confirmed
            async for message in channel.consume("orders"):
                await message.ack()
    """

    def __init__(
        self, connection: Connection, number: int, on_return: ReturnCallback | None
    ) -> None:
        super().__init__(connection, number)
        self.on_return = on_return
        self.confirms = False
        self.on_level: LevelCallback | None = None
        self._ledger: ConfirmLedger[Confirmed, ReturnedMessage] = ConfirmLedger()
        self._refused: deque[int] = deque(maxlen=REFUSED_PUBLISHES_MAX)
        self._returned: ReturnedMessage | None = None
        self._settlement_waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._consumers: dict[str, Consumer] = {}
        self._tags = itertools.count(1)
        self._flow = asyncio.Event()
        self._flow.set()
        self._settler: Settler = self
        self._published = 0
        self._delivered = 0
        self._closed = asyncio.Event()

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
        """Publish one message. With confirms on, returns once the broker has confirmed it.

        Waits first while the broker blocks the connection or the socket's buffer is full.
        Raises PublishNacked if the broker refuses it, and MessageReturned if no queue gets it;
        `mandatory=False` lets it go nowhere, and so does a channel without confirms unless it is
        True. To have many in flight use `publish_soon`, or several tasks.
        Returns the level that was reached if the connection has `confirm_levels`.
        """
        if not (self._connection._gate.is_set() and self._flow.is_set()):
            await self.ready()
        if not self.confirms:
            self._publish(body, exchange, routing_key, properties, mandatory)
            return None
        confirmed: Confirmed = asyncio.get_running_loop().create_future()
        self._publish(body, exchange, routing_key, properties, mandatory, confirmed)
        with self._connection._awaiting_broker():
            return await confirmed

    def publish_soon(
        self,
        body: bytes,
        *,
        exchange: str = "",
        routing_key: str = "",
        properties: Properties | None = None,
        mandatory: bool | None = None,
    ) -> int:
        """Publish without waiting; returns the publish's number on this channel (from 1).

        `confirmed` raises what `publish` would. Messages are written together at the end of the
        loop's turn. Call `ready` or `confirmed` now and then, or memory fills up: SendBufferFull is
        raised at 64 MiB.

        Example:
            for line in lines:
                channel.publish_soon(line, routing_key="log")
                await channel.confirmed(unconfirmed_max=1000)  # a window of 1000
            await channel.confirmed()
        """
        if not self._connection._gate.is_set():
            unsent_bytes = self._connection._unsent_bytes()
            if unsent_bytes > SEND_BUFFER_BYTES_MAX:
                raise SendBufferFull(
                    f"{unsent_bytes} bytes wait to be sent; await channel.ready() between publishes"
                )
        return self._publish(body, exchange, routing_key, properties, mandatory)

    async def ready(self) -> None:
        """Wait until the broker accepts publishes and the socket's buffer has room."""
        while not (self._connection._gate.is_set() and self._flow.is_set()):
            self._require_open()
            await self._connection._gate.wait()
            await self._flow.wait()
        self._require_open()

    async def confirmed(self, unconfirmed_max: int = 0) -> None:
        """Wait until at most `unconfirmed_max` publishes are unconfirmed.

        Raises PublishNacked with the numbers of those that `publish_soon` sent and the broker
        refused since the last call, MessageReturned for the first mandatory one that came back.
        """
        self._require_open()
        if self._unconfirmed() > unconfirmed_max:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._settlement_waiters.append((unconfirmed_max, waiter))
            with self._connection._awaiting_broker():
                await waiter
        if self._refused:
            refused = list(self._refused)
            self._refused.clear()
            raise PublishNacked(refused)
        if self._returned is not None:
            returned, self._returned = self._returned, None
            raise MessageReturned(returned)

    def _publish(
        self,
        body: bytes,
        exchange: str,
        routing_key: str,
        properties: Properties | None,
        mandatory: bool | None,
        confirmed: Confirmed | None = None,
    ) -> int:
        if self._ended is not None:
            raise renewed(self._ended)
        if mandatory is None:
            mandatory = self.confirms
        self._connection._publish(
            self.number, exchange, routing_key, mandatory, properties or NO_PROPERTIES, body
        )
        self._published += 1
        if not self.confirms:
            return self._published
        key = (exchange, routing_key, body) if mandatory else None
        return self._ledger.record(confirmed, key)

    async def select_confirms(self) -> None:
        """Turn publisher confirms on, for good; `Connection.channel(confirms=True)` does it."""
        if not self.confirms:
            await self._call(methods.ConfirmSelect(), methods.ConfirmSelectOk)
            self.confirms = True

    # --- consuming

    async def qos(self, prefetch: int, *, shared: bool = False) -> None:
        """Limit unacknowledged messages: per consumer started from now on, or `shared` by all."""
        await self._call(
            methods.BasicQos(prefetch_count=prefetch, global_=shared), methods.BasicQosOk
        )

    def consume(
        self,
        queue: str,
        *,
        no_ack: bool = False,
        exclusive: bool = False,
        tag: str = "",
        arguments: Arguments | None = None,
    ) -> Consumer:
        """Messages of a queue, as an asynchronous iterator; see `Consumer`.

        Example:
            async with channel.consume("orders") as messages:
                async for message in messages:
                    await message.ack()
        """
        tag = tag or f"ctag{self.number}.{next(self._tags)}"
        return Consumer(self, queue, tag, no_ack, exclusive, arguments)

    async def get(self, queue: str, *, no_ack: bool = False) -> Message | None:
        """Take one message, or None if the queue is empty."""
        orphaned = None if no_ack else self._give_back
        reply = await self._call_any(
            methods.BasicGet(queue, no_ack), (Message, methods.BasicGetEmpty), orphaned
        )
        return reply if isinstance(reply, Message) else None

    async def ack(self, delivery_tag: int, *, multiple: bool = False) -> None:
        """Acknowledge a delivery; `multiple` includes all earlier ones."""
        self._send(methods.BasicAck(delivery_tag, multiple))

    async def nack(
        self, delivery_tag: int, *, requeue: bool = True, multiple: bool = False
    ) -> None:
        """Requeue a delivery; without `requeue` it is dropped or dead-lettered."""
        self._send(methods.BasicNack(delivery_tag, multiple, requeue))

    async def reject(self, delivery_tag: int, *, requeue: bool = False) -> None:
        """Refuse one delivery."""
        self._send(methods.BasicReject(delivery_tag, requeue))

    async def recover(self) -> None:
        """Requeue all unacknowledged deliveries of the channel."""
        await self._call(methods.BasicRecover(requeue=True), methods.BasicRecoverOk)

    # --- transactions

    async def tx_select(self) -> None:
        """Make the channel transactional: publishes and acks take effect at the commit."""
        await self._call(methods.TxSelect(), methods.TxSelectOk)

    async def tx_commit(self) -> None:
        """Make all publishes and acks since the last commit effective."""
        await self._call(methods.TxCommit(), methods.TxCommitOk)

    async def tx_rollback(self) -> None:
        """Undo all publishes and acks since the last commit."""
        await self._call(methods.TxRollback(), methods.TxRollbackOk)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """A block whose publishes and acks take effect together at its end, or not at all.

        Example:
            async with channel.transaction():
                await channel.publish(b"debit", routing_key="a")
                await channel.publish(b"credit", routing_key="b")
        """
        await self.tx_select()
        try:
            yield
        except BaseException:
            if self.is_open:
                await self.tx_rollback()
            raise
        await self.tx_commit()

    # --- life

    async def close(self) -> None:
        """Close the channel; its unacknowledged deliveries are requeued."""
        if self._ended is None:
            self._connection._close_channel(self.number)
            self._ended = self._closed_by_us()
        with self._connection._awaiting_broker():
            await self._closed.wait()

    def statistics(self) -> ChannelStatistics:
        """What the channel has done so far."""
        return ChannelStatistics(
            published=self._published,
            unconfirmed=self._unconfirmed(),
            delivered=self._delivered,
            consumers=len(self._consumers),
        )

    # --- called by the connection

    async def _opened(self) -> None:
        """Wait for open-ok; the connection has sent the open."""
        await self._expect(methods.ChannelOpenOk)

    def _awaits_broker(self) -> bool:
        """Whether a caller waits for the broker beyond the calls that the connection counts."""
        return False

    def _method(self, method: Method) -> None:
        """A method arrived that is not content."""
        if isinstance(method, methods.BasicAck):
            if not self._connection.tells_levels:
                self._settle(int(method.delivery_tag), method.multiple, refused=False)
        elif isinstance(method, methods.ConfirmLevel):
            # The broker acked all others before this nack: nothing below this tag is open any more.
            level = Level(int(method.level))
            self._settle(int(method.delivery_tag), True, refused=False, level=level)
        elif isinstance(method, methods.BasicNack):
            self._settle(int(method.delivery_tag), method.multiple, refused=True)
        elif isinstance(method, methods.BasicCancel):
            consumer = self._consumers.pop(method.consumer_tag, None)
            if consumer is not None:
                consumer.cancelled_by_broker()
        elif isinstance(method, methods.ChannelFlow):
            self._broker_flow(method.active)
        else:
            self._reply(method)

    def _content(self, event: ContentReceived) -> None:
        """A delivery, the answer to a get, or a returned message arrived."""
        method = event.method
        if isinstance(method, methods.BasicDeliver):
            self._deliver(method, event)
        elif isinstance(method, methods.BasicGetOk):
            self._delivered += 1
            message = Message(
                self._settler,
                int(method.delivery_tag),
                "",
                method.redelivered,
                method.exchange,
                method.routing_key,
                event.header,
                event.body,
            )
            self._reply(message)
        elif isinstance(method, methods.BasicReturn):
            self._message_returned(method, event)

    def _end(self, error: Exception | None) -> None:
        """The channel is over, because we closed it (None) or not. All that wait are told."""
        self._ended = self._ended or error or self._closed_by_us()
        self._fail_calls(self._ended)
        for confirmed in self._ledger.abandon():
            fail(confirmed, self._ended)
        for _, waiter in self._settlement_waiters:
            fail(waiter, self._ended)
        self._settlement_waiters.clear()
        for consumer in self._consumers.values():
            consumer.end(self._ended)
        self._consumers.clear()
        self._flow.set()
        self._closed.set()

    # --- called by consumers

    async def _subscribe(self, consumer: Consumer) -> None:
        self._consumers[consumer.tag] = consumer
        request = methods.BasicConsume(
            queue=consumer.queue,
            consumer_tag=consumer.tag,
            no_ack=consumer.no_ack,
            exclusive=consumer.exclusive,
            arguments=consumer.arguments,
        )
        try:
            await self._call(request, methods.BasicConsumeOk)
        except asyncio.CancelledError:
            # The broker may have started it: what it delivers until it reads this is requeued.
            if self.is_open:
                self._send(methods.BasicCancel(consumer.tag, no_wait=True))
            consumer.end(None)
            raise

    async def _unsubscribe(self, consumer: Consumer) -> None:
        await self._call(methods.BasicCancel(consumer.tag), methods.BasicCancelOk)
        self._consumers.pop(consumer.tag, None)

    def _taken(self, consumer: Consumer) -> None:
        """The application took messages out of a consumer's buffer."""
        if consumer in self._connection._overfull and (
            consumer.ended or consumer.buffered < BUFFERED_MESSAGES_MAX // 2
        ):
            self._connection._overfull.discard(consumer)
            self._connection._update_reading()

    # --- inside

    def _deliver(self, method: methods.BasicDeliver, event: ContentReceived) -> None:
        consumer = self._consumers.get(method.consumer_tag)
        if consumer is None:
            return
        self._delivered += 1
        message = Message(
            self._settler,
            method.delivery_tag,
            consumer.tag,
            method.redelivered,
            method.exchange,
            method.routing_key,
            event.header,
            event.body,
        )
        if consumer.ended:
            if not consumer.no_ack:
                self._give_back(message)
            return
        consumer.deliver(message)
        if consumer.buffered >= BUFFERED_MESSAGES_MAX:
            self._connection._overfull.add(consumer)

    def _give_back(self, message: object) -> None:
        """Requeue a message that no caller waits for any more."""
        if isinstance(message, Message) and self.is_open:
            self._send(methods.BasicNack(message.delivery_tag, False, True))

    def _settle(
        self, sequence: int, multiple: bool, refused: bool, level: Level | None = None
    ) -> None:
        for settled, confirmed in self._ledger.settle(sequence, multiple):
            returned = self._ledger.take_returned(settled)
            self._settled(settled, confirmed, returned, refused, level)
        if self._settlement_waiters:
            self._wake_settlement_waiters()

    def _settled(
        self,
        number: int,
        confirmed: Confirmed | None,
        returned: ReturnedMessage | None,
        refused: bool,
        level: Level | None,
    ) -> None:
        """A publish was answered: tell the caller that waits for it, or remember what went
        wrong."""
        if level is not None and self.on_level is not None:
            self._connection._call_back(self.on_level, number, level)
        if confirmed is None:
            if refused:
                self._refused.append(number)
            self._returned = self._returned or returned
        elif refused:
            fail(confirmed, PublishNacked([number]))
        elif returned is not None:
            fail(confirmed, MessageReturned(returned))
        elif not confirmed.done():
            confirmed.set_result(level)

    def _unconfirmed(self) -> int:
        """How many publishes wait for the broker's answer."""
        return self._ledger.unconfirmed

    def _wake_settlement_waiters(self) -> None:
        waiting = self._settlement_waiters
        self._settlement_waiters = []
        for unconfirmed_max, waiter in waiting:
            if self._unconfirmed() > unconfirmed_max:
                self._settlement_waiters.append((unconfirmed_max, waiter))
            elif not waiter.done():
                waiter.set_result(None)

    def _message_returned(self, method: methods.BasicReturn, event: ContentReceived) -> None:
        message = ReturnedMessage(
            int(method.reply_code),
            method.reply_text,
            method.exchange,
            method.routing_key,
            event.header,
            event.body,
        )
        self._mark_returned((method.exchange, method.routing_key, event.body), message)
        if self.on_return is not None:
            self._connection._call_back(self.on_return, message)

    def _mark_returned(self, key: MandatoryKey, message: ReturnedMessage) -> None:
        self._ledger.mark_returned(key, message)

    def _broker_flow(self, active: bool) -> None:
        """The broker asks the channel to stop or to continue publishing (channel.flow)."""
        if active:
            self._flow.set()
        else:
            self._flow.clear()
        self._send(methods.ChannelFlowOk(active))


def fail(future: asyncio.Future[None] | Confirmed, error: Exception) -> None:
    """Set an error on a future, if a caller waits for it."""
    if not future.done():
        future.set_exception(renewed(error))
