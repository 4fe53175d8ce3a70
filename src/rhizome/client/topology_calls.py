"""The calls of a channel that declare, bind and delete exchanges and queues."""

from __future__ import annotations

from typing import NamedTuple

from rhizome.amqp import methods
from rhizome.client.channel_rpc import ChannelRpc

Arguments = dict[str, object]


class QueueInfo(NamedTuple):
    """What the broker says of a queue when it is declared."""

    name: str
    message_count: int
    consumer_count: int


class TopologyCalls(ChannelRpc):
    """The methods of a channel for exchanges and queues, rather than for messages."""

    async def declare_queue(
        self,
        name: str = "",
        *,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        passive: bool = False,
        arguments: Arguments | None = None,
    ) -> QueueInfo:
        """Make sure that a queue exists. Without a name the broker makes one up.

        `passive` only asks: NotFound if there is none.

        Example:
            info = await channel.declare_queue("orders", durable=True)
            print(info.message_count)
        """
        reply = await self._call(
            methods.QueueDeclare(
                queue=name,
                passive=passive,
                durable=durable,
                exclusive=exclusive,
                auto_delete=auto_delete,
                arguments=arguments,
            ),
            methods.QueueDeclareOk,
        )
        return QueueInfo(reply.queue, int(reply.message_count), int(reply.consumer_count))

    async def bind_queue(
        self,
        queue: str,
        exchange: str,
        routing_key: str = "",
        *,
        arguments: Arguments | None = None,
    ) -> None:
        """Let messages flow from the exchange to the queue where the key (or arguments) match."""
        await self._call(
            methods.QueueBind(queue, exchange, routing_key, arguments=arguments),
            methods.QueueBindOk,
        )

    async def unbind_queue(
        self,
        queue: str,
        exchange: str,
        routing_key: str = "",
        *,
        arguments: Arguments | None = None,
    ) -> None:
        """Remove one binding; key and arguments must be those it was made with."""
        await self._call(
            methods.QueueUnbind(queue, exchange, routing_key, arguments),
            methods.QueueUnbindOk,
        )

    async def purge_queue(self, queue: str) -> int:
        """Drop all messages that are ready; returns how many."""
        reply = await self._call(methods.QueuePurge(queue), methods.QueuePurgeOk)
        return int(reply.message_count)

    async def delete_queue(
        self, queue: str, *, if_unused: bool = False, if_empty: bool = False
    ) -> int:
        """Delete the queue with its messages; returns how many there were."""
        reply = await self._call(
            methods.QueueDelete(queue, if_unused, if_empty), methods.QueueDeleteOk
        )
        return int(reply.message_count)

    async def declare_exchange(
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
        """Make sure that an exchange of this type (direct, fanout, topic, headers, ...) exists."""
        await self._call(
            methods.ExchangeDeclare(
                exchange=name,
                type=kind,
                passive=passive,
                durable=durable,
                auto_delete=auto_delete,
                internal=internal,
                arguments=arguments,
            ),
            methods.ExchangeDeclareOk,
        )

    async def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        """Delete the exchange and its bindings."""
        await self._call(methods.ExchangeDelete(name, if_unused), methods.ExchangeDeleteOk)

    async def bind_exchange(
        self,
        destination: str,
        source: str,
        routing_key: str = "",
        *,
        arguments: Arguments | None = None,
    ) -> None:
        """Let messages flow from one exchange to another."""
        await self._call(
            methods.ExchangeBind(destination, source, routing_key, arguments=arguments),
            methods.ExchangeBindOk,
        )

    async def unbind_exchange(
        self,
        destination: str,
        source: str,
        routing_key: str = "",
        *,
        arguments: Arguments | None = None,
    ) -> None:
        """Remove a binding between exchanges."""
        await self._call(
            methods.ExchangeUnbind(destination, source, routing_key, arguments=arguments),
            methods.ExchangeUnbindOk,
        )
