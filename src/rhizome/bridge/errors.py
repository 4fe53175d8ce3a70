"""What can go wrong for a bridge, and what of it can't get better by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rhizome.client import ClientError
from rhizome.errors import (
    AccessRefused,
    AmqpError,
    ContentTooLarge,
    FrameError,
    InvalidPath,
    LoginRefused,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    RhizomeError,
    SyntaxErrorFault,
)

# What ends a session with one side: it is opened again after a while.
LINK_ERRORS = (ClientError, AmqpError, OSError)
# Refusals that somebody has to do something about.
LASTING = (AccessRefused, LoginRefused, InvalidPath, NotAllowed, NotFound, PreconditionFailed)
# Closes that a message brings about, rather than what it is sent to.
OF_A_MESSAGE = (PreconditionFailed, ContentTooLarge, FrameError, SyntaxErrorFault)
# Refusals that pass by themselves, though the code says otherwise: another bridge has the queue, or
# the queue is there and its broker isn't (so say both Rhizome and RabbitMQ).
PASSING_TEXTS = ("in exclusive use", "is down or")


class BridgeError(RhizomeError):
    """Base of the errors that bridges find themselves."""


class InvalidBridge(BridgeError):
    """The settings contradict each other or miss something; the text says what to give."""


class BridgeFailed(BridgeError):
    """The bridge has ended and won't get better by waiting; the text says what to do."""


class MessageRefused(BridgeError):
    """One message can't be sent on: it goes in a circle, or its properties can't be read."""


class ConfirmsOverdue(ClientError):
    """The destination takes messages and confirms none."""


def needs_a_person(error: BaseException) -> bool:
    """Whether waiting is of no use."""
    return isinstance(error, LASTING) and not any(text in str(error) for text in PASSING_TEXTS)


def one_line(error: BaseException) -> str:
    """The error for people: with the reply code that the broker gave, if it gave one."""
    text = str(error) or type(error).__name__
    if isinstance(error, AmqpError) and error.code:
        text = f"{error.code} {error.reply_text()}"
    return " ".join(text.split())


@contextmanager
def advising(advice: str) -> Iterator[None]:
    """Add what to do to what the broker says when something is missing or different."""
    try:
        yield
    except (NotFound, PreconditionFailed) as error:
        if not needs_a_person(error):
            raise
        raise type(error)(f"{error.text}; {advice}", error.class_id, error.method_id) from None
