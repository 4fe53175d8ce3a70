"""What the protocol core reports to its driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from rhizome.amqp.methods import Method
from rhizome.errors import RhizomeError


@final
@dataclass(frozen=True, slots=True)
class ConnectionOpened:
    """The handshake is complete; channels may be opened."""

    server_properties: dict[str, object]
    known_hosts: str


@final
@dataclass(frozen=True, slots=True)
class ConnectionEnded:
    """Nothing more will come. `error` is None if this side asked for the close."""

    error: RhizomeError | None


@final
@dataclass(frozen=True, slots=True)
class ConnectionBlocked:
    """The broker accepts no publishes for now (connection.blocked)."""

    reason: str


@final
@dataclass(frozen=True, slots=True)
class ConnectionUnblocked:
    """The broker accepts publishes again."""


@final
@dataclass(frozen=True, slots=True)
class FailoverMapTold:
    """The broker sent the failover map: the brokers, and which take over from which."""

    version: int
    entries: dict[str, object]


@final
@dataclass(frozen=True, slots=True)
class MoveAsked:
    """The broker asks this client to connect to the one at `host`."""

    host: str
    known_hosts: str


@final
@dataclass(frozen=True, slots=True)
class ChannelEnded:
    """The channel number is free again. `error` is None if this side asked for the close."""

    channel: int
    error: RhizomeError | None


@final
@dataclass(slots=True)
class MethodReceived:
    """A method without content, on an open channel."""

    channel: int
    method: Method


@final
@dataclass(slots=True)
class ContentReceived:
    """A complete basic.deliver, basic.get-ok or basic.return with its content.

    `header` is the payload of the content header frame, undecoded: most applications look at few
    properties, many at none.
    """

    channel: int
    method: Method
    header: bytes
    body: bytes


Event = (
    ConnectionOpened
    | ConnectionEnded
    | ConnectionBlocked
    | ConnectionUnblocked
    | FailoverMapTold
    | MoveAsked
    | ChannelEnded
    | MethodReceived
    | ContentReceived
)
