"""Names that clients may not use, in the words of RabbitMQ."""

from __future__ import annotations

from typing import Final

from rhizome.broker.erlang_term_text import exchange_resource, queue_resource
from rhizome.errors import AccessRefused, NotFound, PreconditionFailed

RESERVED_PREFIX: Final = "amq."
NAME_BYTES_MAX: Final = 255

EVENT_EXCHANGE: Final = "amq.rabbitmq.event"


def check_declarable_name(kind: str, name: str) -> None:
    """Raise AccessRefused for a name that applications may not give a new "queue" or "exchange".

    A session checks this for every queue with a name of the client's choice, and for an exchange
    only if there is none of that name: declaring amq.direct again asks a question and changes
    nothing.
    """
    if name.startswith(RESERVED_PREFIX):
        raise AccessRefused(f"{kind} name '{name}' contains reserved prefix 'amq.*'")


def check_length(what: str, name: str) -> None:
    """Raise PreconditionFailed for a name that is too long for the wire.

    Clients can't send one, but it could enter the state by other means, and a message from there
    could never be delivered.
    """
    if len(name.encode("utf-8", "surrogateescape")) > NAME_BYTES_MAX:
        raise PreconditionFailed(f"{what} '{name[:32]}...' has more than {NAME_BYTES_MAX} bytes")


def check_not_default_exchange(name: str) -> None:
    """Raise AccessRefused for the nameless exchange, which can't be declared, deleted or bound."""
    if name == "":
        raise AccessRefused("operation not permitted on the default exchange")


def check_deletable_exchange(vhost: str, name: str) -> None:
    """Raise AccessRefused for exchanges that are always there."""
    check_not_default_exchange(name)
    if name.startswith(RESERVED_PREFIX):
        raise AccessRefused(f"deletion of system {exchange_resource(vhost, name)} not allowed")


def no_exchange(vhost: str, name: str) -> NotFound:
    return NotFound(f"no {exchange_resource(vhost, name)}")


def no_queue(vhost: str, name: str) -> NotFound:
    return NotFound(f"no {queue_resource(vhost, name)}")


def no_vhost(name: str) -> NotFound:
    return NotFound(f"no vhost '{name}'")
