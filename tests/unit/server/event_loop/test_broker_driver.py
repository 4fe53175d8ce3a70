"""The shell's protocol: what it makes of a transport."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from rhizome.server.broker_server import peer_of
from rhizome.server.event_loop.broker_driver import WRITTEN_BYTES_MAX, ClientProtocol, Shell
from rhizome.server.event_loop.busy_poll import BusyPoll
from rhizome.testing.in_memory_broker import make_core


class Transport:
    """A transport that has addresses and takes what is written."""

    def __init__(self, peer: Any, local: Any) -> None:
        self._info = {"peername": peer, "sockname": local}
        self.written = 0

    def get_extra_info(self, name: str) -> Any:
        return self._info[name]

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        pass

    def write(self, data: bytes) -> None:
        self.written += len(data)


@pytest.mark.parametrize(
    ("peer", "local", "name"),
    [
        (("10.1.2.3", 40001), ("10.1.2.9", 5672), "10.1.2.3:40001 -> 10.1.2.9:5672"),
        (
            ("2001:db8::3", 40001, 0, 0),
            ("2001:db8::9", 5672, 0, 0),
            "[2001:db8::3]:40001 -> [2001:db8::9]:5672",
        ),
        ("", "/run/rhizome.sock", "unix:0 -> the listener"),
    ],
)
def test_a_connection_is_named_after_the_addresses_of_its_ends(
    peer: Any, local: Any, name: str
) -> None:
    """Not after its listener, which may be one on all addresses. RabbitMQ names them so."""
    core = make_core()
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        never = BusyPoll(loop, 0, time.monotonic_ns, os.sched_yield)
        broker = core.broker
        shell = Shell(broker, broker.cluster, core.store, loop, lambda: core.now_ms, never)
        protocol = ClientProtocol(shell, "the listener", False, peer_of)
        protocol.connection_made(Transport(peer, local))
        assert [each.name for each in broker.connections.values()] == [name]


class Loop:
    """Keeps what is to be called."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self.calls.append(call)


def test_a_turn_hands_so_much_to_sockets_and_the_next_the_rest() -> None:
    """One large message may go to thousands of connections."""
    core, loop = make_core(), Loop()
    never = BusyPoll(loop, 0, time.monotonic_ns, os.sched_yield)  # type: ignore[arg-type]
    broker = core.broker
    shell = Shell(broker, broker.cluster, core.store, loop, lambda: core.now_ms, never)  # type: ignore[arg-type]
    transports = [Transport(("10.1.2.3", port), ("10.1.2.9", 5672)) for port in range(4)]
    for transport in transports:
        ClientProtocol(shell, "the listener", False, peer_of).connection_made(transport)
    while loop.calls:
        loop.calls.pop(0)()
    shell.begin_turn()
    for connection in broker.connections.values():
        connection.outbox.put_large(bytes(WRITTEN_BYTES_MAX // 2))
        connection.touch()
    loop.calls.pop(0)()
    assert [bool(each.written) for each in transports] == [True, True, False, False]
    while loop.calls:
        loop.calls.pop(0)()
    assert all(each.written >= WRITTEN_BYTES_MAX // 2 for each in transports)
