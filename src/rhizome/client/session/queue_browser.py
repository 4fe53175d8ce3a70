"""Browsers: a look at the messages of a queue, which stay there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rhizome.client.message import Message

if TYPE_CHECKING:
    from rhizome.client.session.session import Session
    from rhizome.client.session.session_channel import ChannelIncarnation, SessionChannel


class Browser:
    """Iterates once over the messages that are ready in a queue; made by `Session.browse`.

    They are held while the browser is open and go back to their places at its end, marked as
    redelivered; no other consumer gets them meanwhile. After a failover it continues after those
    that it has shown.

    Example:
        async with session.browse("orders") as browser:
            async for message in browser:
                print(message.body)
    """

    def __init__(self, session: Session, queue: str) -> None:
        self.queue = queue
        self._session = session
        self._channel: SessionChannel | None = None
        self._incarnation: ChannelIncarnation | None = None
        self._shown = 0

    async def close(self) -> None:
        """Put everything back."""
        channel, self._channel = self._channel, None
        if channel is not None and channel.is_open:
            await channel.close()

    async def __aenter__(self) -> Browser:
        await self._opened()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> Browser:
        return self

    async def __anext__(self) -> Message:
        channel = await self._opened()
        while True:
            message = await channel.get(self.queue)
            if self._incarnation is not channel._incarnation:
                # Another connection: everything is in the queue again.
                self._incarnation = channel._incarnation
                skipped = self._shown
                while skipped > 0 and message is not None:
                    message = await channel.get(self.queue)
                    skipped -= 1
                if self._incarnation is not channel._incarnation:
                    continue
            if message is None:
                await self.close()
                raise StopAsyncIteration
            self._shown += 1
            return message

    async def _opened(self) -> SessionChannel:
        if self._channel is None:
            self._channel = await self._session.channel(confirms=False)
            self._incarnation = self._channel._incarnation
        return self._channel
