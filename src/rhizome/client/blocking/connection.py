"""A connection whose calls wait."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from types import TracebackType

from rhizome.client import channel as async_channel
from rhizome.client import connection as async_connection
from rhizome.client.blocking.channel import Channel
from rhizome.client.blocking.loopthread import LoopThread
from rhizome.client.channel import ReturnCallback
from rhizome.client.connection import BlockedCallback
from rhizome.client.errors import NotOpen


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
        confirm_levels: bool = False,
    ) -> None:
        opening = async_connection.connect(
            uri,
            name=name,
            client_properties=client_properties,
            ssl_context=ssl_context,
            on_blocked=on_blocked,
            confirm_levels=confirm_levels,
        )

        async def work() -> async_connection.Connection:
            return await opening

        self._loop = LoopThread()
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
