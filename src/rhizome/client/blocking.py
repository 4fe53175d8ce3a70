"""The client for programs without an event loop.

A `Connection` runs a loop in a thread of its own; every call hands the work over and waits. All
objects here may be used from several threads.

Example:
    from rhizome.client.blocking import Connection

    with Connection("amqp://guest:guest@127.0.0.1:5672/") as connection:
        with connection.channel(prefetch=100, confirms=True) as channel:
            channel.declare_queue("greetings")
            channel.publish(b"hello", routing_key="greetings")
            for message in channel.consume("greetings", timeout_s=1.0):
                print(message.body)
                message.ack()
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections import deque
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

from rhizome.amqp.properties import Properties
from rhizome.client import channel as async_channel
from rhizome.client import connection as async_connection
from rhizome.client import consumer as async_consumer
from rhizome.client import message as async_message
from rhizome.client.channel import ReturnCallback
from rhizome.client.connection import BlockedCallback
from rhizome.client.errors import NotOpen
from rhizome.client.topology import Arguments, QueueInfo

T = TypeVar("T")


class _LoopThread:
    """An event loop in a daemon thread, for one connection."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="rhizome-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run `work` in the loop and wait for its result; TimeoutError cancels it."""
        if self._loop.is_closed() or threading.current_thread() is self._thread:
            work.close()
            raise NotOpen("the connection was closed, or this is a callback of its own thread")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except BaseException:
            # A timeout, or Ctrl-C in the waiting thread: don't leave the work behind.
            future.cancel()
            raise

    def stop(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class Message:
    """A delivered message; see `rhizome.client.Message`."""

    __slots__ = ("_loop", "_message")

    def __init__(self, loop: _LoopThread, message: async_message.Message) -> None:
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
        self, loop: _LoopThread, consumer: async_consumer.Consumer, timeout_s: float | None
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

    def __init__(self, loop: _LoopThread, channel: async_channel.Channel) -> None:
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
    ) -> None:
        """Publish; with confirms on, returns once the broker has confirmed."""
        self._loop.call(
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


class Connection:
    """A connection whose calls wait. Connects when it is made; see `rhizome.client.connect`.

    Callbacks (`on_blocked`, `on_return`) run in the connection's own thread and must not call
    back into it.
    """

    def __init__(
        self,
        uri: str | Sequence[str] = "amqp://guest:guest@127.0.0.1:5672/",
        *,
        name: str = "",
        client_properties: dict[str, object] | None = None,
        ssl_context: ssl.SSLContext | None = None,
        on_blocked: BlockedCallback | None = None,
    ) -> None:
        opening = async_connection.connect(
            uri,
            name=name,
            client_properties=client_properties,
            ssl_context=ssl_context,
            on_blocked=on_blocked,
        )

        async def work() -> async_connection.Connection:
            return await opening

        self._loop = _LoopThread()
        try:
            self._connection = self._loop.call(work())
        except BaseException:
            self._loop.stop()
            raise

    @property
    def is_open(self) -> bool:
        return self._connection.is_open

    @property
    def server_properties(self) -> dict[str, object]:
        return self._connection.server_properties

    @property
    def blocked_reason(self) -> str | None:
        return self._connection.blocked_reason

    def channel(
        self,
        *,
        prefetch: int = 0,
        confirms: bool = False,
        on_return: ReturnCallback | None = None,
    ) -> Channel:
        """Open a channel."""

        async def work() -> async_channel.Channel:
            return await self._connection.channel(
                prefetch=prefetch, confirms=confirms, on_return=on_return
            )

        return Channel(self._loop, self._loop.call(work()))

    def close(self) -> None:
        """Close the connection and stop its thread; may be called twice."""
        try:
            self._loop.call(self._connection.close())
        except NotOpen:
            return
        self._loop.stop()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
