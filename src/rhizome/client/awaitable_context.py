"""Things that are awaited, or entered with `async with`, to be opened."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, Protocol, TypeVar


class Closable(Protocol):
    """Has an asynchronous close that may be called in any state."""

    async def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


class AwaitableContext(Generic[T]):
    """Opens when awaited or entered; `async with` closes it at the end of the block.

    connection = await connect(uri)             # the caller closes it
    async with connect(uri) as connection: ...  # closed at the end, whatever happens

    An error or a cancellation that leaves the block is not delayed: an object whose close would
    have to wait is abandoned instead.
    """

    def __init__(
        self,
        opener: Callable[[], Coroutine[Any, Any, T]],
        abandon: Callable[[T], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self._opener = opener
        self._abandon = abandon
        self._opened: T | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._opener().__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._opener()
        return self._opened

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        assert self._opened is not None
        if error is not None and self._abandon is not None:
            await self._abandon(self._opened)
        else:
            await self._opened.close()
