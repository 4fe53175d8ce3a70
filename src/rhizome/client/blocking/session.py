"""A session whose calls wait; see `rhizome.client.session.session` for what each of them does."""

from __future__ import annotations

from collections.abc import Iterator

from rhizome.client import message as async_message
from rhizome.client.blocking.channel import Channel, Message, Messages
from rhizome.client.blocking.event_loop_thread import (
    Attribute,
    ClosedAtExit,
    Facade,
    Opened,
    opened_by,
    opens,
    waits,
)
from rhizome.client.session import producer as async_producer
from rhizome.client.session import queue as async_queue
from rhizome.client.session import queue_browser as async_browser
from rhizome.client.session import session as async_session
from rhizome.client.session.failover_addresses import FailoverMap
from rhizome.client.topology_calls import Arguments


class Producer(Facade[async_producer.Producer], ClosedAtExit):
    """Publishes exactly once; see `rhizome.client.Producer`."""

    name = Attribute[str]()
    sequence = Attribute[int]()
    publish = waits(async_producer.Producer.publish)
    send = waits(async_producer.Producer.send)
    flush = waits(async_producer.Producer.flush)
    close = waits(async_producer.Producer.close)
    abandon = waits(async_producer.Producer.abandon)

    def __exit__(self, *raised: object) -> None:
        self._loop.call(self._inner.__aexit__(*raised))


class Queue(Messages[async_queue.Queue]):
    """Messages of one queue; see `Messages` and `rhizome.client.Queue`."""

    name = Attribute[str]()
    info = waits(async_queue.Queue.info)
    bind = waits(async_queue.Queue.bind)

    def get(self) -> Message | None:
        """Take one message, or None if the queue is empty."""
        message = self._loop.call(self._inner.get())
        return None if message is None else Message(self._loop, message)

    def close(self) -> None:
        """Stop consuming; what was delivered and not taken is requeued."""
        self._loop.call(self._leave())


class Browser(Facade[async_browser.Browser], ClosedAtExit):
    """A look at the messages of a queue; see `rhizome.client.Browser`."""

    close = waits(async_browser.Browser.close)

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        message = self._loop.call(self._next())
        if message is None:
            raise StopIteration
        return Message(self._loop, message)

    async def _next(self) -> async_message.Message | None:
        # StopAsyncIteration can't pass through a future.
        return await anext(self._inner, None)


class Session(Opened[async_session.Session]):
    """A session whose calls wait. Opens when it is made; see `rhizome.client.open_session`.

    Callbacks (`on_change`, `on_blocked`, `on_return`) run in the session's own thread and must not
    call back into it.

    Example:
        with Session("amqp://guest:guest@b1,b2,b3/") as session:
            with session.queue("orders", durable=True, timeout_s=5.0) as queue:  # declares it
                with session.producer(routing_key="orders") as producer:
                    producer.publish(b"one")
                for message in queue:
                    message.ack()
    """

    state = Attribute[str]()
    broker = Attribute[str]()
    failover_map = Attribute[FailoverMap]()
    channel = opens(async_session.Session.channel, Channel)
    producer = opens(async_session.Session.producer, Producer)

    @opened_by(async_session.open_session)
    def __init__(self) -> None:
        """Open the session; takes what `rhizome.client.open_session` takes."""

    def statistics(self) -> async_session.SessionStatistics:
        """What the session has been through so far."""
        return self._inner.statistics()

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
        queue = self._inner.queue(
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
        return Browser(self._loop, self._inner.browse(queue))
