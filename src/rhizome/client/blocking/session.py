"""A session whose calls wait; see `rhizome.client.session` for what each of them does."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from rhizome.amqp.properties import Properties
from rhizome.client import browser as async_browser
from rhizome.client import message as async_message
from rhizome.client import producer as async_producer
from rhizome.client import queue as async_queue
from rhizome.client import session as async_session
from rhizome.client.blocking.channel import Channel, Message
from rhizome.client.blocking.loopthread import LoopThread
from rhizome.client.channel import ReturnCallback
from rhizome.client.connection import BlockedCallback
from rhizome.client.errors import NotOpen
from rhizome.client.failover import Failover, FailoverMap
from rhizome.client.levels import Level
from rhizome.client.policies import Policy
from rhizome.client.topology import Arguments, QueueInfo

if TYPE_CHECKING:
    from rhizome.client import sessionchannel


class Producer:
    """Publishes exactly once; see `rhizome.client.Producer`."""

    def __init__(self, loop: LoopThread, producer: async_producer.Producer) -> None:
        self._loop = loop
        self._producer = producer

    @property
    def name(self) -> str:
        return self._producer.name

    @property
    def sequence(self) -> int:
        return self._producer.sequence

    def publish(
        self,
        body: bytes,
        *,
        exchange: str | None = None,
        routing_key: str | None = None,
        properties: Properties | None = None,
        mandatory: bool = False,
    ) -> Level | None:
        """Publish one message and wait until it is safe."""
        return self._loop.call(
            self._producer.publish(
                body,
                exchange=exchange,
                routing_key=routing_key,
                properties=properties,
                mandatory=mandatory,
            )
        )

    def send(
        self,
        body: bytes,
        *,
        exchange: str | None = None,
        routing_key: str | None = None,
        properties: Properties | None = None,
    ) -> int:
        """Publish one message and wait only while too many others are unconfirmed."""
        return self._loop.call(
            self._producer.send(
                body, exchange=exchange, routing_key=routing_key, properties=properties
            )
        )

    def flush(self) -> None:
        """Wait until everything that was sent is safe."""
        self._loop.call(self._producer.flush())

    def close(self) -> None:
        """Wait for what is unconfirmed, then let go of the producer."""
        self._loop.call(self._producer.close())

    def abandon(self) -> None:
        """Let go of the producer; what is unconfirmed may be safe or not."""
        self._loop.call(self._producer.abandon())

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abandon()


class Queue:
    """Messages of one queue; see `rhizome.client.Queue`.

    With `timeout_s`, iteration stops when no message came for so long.
    """

    def __init__(self, loop: LoopThread, queue: async_queue.Queue, timeout_s: float | None) -> None:
        self._loop = loop
        self._queue = queue
        self._timeout_s = timeout_s
        self._taken: deque[async_message.Message] = deque()

    @property
    def name(self) -> str:
        return self._queue.name

    def info(self) -> QueueInfo:
        """How many messages are ready, how many consumers there are."""
        return self._loop.call(self._queue.info())

    def bind(
        self, exchange: str, routing_key: str = "", *, arguments: Arguments | None = None
    ) -> None:
        """Let messages flow from an exchange to this queue."""
        self._loop.call(self._queue.bind(exchange, routing_key, arguments=arguments))

    def get(self) -> Message | None:
        """Take one message, or None if the queue is empty."""
        message = self._loop.call(self._queue.get())
        return None if message is None else Message(self._loop, message)

    def close(self) -> None:
        """Stop consuming; what was delivered and not taken goes back."""
        self._loop.call(self._close())

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        if not self._taken:
            self._taken.extend(self._loop.call(self._next_batch()))
        if not self._taken:
            raise StopIteration
        return Message(self._loop, self._taken.popleft())

    def __enter__(self) -> Queue:
        self._loop.call(self._queue.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def _next_batch(self) -> list[async_message.Message]:
        """The timeout is inside the loop: one outside could lose a batch on its way."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._queue.batch()
        except TimeoutError:
            return []

    async def _close(self) -> None:
        while self._taken:
            await self._taken.popleft().nack(requeue=True)
        await self._queue.close()


class Browser:
    """A look at the messages of a queue; see `rhizome.client.Browser`."""

    def __init__(self, loop: LoopThread, browser: async_browser.Browser) -> None:
        self._loop = loop
        self._browser = browser

    def close(self) -> None:
        """Put everything back."""
        self._loop.call(self._browser.close())

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        message = self._loop.call(self._next())
        if message is None:
            raise StopIteration
        return Message(self._loop, message)

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def _next(self) -> async_message.Message | None:
        # StopAsyncIteration can't pass through a future.
        return await anext(self._browser, None)


class Session:
    """A session whose calls wait. Opens when it is made; see `rhizome.client.open_session`.

    Callbacks (`on_change`, `on_blocked`, `on_return`) run in the session's own thread and must not
    call back into it.

    Example:
        with Session("amqp://guest:guest@b1,b2,b3/") as session:
            with session.producer(routing_key="orders") as producer:
                producer.publish(b"one")
            with session.queue("orders", durable=True, timeout_s=5.0) as queue:
                for message in queue:
                    message.ack()
    """

    def __init__(
        self,
        uri: str | Sequence[str] = "amqp://guest:guest@127.0.0.1:5672/",
        *,
        name: str = "",
        client_properties: dict[str, object] | None = None,
        ssl_context: ssl.SSLContext | None = None,
        failover: Failover | None = None,
        policy: str | Policy = "in-order",
        recreate: bool = False,
        on_change: async_session.ChangeCallback | None = None,
        on_blocked: BlockedCallback | None = None,
        confirm_levels: bool = False,
    ) -> None:
        opening = async_session.open_session(
            uri,
            name=name,
            client_properties=client_properties,
            ssl_context=ssl_context,
            failover=failover,
            policy=policy,
            recreate=recreate,
            on_change=on_change,
            on_blocked=on_blocked,
            confirm_levels=confirm_levels,
        )

        async def work() -> async_session.Session:
            return await opening

        self._loop = LoopThread()
        try:
            self._session = self._loop.call(work())
        except BaseException:
            self._loop.stop()
            raise

    @property
    def state(self) -> str:
        return self._session.state

    @property
    def broker(self) -> str:
        return self._session.broker

    @property
    def failover_map(self) -> FailoverMap:
        return self._session.failover_map

    def statistics(self) -> async_session.SessionStatistics:
        """What the session has been through so far."""
        return self._session.statistics()

    def channel(
        self,
        *,
        prefetch: int = 0,
        confirms: bool = True,
        on_return: ReturnCallback | None = None,
    ) -> Channel:
        """Open a channel that goes on after failovers."""

        async def work() -> sessionchannel.SessionChannel:
            return await self._session.channel(
                prefetch=prefetch, confirms=confirms, on_return=on_return
            )

        return Channel(self._loop, self._loop.call(work()))

    def producer(
        self,
        *,
        exchange: str = "",
        routing_key: str = "",
        persistent: bool = True,
        window: int = 1000,
        name: str = "",
        sequence: int = 0,
    ) -> Producer:
        """A producer, whose publishes are taken exactly once."""

        async def work() -> async_producer.Producer:
            return await self._session.producer(
                exchange=exchange,
                routing_key=routing_key,
                persistent=persistent,
                window=window,
                name=name,
                sequence=sequence,
            )

        return Producer(self._loop, self._loop.call(work()))

    def queue(
        self,
        name: str = "",
        *,
        declare: bool = True,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Arguments | None = None,
        prefetch: int = 100,
        no_ack: bool = False,
        timeout_s: float | None = None,
    ) -> Queue:
        """A queue to iterate over; declared first, unless `declare` is False."""
        queue = self._session.queue(
            name,
            declare=declare,
            durable=durable,
            exclusive=exclusive,
            auto_delete=auto_delete,
            arguments=arguments,
            prefetch=prefetch,
            no_ack=no_ack,
        )
        return Queue(self._loop, queue, timeout_s)

    def browse(self, queue: str) -> Browser:
        """Look at the ready messages of a queue, and leave them there."""
        return Browser(self._loop, self._session.browse(queue))

    def close(self) -> None:
        """Close the session and stop its thread; may be called twice."""
        try:
            self._loop.call(self._session.close())
        except NotOpen:
            return
        self._loop.stop()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
