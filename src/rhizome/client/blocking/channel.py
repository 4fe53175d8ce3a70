"""Channels, consumers and messages whose calls wait."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

from rhizome.amqp.properties import Properties
from rhizome.client import channel as async_channel
from rhizome.client import consumer as async_consumer
from rhizome.client import message as async_message
from rhizome.client.blocking.loopthread import LoopThread
from rhizome.client.levels import Level
from rhizome.client.topology import Arguments, QueueInfo


class Message:
    """A delivered message; see `rhizome.client.Message`."""

    __slots__ = ("_loop", "_message")

    def __init__(self, loop: LoopThread, message: async_message.Message) -> None:
        self._loop = loop
        self._message = message

    @property
    def body(self) -> bytes:
        return self._message.body

    @property
    def properties(self) -> Properties:
        return self._message.properties

    @property
    def exchange(self) -> str:
        return self._message.exchange

    @property
    def routing_key(self) -> str:
        return self._message.routing_key

    @property
    def redelivered(self) -> bool:
        return self._message.redelivered

    @property
    def delivery_tag(self) -> int:
        return self._message.delivery_tag

    @property
    def consumer_tag(self) -> str:
        return self._message.consumer_tag

    def ack(self, *, multiple: bool = False) -> None:
        """Take responsibility: the broker forgets the message."""
        self._loop.call(self._message.ack(multiple=multiple))

    def nack(self, *, requeue: bool = True, multiple: bool = False) -> None:
        """Give the message back, or drop it without `requeue`."""
        self._loop.call(self._message.nack(requeue=requeue, multiple=multiple))

    def reject(self, *, requeue: bool = False) -> None:
        """Refuse the message."""
        self._loop.call(self._message.reject(requeue=requeue))


class Consumer:
    """Iterates over the messages of a queue.

    With `timeout_s`, iteration stops when no message came for so long. Leaving a `with` block
    cancels the consumer and gives back what was not taken.
    """

    def __init__(
        self, loop: LoopThread, consumer: async_consumer.Consumer, timeout_s: float | None
    ) -> None:
        self._loop = loop
        self._consumer = consumer
        self._timeout_s = timeout_s
        self._taken: deque[async_message.Message] = deque()

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        if not self._taken:
            self._taken.extend(self._loop.call(self._next_batch()))
        if not self._taken:
            raise StopIteration
        return Message(self._loop, self._taken.popleft())

    def cancel(self) -> None:
        """Stop the deliveries; what was delivered and not taken goes back to the queue."""
        self._loop.call(self._cancel())

    def __enter__(self) -> Consumer:
        self._loop.call(self._consumer.subscribe())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel()

    async def _next_batch(self) -> list[async_message.Message]:
        """The timeout is inside the loop: one outside could lose a batch on its way."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._consumer.batch()
        except TimeoutError:
            return []

    async def _cancel(self) -> None:
        await self._consumer.cancel()
        while self._taken:
            message = self._taken.popleft()
            if not self._consumer.no_ack:
                await message.nack(requeue=True)


class Channel:
    """A channel whose calls wait; see `rhizome.client.Channel` for what each of them does."""

    def __init__(self, loop: LoopThread, channel: async_channel.Channel) -> None:
        self._loop = loop
        self._channel = channel

    @property
    def is_open(self) -> bool:
        return self._channel.is_open

    def publish(
        self,
        body: bytes,
        *,
        exchange: str = "",
        routing_key: str = "",
        properties: Properties | None = None,
        mandatory: bool = False,
    ) -> Level | None:
        """Publish; with confirms on, returns once the broker has confirmed."""
        return self._loop.call(
            self._channel.publish(
                body,
                exchange=exchange,
                routing_key=routing_key,
                properties=properties,
                mandatory=mandatory,
            )
        )

    def publish_many(
        self,
        bodies: Sequence[bytes],
        *,
        exchange: str = "",
        routing_key: str = "",
        properties: Properties | None = None,
    ) -> None:
        """Publish several messages together; with confirms on, waits for all of them."""

        async def work() -> None:
            for body in bodies:
                await self._channel.ready()
                self._channel.publish_soon(
                    body, exchange=exchange, routing_key=routing_key, properties=properties
                )
            await self._channel.confirmed()

        self._loop.call(work())

    def consume(
        self,
        queue: str,
        *,
        no_ack: bool = False,
        exclusive: bool = False,
        tag: str = "",
        arguments: Arguments | None = None,
        timeout_s: float | None = None,
    ) -> Consumer:
        """Messages of a queue, as an iterator."""
        consumer = self._channel.consume(
            queue, no_ack=no_ack, exclusive=exclusive, tag=tag, arguments=arguments
        )
        return Consumer(self._loop, consumer, timeout_s)

    def get(self, queue: str, *, no_ack: bool = False) -> Message | None:
        """Take one message, or None if the queue is empty."""
        message = self._loop.call(self._channel.get(queue, no_ack=no_ack))
        return None if message is None else Message(self._loop, message)

    def qos(self, prefetch: int, *, shared: bool = False) -> None:
        """Limit unacknowledged messages."""
        self._loop.call(self._channel.qos(prefetch, shared=shared))

    def recover(self) -> None:
        """Give all unacknowledged deliveries back."""
        self._loop.call(self._channel.recover())

    def declare_queue(
        self,
        name: str = "",
        *,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        passive: bool = False,
        arguments: Arguments | None = None,
    ) -> QueueInfo:
        """Make sure that a queue exists."""
        return self._loop.call(
            self._channel.declare_queue(
                name,
                durable=durable,
                exclusive=exclusive,
                auto_delete=auto_delete,
                passive=passive,
                arguments=arguments,
            )
        )

    def bind_queue(
        self,
        queue: str,
        exchange: str,
        routing_key: str = "",
        *,
        arguments: Arguments | None = None,
    ) -> None:
        """Let messages flow from the exchange to the queue."""
        self._loop.call(self._channel.bind_queue(queue, exchange, routing_key, arguments=arguments))

    def unbind_queue(
        self,
        queue: str,
        exchange: str,
        routing_key: str = "",
        *,
        arguments: Arguments | None = None,
    ) -> None:
        """Remove one binding."""
        self._loop.call(
            self._channel.unbind_queue(queue, exchange, routing_key, arguments=arguments)
        )

    def purge_queue(self, queue: str) -> int:
        """Drop all ready messages; returns how many."""
        return self._loop.call(self._channel.purge_queue(queue))

    def delete_queue(self, queue: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete the queue; returns how many messages it had."""
        return self._loop.call(
            self._channel.delete_queue(queue, if_unused=if_unused, if_empty=if_empty)
        )

    def declare_exchange(
        self,
        name: str,
        kind: str = "direct",
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        passive: bool = False,
        arguments: Arguments | None = None,
    ) -> None:
        """Make sure that an exchange exists."""
        self._loop.call(
            self._channel.declare_exchange(
                name,
                kind,
                durable=durable,
                auto_delete=auto_delete,
                internal=internal,
                passive=passive,
                arguments=arguments,
            )
        )

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        """Delete the exchange."""
        self._loop.call(self._channel.delete_exchange(name, if_unused=if_unused))

    def bind_exchange(
        self,
        destination: str,
        source: str,
        routing_key: str = "",
        *,
        arguments: Arguments | None = None,
    ) -> None:
        """Let messages flow from one exchange to another."""
        self._loop.call(
            self._channel.bind_exchange(destination, source, routing_key, arguments=arguments)
        )

    def unbind_exchange(
        self,
        destination: str,
        source: str,
        routing_key: str = "",
        *,
        arguments: Arguments | None = None,
    ) -> None:
        """Remove a binding between exchanges."""
        self._loop.call(
            self._channel.unbind_exchange(destination, source, routing_key, arguments=arguments)
        )

    def tx_select(self) -> None:
        """Make the channel transactional."""
        self._loop.call(self._channel.tx_select())

    def tx_commit(self) -> None:
        """Make everything since the last commit effective."""
        self._loop.call(self._channel.tx_commit())

    def tx_rollback(self) -> None:
        """Undo everything since the last commit."""
        self._loop.call(self._channel.tx_rollback())

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A block whose publishes and acks take effect together, or not at all."""
        self.tx_select()
        try:
            yield
        except BaseException:
            if self.is_open:
                self.tx_rollback()
            raise
        self.tx_commit()

    def close(self) -> None:
        """Close the channel."""
        self._loop.call(self._channel.close())

    def __enter__(self) -> Channel:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
