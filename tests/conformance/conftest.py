"""Connections of the wire driver, closed when their test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rhizome.testing.broker_process import Broker
from tests.conformance.wire_driver import Channel, Connection, Wire

Connect = Callable[..., Connection]
Unique = Callable[[str], str]


@pytest.fixture
def connect(broker: Broker) -> Iterator[Connect]:
    """Opens connections: `connect(frame_max=8192)`."""
    opened: list[Connection] = []

    def open_one(**options: Any) -> Connection:
        connection = Connection(broker, **options)
        opened.append(connection)
        return connection

    yield open_one
    for connection in opened:
        connection.close()


@pytest.fixture
def dial(broker: Broker) -> Iterator[Callable[[], Wire]]:
    """Opens sockets to the broker on which nothing has been said yet."""
    opened: list[Wire] = []

    def open_one() -> Wire:
        wire = Wire(broker.host, broker.port)
        opened.append(wire)
        return wire

    yield open_one
    for wire in opened:
        wire.close()


@pytest.fixture
def connection(connect: Connect) -> Connection:
    return connect()


@pytest.fixture
def channel(connection: Connection) -> Channel:
    return connection.channel()


@pytest.fixture
def other(connect: Connect) -> Channel:
    """A channel on a connection of its own."""
    return connect().channel()
