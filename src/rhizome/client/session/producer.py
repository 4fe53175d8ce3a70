"""Producers: each queue accepts their publishes exactly once, whichever broker serves it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rhizome.amqp.properties import Properties
from rhizome.client.confirm_level import Level

if TYPE_CHECKING:
    from rhizome.client.session.session_channel import SessionChannel

PERSISTENT = Properties(delivery_mode=2)


class Producer:
    """Publishes under a name, with a number for each message (headers x-producer, x-sequence).

    What is not confirmed when a connection is lost is sent again with the same number over the next
    one, and queues of Rhizome accept each number once: exactly once, in order. Other brokers ignore
    the headers: at least once. Messages are persistent unless their properties say otherwise.

    Example:
        async with session.producer(routing_key="orders") as producer:
            for line in lines:
                await producer.send(line)   # up to `window` unconfirmed at a time
        # all of them are safe

    An error, a cancellation or a timeout that leaves the block does not wait for what is
    unconfirmed: its broker may not come back.
    """

    def __init__(
        self,
        channel: SessionChannel,
        exchange: str,
        routing_key: str,
        persistent: bool,
        window: int,
    ) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.window = window
        self._channel = channel
        self._plain = PERSISTENT if persistent else None

    @property
    def name(self) -> str:
        """The name under which queues know the producer."""
        return self._channel._session._channels[self._channel]

    @property
    def sequence(self) -> int:
        """The number of the latest publish."""
        return self._channel._sequence

    async def publish(
        self,
        body: bytes,
        *,
        exchange: str | None = None,
        routing_key: str | None = None,
        properties: Properties | None = None,
        mandatory: bool = True,
    ) -> Level | None:
        """Publish one message and wait until it is safe.

        Raises PublishNacked if a queue refuses it, and MessageReturned if no queue gets it, unless
        `mandatory` is False. Returns the level that was reached if the session has
        `confirm_levels`.
        """
        return await self._channel.publish(
            body,
            exchange=self.exchange if exchange is None else exchange,
            routing_key=self.routing_key if routing_key is None else routing_key,
            properties=properties or self._plain,
            mandatory=mandatory,
        )

    async def send(
        self,
        body: bytes,
        *,
        exchange: str | None = None,
        routing_key: str | None = None,
        properties: Properties | None = None,
        mandatory: bool = True,
    ) -> int:
        """Publish one message and wait only while `window` others are unconfirmed.

        Returns its number. Raises PublishNacked for earlier ones that a queue has refused, and
        MessageReturned for the first `mandatory` one that reached no queue.
        """
        await self._channel.ready()
        number = self._channel.publish_soon(
            body,
            exchange=self.exchange if exchange is None else exchange,
            routing_key=self.routing_key if routing_key is None else routing_key,
            properties=properties or self._plain,
            mandatory=mandatory,
        )
        await self._channel.confirmed(self.window)
        return number

    async def flush(self) -> None:
        """Wait until everything that was sent is safe; raises PublishNacked for what was not."""
        await self._channel.confirmed()

    async def close(self) -> None:
        """Wait for what is unconfirmed, then close the producer's channel."""
        if self._channel.is_open:
            await self._channel.confirmed()
            await self._channel.close()

    async def abandon(self) -> None:
        """Close the producer's channel at once; what is unconfirmed may be safe or not."""
        await self._channel.close()

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        if kind is None:
            await self.close()
        else:
            await self.abandon()
