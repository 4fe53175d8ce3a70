"""Frames between an edge and a home that aren't per message: tables, each with its method.

ATTACH        a consumer wants to be attached; answered
DETACH        a consumer is gone; answered by DETACHED behind its last delivery
END_SESSION   a channel is closed: take back what it holds
PREFETCH      the prefetch of a channel for all its consumers
CALL          an operation on a queue; answered
ANSWER        code 0, or the code and text of an error
GROUP_ATTACH    an edge attaches to the home of a group: the epoch that it knows, the number of its
                oldest unconfirmed publish, and the epoch in which it was home itself if something
                is left from then; its sessions, what they hold, what they have settled and its
                consumers follow
GROUP_ATTACHED  that was all
ATTACHED_TO     the answer, before anything else of this epoch: the last number that was taken; the
                edge goes on after it (A1). Below which index everything is known that the edge had
                in its log when it was home
REATTACH        a home that had stepped aside serves again: attach anew
SESSION_OF      whose a session is, if its client can resume; whether it only keeps for that what it
                held (`kept`), and whether the client has presented everything there (`back`)
SESSION_GONE    from the home: a session has nothing to keep any more, its client is back elsewhere
"""

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

ATTACH: Final = 33
DETACH: Final = 34
DETACHED: Final = 35
END_SESSION: Final = 36
PREFETCH: Final = 37
CALL: Final = 38
ANSWER: Final = 39
GROUP_ATTACH: Final = 40
GROUP_ATTACHED: Final = 41
ATTACHED_TO: Final = 42
REATTACH: Final = 43
SESSION_OF: Final = 46
SESSION_GONE: Final = 47

OP_GET: Final = "get"
OP_COUNTS: Final = "counts"
OP_PURGE: Final = "purge"
OP_DELETE: Final = "delete"

TAKE_BACK: Final = 3
"""A kind of settlement beside those of ``broker/unacked.py``: the consumer never saw it."""

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
