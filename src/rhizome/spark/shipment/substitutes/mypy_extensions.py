"""Types of machine integers, whose values without a compiler are integers of any size."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class _Machine(type):
    """Makes integers of what it is called with, and takes every integer for its own."""

    def __call__(cls, x: object = 0, /) -> int:
        return int(x)  # type: ignore[call-overload, no-any-return]

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, int)


class i64(metaclass=_Machine):  # noqa: N801
    pass


class i32(metaclass=_Machine):  # noqa: N801
    pass


class i16(metaclass=_Machine):  # noqa: N801
    pass


class u8(metaclass=_Machine):  # noqa: N801
    pass


def mypyc_attr(*names: str, **attributes: object) -> Callable[[T], T]:
    """Tells the compiler something about a class."""
    return lambda decorated: decorated
