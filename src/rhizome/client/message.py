"""Messages as an application gets them."""

from __future__ import annotations

from typing import Protocol, final

from rhizome.amqp.properties import Properties, decode_properties


class Settler(Protocol):
    """The channel that a message came on, through which it is settled."""

    async def ack(self, delivery_tag: int, *, multiple: bool = False) -> None: ...

    async def nack(
        self, delivery_tag: int, *, requeue: bool = True, multiple: bool = False
    ) -> None: ...

    async def reject(self, delivery_tag: int, *, requeue: bool = False) -> None: ...


@final
class Message:
    """A delivered message.

    Unless the consumer (or get) was started with `no_ack`, exactly one of `ack`, `nack` and
    `reject` must be called, on the channel that it came on and while that is open.

    Example:
        async for message in channel.consume("orders"):
            try:
                await handle(message.body, message.properties.headers)
            except ValueError:
                await message.reject()  # dead-letters it, if the queue has a dead letter exchange
            else:
                await message.ack()
    """

    __slots__ = (
        "_channel",
        "_properties",
        "body",
        "consumer_tag",
        "delivery_tag",
        "exchange",
        "header",
        "redelivered",
        "routing_key",
    )

    def __init__(
        self,
        channel: Settler,
        delivery_tag: int,
        consumer_tag: str,
        redelivered: bool,
        exchange: str,
        routing_key: str,
        header: bytes,
        body: bytes,
    ) -> None:
        self._channel = channel
        self._properties: Properties | None = None
        self.delivery_tag = delivery_tag
        self.consumer_tag = consumer_tag
        self.redelivered = redelivered
        self.exchange = exchange
        self.routing_key = routing_key
        self.header = header
        self.body = body

    @property
    def properties(self) -> Properties:
        """The properties, decoded when first asked for."""
        if self._properties is None:
            self._properties = decode_properties(self.header)
        return self._properties

    async def ack(self, *, multiple: bool = False) -> None:
        """Take responsibility: the broker forgets the message.

        With `multiple`, and all earlier ones of the channel that are not settled yet.
        """
        await self._channel.ack(self.delivery_tag, multiple=multiple)

    async def nack(self, *, requeue: bool = True, multiple: bool = False) -> None:
        """Requeue the message; without `requeue` it is dropped or dead-lettered."""
        await self._channel.nack(self.delivery_tag, requeue=requeue, multiple=multiple)

    async def reject(self, *, requeue: bool = False) -> None:
        """Refuse the message: it is dropped or dead-lettered, or put back with `requeue`."""
        await self._channel.reject(self.delivery_tag, requeue=requeue)

    def __repr__(self) -> str:
        return (
            f"<Message {self.delivery_tag} from '{self.exchange}' key '{self.routing_key}',"
            f" {len(self.body)} bytes>"
        )


@final
class ReturnedMessage:
    """A mandatory message that reached no queue (basic.return)."""

    __slots__ = ("_header", "body", "exchange", "reply_code", "reply_text", "routing_key")

    def __init__(
        self,
        reply_code: int,
        reply_text: str,
        exchange: str,
        routing_key: str,
        header: bytes,
        body: bytes,
    ) -> None:
        self.reply_code = reply_code
        self.reply_text = reply_text
        self.exchange = exchange
        self.routing_key = routing_key
        self._header = header
        self.body = body

    @property
    def properties(self) -> Properties:
        """The properties, as they were published."""
        return decode_properties(self._header)
