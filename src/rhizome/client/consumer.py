"""The receiving end of basic.consume: an asynchronous iterator over messages."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rhizome.client.errors import ConsumerCancelled, renewed
from rhizome.client.message import Message

if TYPE_CHECKING:
    from rhizome.client.channel import Channel

# A no-ack consumer has no prefetch to hold the broker back. Beyond this many undelivered messages
# the connection stops reading, so that TCP holds it back.
BUFFERED_MESSAGES_MAX: Final = 10_000


class Consumer:
    """Messages of one queue, in the order in which the broker sends them.

    Iterating subscribes first if need be. `async with` subscribes on entry; on exit it cancels and
    requeues what was delivered and not yet taken from the iterator.

    Ends with an exception, never silently: `ConsumerCancelled` if the broker cancels it, the
    channel's or connection's error if those end. After `cancel()` the iteration just stops.

    Several tasks may take messages from one consumer; each message goes to one of them.
    """

    def __init__(
        self,
        channel: Channel,
        queue: str,
        tag: str,
        no_ack: bool,
        exclusive: bool,
        arguments: dict[str, object] | None,
    ) -> None:
        self.queue = queue
        self.tag = tag
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.arguments = arguments
        self._channel = channel
        self._subscribed = False
        self._buffer: deque[Message] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._ended = False
        self._error: Exception | None = None

    @property
    def ended(self) -> bool:
        """Whether no more messages will come."""
        return self._ended

    @property
    def buffered(self) -> int:
        """Messages that have arrived and that the application has not taken yet."""
        return len(self._buffer)

    async def subscribe(self) -> None:
        """Send basic.consume and wait for the broker's answer; done once."""
        if not self._subscribed:
            self._channel._require_open()
            self._subscribed = True
            await self._channel._subscribe(self)

    async def cancel(self) -> None:
        """Stop the deliveries; what was delivered and not taken is requeued."""
        if self._subscribed and not self._ended and self._channel.is_open:
            await self._channel._unsubscribe(self)
        self.end(None)
        await self._give_back()

    async def batch(self, most: int = 1000) -> list[Message]:
        """At least one message, and at most `most` of those that have arrived already.

        Returns an empty list when the consumer was cancelled by `cancel()`.
        """
        if not self._subscribed:
            await self.subscribe()
        if not self._buffer and not await self._arrival():
            return []
        if len(self._buffer) <= most:
            taken = list(self._buffer)
            self._buffer.clear()
        else:
            taken = [self._buffer.popleft() for _ in range(most)]
        self._channel._taken(self)
        return taken

    def put_back(self, messages: Sequence[Message]) -> None:
        """Undo a `batch`, or the rest of one: these are the next to be taken, or requeued."""
        self._buffer.extendleft(reversed(messages))

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Message:
        if not self._buffer:
            if not self._subscribed:
                await self.subscribe()
            if not self._buffer and not await self._arrival():
                raise StopAsyncIteration
        message = self._buffer.popleft()
        self._channel._taken(self)
        return message

    async def __aenter__(self) -> Consumer:
        await self.subscribe()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cancel()

    # --- called by the channel

    def deliver(self, message: Message) -> None:
        """A message arrived."""
        self._buffer.append(message)
        self._wake()

    def cancelled_by_broker(self) -> None:
        """The broker sent basic.cancel."""
        self.end(ConsumerCancelled(self.tag, self.queue))

    def end(self, error: Exception | None) -> None:
        """No more messages will come; what is buffered can still be taken."""
        if not self._ended:
            self._ended = True
            self._error = error
            while self._waiters:
                self._wake()

    # --- inside

    def _wake(self) -> None:
        """Wake one task that waits for a message."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def _arrival(self) -> bool:
        """Wait until there is a message (True) or there will be none (False, or the error)."""
        while not self._buffer:
            if self._ended:
                if self._error is not None:
                    raise renewed(self._error)
                return False
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                # The wake-up was for a message; another task has to take it now.
                if self._buffer and not waiter.cancelled():
                    self._wake()
                raise
        return True

    async def _give_back(self) -> None:
        untaken = list(self._buffer)
        self._buffer.clear()
        self._channel._taken(self)
        if self.no_ack or not self._channel.is_open:
            return
        for message in untaken:
            await message.nack(requeue=True)
