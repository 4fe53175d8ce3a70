"""Channels, consumers and messages whose calls wait."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, Self, TypeVar

from rhizome.amqp.properties import Properties
from rhizome.client import channel as async_channel
from rhizome.client import consumer as async_consumer
from rhizome.client import message as async_message
from rhizome.client.blocking.event_loop_thread import (
    Attribute,
    ClosedAtExit,
    Facade,
    LoopThread,
    waits,
)
from rhizome.client.topology_calls import Arguments


class Message(Facade[async_message.Message]):
    """A delivered message; see `rhizome.client.Message`."""

    __slots__ = ()

    body = Attribute[bytes]()
    properties = Attribute[Properties]()
    exchange = Attribute[str]()
    routing_key = Attribute[str]()
    redelivered = Attribute[bool]()
    delivery_tag = Attribute[int]()
    consumer_tag = Attribute[str]()
    ack = waits(async_message.Message.ack)
    nack = waits(async_message.Message.nack)
    reject = waits(async_message.Message.reject)


class Batched(Protocol):
    """A source of messages: a consumer, or a queue of a session."""

    async def batch(self) -> list[async_message.Message]: ...

    def put_back(self, messages: Sequence[async_message.Message]) -> None: ...

    async def __aenter__(self) -> object: ...

    async def __aexit__(self, *_: object) -> None: ...


M = TypeVar("M", bound=Batched)


class Messages(Facade[M]):
    """Iterates over messages.

    With `timeout_s`, iteration stops when no message came for this long. Leaving a `with` block
    ends the deliveries and requeues what was not taken.
    """

    def __init__(self, loop: LoopThread, inner: M, timeout_s: float | None) -> None:
        super().__init__(loop, inner)
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

    def __enter__(self) -> Self:
        self._loop.call(self._inner.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call(self._leave())

    async def _next_batch(self) -> list[async_message.Message]:
        """The timeout is inside the loop: one outside could lose a batch on its way."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._inner.batch()
        except TimeoutError:
            return []

    async def _leave(self) -> None:
        self._inner.put_back(self._taken)
        self._taken.clear()
        await self._inner.__aexit__()


class Consumer(Messages[async_consumer.Consumer]):
    """Iterates over the messages of a queue; see `Messages` and `rhizome.client.Consumer`."""

    def cancel(self) -> None:
        """Stop the deliveries; what was delivered and not taken is requeued."""
        self._loop.call(self._leave())


class Channel(Facade[async_channel.Channel], ClosedAtExit):
    """A channel whose calls wait; see `rhizome.client.Channel` for what each of them does."""

    is_open = Attribute[bool]()
    publish = waits(async_channel.Channel.publish)
    qos = waits(async_channel.Channel.qos)
    recover = waits(async_channel.Channel.recover)
    declare_queue = waits(async_channel.Channel.declare_queue)
    bind_queue = waits(async_channel.Channel.bind_queue)
    unbind_queue = waits(async_channel.Channel.unbind_queue)
    purge_queue = waits(async_channel.Channel.purge_queue)
    delete_queue = waits(async_channel.Channel.delete_queue)
    declare_exchange = waits(async_channel.Channel.declare_exchange)
    delete_exchange = waits(async_channel.Channel.delete_exchange)
    bind_exchange = waits(async_channel.Channel.bind_exchange)
    unbind_exchange = waits(async_channel.Channel.unbind_exchange)
    tx_select = waits(async_channel.Channel.tx_select)
    tx_commit = waits(async_channel.Channel.tx_commit)
    tx_rollback = waits(async_channel.Channel.tx_rollback)
    close = waits(async_channel.Channel.close)

    def publish_many(
        self,
        bodies: Sequence[bytes],
        *,
        exchange: str = "",
        routing_key: str = "",
        properties: Properties | None = None,
        mandatory: bool | None = None,
    ) -> None:
        """Publish several messages together; with confirms on, waits for all of them."""

        async def work() -> None:
            for body in bodies:
                await self._inner.ready()
                self._inner.publish_soon(
                    body,
                    exchange=exchange,
                    routing_key=routing_key,
                    properties=properties,
                    mandatory=mandatory,
                )
            await self._inner.confirmed()

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
        consumer = self._inner.consume(
            queue, no_ack=no_ack, exclusive=exclusive, tag=tag, arguments=arguments
        )
        return Consumer(self._loop, consumer, timeout_s)

    def get(self, queue: str, *, no_ack: bool = False) -> Message | None:
        """Take one message, or None if the queue is empty."""
        message = self._loop.call(self._inner.get(queue, no_ack=no_ack))
        return None if message is None else Message(self._loop, message)

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
