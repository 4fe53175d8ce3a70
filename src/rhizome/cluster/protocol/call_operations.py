"""Call operations: words in the tables that edges and homes send each other, for operations on
queues and for errors."""

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
