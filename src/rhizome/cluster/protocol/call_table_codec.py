"""Words in the tables that edges and homes send each other, for operations on
queues and for errors, and what else is read from such tables."""

from __future__ import annotations

from typing import Final

from rhizome.errors import (
    AccessRefused,
    AmqpError,
    InternalFault,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
)

OP_GET: Final = "get"
OP_COUNTS: Final = "counts"
OP_PURGE: Final = "purge"
OP_DELETE: Final = "delete"

TAKE_BACK: Final = 3
"""A kind of settlement beside those of ``broker/channel/unacked.py``: the consumer never saw it."""

_ERRORS: Final[dict[int, type[AmqpError]]] = {
    403: AccessRefused,
    404: NotFound,
    405: ResourceLocked,
    406: PreconditionFailed,
}


def error_of(code: int, answer: dict[str, object]) -> AmqpError:
    """The error that an answer carries."""
    kind = _ERRORS.get(code)
    text = str(answer.get("text", ""))
    if kind is None:
        return InternalFault(f"the home of the queue failed with {code}: {text}")
    return kind(text)


def number_in(table: dict[str, object], name: str) -> int:
    value = table[name]
    assert isinstance(value, int)
    return value


def number_or(table: dict[str, object], name: str, other: int) -> int:
    """A number in a table; brokers of an older release don't send it."""
    return number_in(table, name) if name in table else other


def starts_in(table: dict[str, object]) -> list[tuple[int, int]]:
    """The epochs of a log and their first indexes; brokers of an older release don't send them."""
    numbers = table.get("starts")
    if not isinstance(numbers, list):
        return []
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def bytes_in(table: dict[str, object], name: str) -> bytes:
    value = table[name]
    assert isinstance(value, bytes)
    return value
