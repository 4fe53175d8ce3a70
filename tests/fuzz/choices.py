"""Decisions read from bytes, so that whatever makes the bytes (a property test, a coverage-guided
fuzzer, a file of a past failure) steers what is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

_T = TypeVar("_T")


class Choices:
    """Invariant: once the bytes are used up every decision is the first alternative."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def exhausted(self) -> bool:
        return self._at >= len(self._data)

    def below(self, limit: int) -> int:
        """A number from 0 up to, not including, `limit`."""
        width = 1 if limit <= 256 else 4
        return int.from_bytes(self.raw(width), "big") % limit

    def chance(self, one_in: int) -> bool:
        return self.below(one_in) == one_in - 1

    def pick(self, alternatives: Sequence[_T]) -> _T:
        return alternatives[self.below(len(alternatives))]

    def raw(self, length: int) -> bytes:
        found = self._data[self._at : self._at + length]
        self._at += length
        return found
