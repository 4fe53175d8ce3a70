"""The unconfirmed publishes of a channel. Nothing here waits.

Broker and client both count publishes on a channel from 1 (confirm.select starts the count); acks
and nacks name that number, alone or "up to and including". A returned message carries no number,
but comes before its own ack, so it is matched with the oldest mandatory publish that looks alike.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

MandatoryKey = tuple[str, str, bytes]


class ConfirmLedger(Generic[T, R]):
    """Unconfirmed publishes in order, each with a token of the caller's (or None).

    Invariant: the keys of `_unconfirmed` ascend, and each was published and not yet settled.
    """

    def __init__(self) -> None:
        self._last = 0
        self._unconfirmed: dict[int, T | None] = {}
        self._mandatory: dict[int, MandatoryKey] = {}
        self._returned: dict[int, R] = {}

    @property
    def unconfirmed(self) -> int:
        """How many publishes wait for the broker's answer."""
        return len(self._unconfirmed)

    @property
    def last_sequence(self) -> int:
        """The number of the latest publish; 0 before the first."""
        return self._last

    def record(self, token: T | None, mandatory: MandatoryKey | None = None) -> int:
        """Enter one publish; returns its number."""
        self._last += 1
        self._unconfirmed[self._last] = token
        if mandatory is not None:
            self._mandatory[self._last] = mandatory
        return self._last

    def settle(self, sequence: int, multiple: bool) -> list[tuple[int, T | None]]:
        """Remove what an ack or nack names; numbers that aren't open are ignored.

        A multiple ack of 0 means all.
        """
        book = self._unconfirmed
        if not multiple:
            if sequence not in book:
                return []
            return [(sequence, book.pop(sequence))]
        settled: list[tuple[int, T | None]] = []
        for open_sequence, token in book.items():
            if sequence != 0 and open_sequence > sequence:
                break
            settled.append((open_sequence, token))
        for open_sequence, _ in settled:
            del book[open_sequence]
        return settled

    def mark_returned(self, key: MandatoryKey, message: R) -> bool:
        """Remember that the oldest open mandatory publish like `key` came back."""
        for sequence, expected in self._mandatory.items():
            if expected == key:
                del self._mandatory[sequence]
                self._returned[sequence] = message
                return True
        return False

    def take_returned(self, sequence: int) -> R | None:
        """The message that came back for a settled publish, if one did."""
        self._mandatory.pop(sequence, None)
        return self._returned.pop(sequence, None)

    def abandon(self) -> list[T]:
        """Remove everything, since no answer can come any more; returns the open tokens."""
        tokens = [token for token in self._unconfirmed.values() if token is not None]
        self._unconfirmed.clear()
        self._mandatory.clear()
        self._returned.clear()
        return tokens
