"""The asyncio client for callers without a loop: a loop in a thread, and calls that wait for it.

A class of `rhizome.client.blocking` is a `Facade`: it has an object of the asyncio client and says
which of its methods (`waits`, `opens`) and attributes (`Attribute`) callers get. Signatures, types
and docstrings are those of the asyncio client, for people and for type checkers alike.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from types import CoroutineType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast

from rhizome.client.awaitable_context import Closable
from rhizome.client.errors import NotOpen

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")  # a class of the asyncio client
A_co = TypeVar("A_co", covariant=True)
B = TypeVar("B")  # another one
F = TypeVar("F")  # a class of the blocking client


class LoopThread:
    """An event loop in a daemon thread, for one connection."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="rhizome-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def call(self, work: Awaitable[R]) -> R:
        """Await `work` in the loop, and wait here for its result."""
        is_coroutine = isinstance(work, CoroutineType)
        coroutine = cast("Coroutine[Any, Any, R]", work) if is_coroutine else _awaited(work)
        if self._loop.is_closed() or threading.current_thread() is self._thread:
            coroutine.close()
            raise NotOpen("the connection was closed, or this is a callback of its own thread")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            # Ctrl-C in the waiting thread, perhaps: don't leave the work behind.
            future.cancel()
            raise

    def stop(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


async def _awaited(work: Awaitable[R]) -> R:
    return await work


class Facade(Generic[A_co]):
    """An object of the asyncio client, whose calls wait here."""

    __slots__ = ("_inner", "_loop")

    def __init__(self, loop: LoopThread, inner: A_co) -> None:
        self._loop = loop
        self._inner = inner


class ClosedAtExit:
    """A `with` block closes it at its end."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Attribute(Generic[R]):
    """An attribute of the asyncio object, to be read."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, facade: Facade[Any] | None, owner: type | None = None) -> R:
        # Tools that document a class look for what is there without an instance.
        found: Any = self if facade is None else getattr(facade._inner, self._name)
        return cast("R", found)


def waits(
    method: Callable[Concatenate[A, P], Awaitable[R]],
) -> Callable[Concatenate[Facade[A], P], R]:
    """The method of the asyncio object, as a call that waits. Overridden methods count."""
    name = method.__name__

    @wraps(method)
    def call(self: Facade[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        found: Callable[P, Awaitable[R]] = getattr(self._inner, name)
        return self._loop.call(found(*args, **kwargs))

    return call


def opens(
    method: Callable[Concatenate[A, P], Awaitable[B]], made: Callable[[LoopThread, B], F]
) -> Callable[Concatenate[Facade[A], P], F]:
    """The same for a method that opens something, which callers get as a facade, too."""
    opened = waits(method)

    @wraps(method)
    def call(self: Facade[A], /, *args: P.args, **kwargs: P.kwargs) -> F:
        return made(self._loop, opened(self, *args, **kwargs))

    return call


C_co = TypeVar("C_co", bound=Closable, covariant=True)


class Opened(Facade[C_co], ClosedAtExit):
    """What has a loop of its own: opens when it is made, and stops the loop when it is closed."""

    def close(self) -> None:
        """Close it and stop its thread; may be called twice."""
        try:
            self._loop.call(self._inner.close())
        except NotOpen:
            return
        self._loop.stop()


OWN = TypeVar("OWN", bound=Opened[Any])


def opened_by(
    opener: Callable[P, Awaitable[Closable]],
) -> Callable[[Callable[[OWN], None]], Callable[Concatenate[OWN, P], None]]:
    """Makes an `__init__` that takes what `opener` takes and waits until it has opened it."""

    def decorated(init: Callable[[OWN], None]) -> Callable[Concatenate[OWN, P], None]:
        @wraps(init)
        def call(self: OWN, /, *args: P.args, **kwargs: P.kwargs) -> None:
            loop = LoopThread()
            try:
                Facade.__init__(self, loop, loop.call(opener(*args, **kwargs)))
            except BaseException:
                loop.stop()
                raise

        itself = inspect.signature(init).parameters.values()
        taken = inspect.signature(opener).parameters.values()
        vars(call)["__signature__"] = inspect.Signature([*itself, *taken], return_annotation=None)
        return call

    return decorated
