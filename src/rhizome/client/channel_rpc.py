"""Synchronous methods of a channel: a request, then its reply, in the order of the requests.

AMQP 0-9-1 has no request numbers. A channel answers its synchronous methods in order, so the next
reply belongs to the oldest open request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from rhizome.amqp.methods import Method
from rhizome.client.errors import NotOpen, ProtocolViolation, renewed

if TYPE_CHECKING:
    from rhizome.client.connection import Connection

M = TypeVar("M")


class PendingReply:
    """A reply that is due, and the caller that waits for it.

    `orphaned` is called with the reply if no caller waits for it any more, since some replies must
    be undone then (a message that no caller takes has to be requeued).
    """

    __slots__ = ("future", "kinds", "orphaned")

    def __init__(
        self, kinds: tuple[type, ...], orphaned: Callable[[object], None] | None = None
    ) -> None:
        self.kinds = kinds
        self.future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.orphaned = orphaned


class ChannelRpc:
    """The open requests of one channel.

    Invariant: `_expected` holds one entry for each request that was sent and not yet answered.
    """

    def __init__(self, connection: Connection, number: int) -> None:
        self.number = number
        self._connection = connection
        self._expected: deque[PendingReply] = deque()
        self._ended: Exception | None = None

    @property
    def is_open(self) -> bool:
        """Whether methods can be sent."""
        return self._ended is None

    def _require_open(self) -> None:
        if self._ended is not None:
            raise renewed(self._ended)

    def _send(self, method: Method) -> None:
        self._require_open()
        self._connection._send(self.number, method)

    async def _call(self, method: Method, reply: type[M]) -> M:
        """Send `method` and wait for the reply of the given kind."""
        return cast(M, await self._call_any(method, (reply,)))

    async def _call_any(
        self,
        method: Method,
        replies: tuple[type, ...],
        orphaned: Callable[[object], None] | None = None,
    ) -> object:
        self._send(method)
        return await self._expect_any(replies, orphaned)

    async def _expect(self, reply: type) -> None:
        await self._expect_any((reply,), None)

    async def _expect_any(
        self, replies: tuple[type, ...], orphaned: Callable[[object], None] | None
    ) -> object:
        expectation = PendingReply(replies, orphaned)
        self._expected.append(expectation)
        with self._connection._awaiting_broker():
            return await expectation.future

    def _reply(self, reply: object) -> None:
        """The broker answered: the oldest request gets it."""
        if not self._expected or not isinstance(reply, self._expected[0].kinds):
            raise ProtocolViolation(
                f"the broker sent {type(reply).__name__} on channel {self.number},"
                " which answers no open request"
            )
        expectation = self._expected.popleft()
        if not expectation.future.done():
            expectation.future.set_result(reply)
        elif expectation.orphaned is not None:
            expectation.orphaned(reply)

    def _fail_calls(self, error: Exception) -> None:
        """No more replies will come."""
        while self._expected:
            expectation = self._expected.popleft()
            if not expectation.future.done():
                expectation.future.set_exception(renewed(error))

    def _closed_by_us(self) -> Exception:
        return NotOpen(f"channel {self.number} was closed; open another")
