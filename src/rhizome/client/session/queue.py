"""A queue as an application of a session sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rhizome.client.errors import NotOpen
from rhizome.client.message import Message
from rhizome.client.topology_calls import Arguments, QueueInfo

if TYPE_CHECKING:
    from rhizome.client.session.session import Session
    from rhizome.client.session.session_channel import SessionChannel, SessionConsumer


class Queue:
    """Messages of one queue, from whichever broker; made by `Session.queue`.

    `async with` declares the queue and begins to consume it; leaving the block requeues what was
    delivered and not taken. Iterating does the same where there is no block.

    Example:
        async with session.queue("orders", durable=True, prefetch=50) as queue:
            async for message in queue:
                await handle(message.body)
                await message.ack()
    """

    def __init__(
        self,
        session: Session,
        name: str,
        declare: bool,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: Arguments | None,
        prefetch: int,
        no_ack: bool,
    ) -> None:
        self.name = name
        self._session = session
        self._declare = declare
        self._durable = durable
        self._exclusive = exclusive
        self._auto_delete = auto_delete
        self._arguments = arguments
        self._prefetch = prefetch
        self._no_ack = no_ack
        self._channel: SessionChannel | None = None
        self._consumer: SessionConsumer | None = None

    async def info(self) -> QueueInfo:
        """How many messages are ready, how many consumers there are."""
        channel = await self._opened()
        return await channel.declare_queue(self.name, passive=True)

    async def bind(
        self, exchange: str, routing_key: str = "", *, arguments: Arguments | None = None
    ) -> None:
        """Let messages flow from an exchange to this queue."""
        channel = await self._opened()
        await channel.bind_queue(self.name, exchange, routing_key, arguments=arguments)

    async def get(self) -> Message | None:
        """Take one message, or None if the queue is empty."""
        channel = await self._opened()
        return await channel.get(self.name, no_ack=self._no_ack)

    async def batch(self, most: int = 1000) -> list[Message]:
        """At least one message, and at most `most` of those that have arrived."""
        return await (await self._started()).batch(most)

    def put_back(self, messages: Sequence[Message]) -> None:
        """Undo a `batch`, or the rest of one: these are the next to be taken, or requeued."""
        if self._consumer is not None:
            self._consumer.put_back(messages)

    async def close(self) -> None:
        """Stop consuming; what was delivered and not taken is requeued."""
        channel, self._channel = self._channel, None
        consumer, self._consumer = self._consumer, None
        if channel is not None and channel.is_open:
            if consumer is not None:
                await consumer.cancel()
            await channel.close()

    async def _opened(self) -> SessionChannel:
        if self._channel is None:
            self._channel = await self._session.channel(prefetch=self._prefetch, confirms=False)
            if self._declare:
                made = await self._channel.declare_queue(
                    self.name,
                    durable=self._durable,
                    exclusive=self._exclusive,
                    auto_delete=self._auto_delete,
                    arguments=self._arguments,
                )
                self.name = made.name
        return self._channel

    async def _started(self) -> SessionConsumer:
        if self._consumer is None:
            channel = await self._opened()
            self._consumer = channel.consume(self.name, no_ack=self._no_ack)
            await self._consumer.subscribe()
        return self._consumer

    async def __aenter__(self) -> Queue:
        await self._started()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> Queue:
        return self

    async def __anext__(self) -> Message:
        consumer = self._consumer
        if consumer is None:
            if self._session.state == "closed":
                raise NotOpen("the session was closed; open another")
            consumer = await self._started()
        return await consumer.__anext__()
