"""Connections of the client libraries, each closed when its test ends."""

from __future__ import annotations

import gc
import os
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from rhizome.testing.broker_process import Broker

Connect = Callable[..., pika.BlockingConnection]
PATIENCE_SECONDS = 60.0
"""How long what is sure to come is waited for. Four brokers, the test and its clients may share two
cores with a dozen other suites, and only what never comes is a failure."""


@pytest.fixture(autouse=True)
def sockets_that_clients_leave_open_are_not_our_failure() -> Iterator[None]:
    """Some clients drop sockets without closing them; collect those here, not in a later test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def pika_connect(broker: Broker) -> Iterator[Connect]:
    """Opens pika connections: `pika_connect(frame_max=8192)`."""
    opened: list[pika.BlockingConnection] = []

    def connect(user: str = "", password: str = "", **options: Any) -> pika.BlockingConnection:
        credentials = pika.PlainCredentials(user or broker.user, password or broker.password)
        for limit in ("blocked_connection_timeout", "socket_timeout", "stack_timeout"):
            options.setdefault(limit, PATIENCE_SECONDS)
        parameters = pika.ConnectionParameters(
            broker.host, broker.port, credentials=credentials, **options
        )
        connection = pika.BlockingConnection(parameters)
        opened.append(connection)
        return connection

    yield connect
    for connection in opened:
        if connection.is_open:
            connection.close()


@pytest.fixture
def channel(pika_connect: Connect) -> BlockingChannel:
    """A channel on a connection of its own."""
    return pika_connect().channel()


def wait_for_events(connection: pika.BlockingConnection, reached: Callable[[], bool]) -> None:
    """Let callbacks be called until they have brought about what is waited for."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not reached():
        assert time.monotonic() < deadline, "timed out waiting for what the broker should send"
        connection.process_data_events(time_limit=0.05)


def patterned_body(size: int) -> bytes:
    """`size` bytes in which a lost, repeated or moved part shows."""
    unit = b"".join(number.to_bytes(4, "big") for number in range(4096))
    salt = os.urandom(8)
    return (salt + unit * (size // len(unit) + 1))[:size]
