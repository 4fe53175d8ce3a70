"""`librt.vecs`: packed arrays of machine integers. `vec[i32]()` and `vec[i64]()` make one."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any, Final

_CODES: Final = {"i64": "q", "i32": "i", "i16": "h", "u8": "B"}


class vec:  # noqa: N801
    """Of one type of numbers; what it makes is an array."""

    def __init__(self, kind: Any) -> None:
        self._code = _CODES[kind.__name__]

    def __class_getitem__(cls, kind: Any) -> vec:
        return cls(kind)

    def __call__(self, items: Iterable[int] = (), /, *, capacity: int = 0) -> array[int]:
        return array(self._code, items)


def append(v: array[int], o: int, /) -> array[int]:
    v.append(o)
    return v


def pop(v: array[int], i: int = -1, /) -> tuple[array[int], int]:
    return v, v.pop(i)
