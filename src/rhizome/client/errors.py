"""What can go wrong for an application that uses the client.

    ClientError
    ├── InvalidUri           the URI can't be read; nothing was tried
    ├── ConnectFailed        no address of the list accepted us; `attempts` says why, one by one
    ├── FailoverFailed       a session has lost its broker and found no other; `attempts` likewise
    ├── ConnectionLost       the socket ended, or heartbeats stopped, without a close
    ├── ProtocolViolation    the peer sent something that AMQP 0-9-1 does not allow here
    ├── NotOpen              the connection or channel was closed by this application before
    ├── SendBufferFull       publish_soon was called again and again without ever waiting
    ├── PublishNacked        the broker refused responsibility for published messages
    ├── MessageReturned      a mandatory message reached no queue
    └── ConsumerCancelled    the broker cancelled the consumer (its queue was deleted, usually)

Refusals that the broker states with a reply code (404, 406, ...) are raised as the class of that
code from `rhizome.errors`, so `except NotFound` works the same on both sides of the wire.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rhizome.errors import AmqpError, ChannelError, ConnectionFault, InternalFault, RhizomeError

if TYPE_CHECKING:
    from rhizome.client.message import ReturnedMessage


def _by_code(base: type[AmqpError]) -> dict[int, type[AmqpError]]:
    return {leaf.code: leaf for leaf in base.__subclasses__() if leaf.code}


_OF_CHANNELS: Final = _by_code(ChannelError)
_OF_CONNECTIONS: Final = _by_code(ConnectionFault)


def channel_error(code: int, text: str, class_id: int, method_id: int) -> AmqpError:
    """The exception for a channel.close."""
    return _error(
        _OF_CHANNELS.get(code) or _OF_CONNECTIONS.get(code), code, text, class_id, method_id
    )


def connection_error(code: int, text: str, class_id: int, method_id: int) -> AmqpError:
    """The exception for a connection.close."""
    return _error(
        _OF_CONNECTIONS.get(code) or _OF_CHANNELS.get(code), code, text, class_id, method_id
    )


def _error(
    kind: type[AmqpError] | None, code: int, text: str, class_id: int, method_id: int
) -> AmqpError:
    """Texts come as "NAME - what happened"; the name is the class, so only the rest is kept."""
    if kind is None:
        return InternalFault(f"reply code {code}: {text}", class_id, method_id)
    return kind(text.removeprefix(f"{kind.name} - "), class_id, method_id)


class ClientError(RhizomeError):
    """Base of every error that the client itself finds."""


class InvalidUri(ClientError):
    """The connection URI can't be used; the text names the part and gives the expected form."""


class ConnectFailed(ClientError):
    """None of the addresses could be connected to.

    `attempts` holds one (address, error) per address, in the order in which they were tried.
    """

    def __init__(self, attempts: Sequence[tuple[str, BaseException]]) -> None:
        self.attempts = list(attempts)
        reasons = "; ".join(f"{where}: {describe(error)}" for where, error in self.attempts)
        super().__init__(f"could not connect to any broker ({reasons})")


class FailoverFailed(ConnectFailed):
    """A session lost its broker, and no broker that it knows accepted it in time.

    `attempts` holds one (address, error) per try; `lost` is what ended the last connection.
    """

    def __init__(
        self, attempts: Sequence[tuple[str, BaseException]], lost: BaseException | None
    ) -> None:
        super().__init__(attempts)
        self.lost = lost


class Redirected(ClientError):
    """The broker redirects the client to the one at ``host``."""

    def __init__(self, host: str, known_hosts: str) -> None:
        self.host = host
        self.known_hosts = known_hosts
        super().__init__(f"the broker sends us to {host}")


class ConnectionLost(ClientError):
    """The connection ended without a connection.close from either side."""


class ProtocolViolation(ClientError):
    """The peer broke AMQP 0-9-1; the connection can't be used any further."""


class NotOpen(ClientError):
    """The application used a connection or channel that it has closed, or never opened."""


class SendBufferFull(ClientError):
    """Too much is waiting to be sent; nothing of this message was sent."""


class PublishNacked(ClientError):
    """The broker answered basic.nack: not all queues accepted the publishes `sequences`."""

    def __init__(self, sequences: Sequence[int]) -> None:
        self.sequences = list(sequences)
        count = len(self.sequences)
        what = f"publish {self.sequences[0]} was" if count == 1 else f"{count} publishes were"
        super().__init__(
            f"{what} refused by the broker (basic.nack); the queue is full or unavailable:"
            " publish again later"
        )


class MessageReturned(ClientError):
    """A mandatory message reached no queue; `message` is what came back."""

    def __init__(self, message: ReturnedMessage) -> None:
        self.message = message
        super().__init__(
            f"message to exchange '{message.exchange}' with key '{message.routing_key}' came back:"
            f" {message.reply_code} {message.reply_text}; bind a queue for it, or publish with"
            " mandatory=False"
        )


class ConsumerCancelled(ClientError):
    """The broker ended the consumer; its queue was deleted or moved, or it was too slow."""

    def __init__(self, consumer_tag: str, queue: str) -> None:
        self.consumer_tag = consumer_tag
        self.queue = queue
        super().__init__(
            f"consumer '{consumer_tag}' of queue '{queue}' was cancelled by the broker;"
            " declare the queue and consume again"
        )


def renewed(error: Exception) -> Exception:
    """A copy to raise at another place: an error that is raised twice collects both tracebacks."""
    if isinstance(error, (AmqpError, ConnectionLost, ProtocolViolation, NotOpen)):
        return copy.copy(error)
    return error


def describe(error: BaseException) -> str:
    """One line for people: the error's text, or its class where it has none."""
    return str(error) or type(error).__name__
